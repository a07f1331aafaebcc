"""Coverage: a summary of earlier attention as an input of attention scores.

Tu et al., "Modeling Coverage for Neural Machine Translation" (ACL 2016), section 3: each source position i has a
coverage C_{t,i}, a vector of d numbers, initially 0. The score of step t depends on C_{t−1,i}: in the paper, with an
additive score, it is vᵀtanh(W s + U h_i + V C_{t−1,i}), so V C_{t−1,i} is added to the key U h_i of the position. Here
it is added to the keys of every score. For inner products this adds the term sᵀV C_{t−1,i} to the score without
coverage.
"""

from typing import Callable, Dict, Optional, Type

import torch
from torch import Tensor, nn

from fairseq_structattn.modules.cells import gru_cell
from fairseq_structattn.modules.repeated_product import RepeatedLinear

NO_COVERAGE = "none"

# Coverage before a step, weights and query of the step → coverage after it; for shapes see Coverage.forward.
Step = Callable[[Tensor, Tensor, Tensor], Tensor]


class Coverage(nn.Module):
    """Base class of coverages.

    Args:
        query_dim: size of a query
        source_dim: size of a source state
        key_dim: size of a key
        size: d; ignored by coverages that determine it
        max_fertility: N; ignored by coverages without fertility

    Attributes:
        size: d
        source_projection: module from source states ``[batch, src_len, source_dim]`` to an input of the coverage,
            ``[batch, src_len, …]``, computed once per sentence; None if it needs no source states
        key_projection: V, from coverage to the term that is added to the keys
    """

    def __init__(self, query_dim: int, source_dim: int, key_dim: int, size: int, max_fertility: float):
        super().__init__()
        self.size = size
        self.source_projection: Optional[nn.Module] = None
        self.key_projection = nn.Linear(size, key_dim, bias=False)

    def forward(self, coverage: Tensor, weights: Tensor, query: Tensor, source: Optional[Tensor]) -> Tensor:
        """Coverage after a step.

        Args:
            coverage: before it, ``[batch, src_len, size]``
            weights: attention weights of the step, ``[batch, src_len]``
            query: query of the step, ``[batch, query_dim]``
            source: result of `source_projection`

        Returns:
            ``[batch, src_len, size]``

        Raises:
            ValueError: `source` is None, and the coverage reads it
        """
        raise NotImplementedError

    def for_steps(self, steps: int, source: Optional[Tensor]) -> Step:
        """:meth:`forward` as a function of coverage, weights and query, for at most `steps` steps that run one after
        the other."""
        return lambda coverage, weights, query: self(coverage, weights, query, source)


class SumCoverage(Coverage):
    """The sum of the weights so far: C_{t,i} = C_{t−1,i} + a_{t,i}, one number for each position (Tu et al. 2016,
    linguistic coverage without fertility; See et al. 2017, equations 10 and 11)."""

    def __init__(self, query_dim: int, source_dim: int, key_dim: int, size: int, max_fertility: float):
        super().__init__(query_dim, source_dim, key_dim, 1, max_fertility)

    def forward(self, coverage: Tensor, weights: Tensor, query: Tensor, source: Optional[Tensor]) -> Tensor:
        return coverage + weights.to(coverage.dtype).unsqueeze(-1)


class FertilityCoverage(Coverage):
    """The sum of the weights divided by fertility, the expected number of target words of a position: C_{t,i} =
    C_{t−1,i} + a_{t,i}/Φ_i with Φ_i = N·σ(U h_i), between 0 and N (Tu et al. 2016, linguistic coverage with
    fertility)."""

    def __init__(self, query_dim: int, source_dim: int, key_dim: int, size: int, max_fertility: float):
        super().__init__(query_dim, source_dim, key_dim, 1, max_fertility)
        self.max_fertility = max_fertility
        self.source_projection = nn.Linear(source_dim, 1, bias=False)

    def forward(self, coverage: Tensor, weights: Tensor, query: Tensor, source: Optional[Tensor]) -> Tensor:
        return self.for_steps(1, source)(coverage, weights, query)

    def for_steps(self, steps: int, source: Optional[Tensor]) -> Step:
        source = _given(source)
        fertility = self.max_fertility * torch.sigmoid(source.to(torch.promote_types(source.dtype, torch.float32)))
        share = 1 / fertility.clamp(min=torch.finfo(fertility.dtype).eps)
        return lambda coverage, weights, query: torch.addcmul(
            coverage, weights.to(coverage.dtype).unsqueeze(-1), share.to(coverage.dtype)
        )


class RecurrentCoverage(Coverage):
    """A gated recurrent unit for each position, which reads the weight, the source state and the query: C_{t,i} =
    GRU([a_{t,i}; h_i; s_t], C_{t−1,i}) (Tu et al. 2016, neural network based coverage with gating; Cho et al. 2014).

    As in PyTorch's GRU, the reset gate is applied after the recurrent matrix.
    """

    def __init__(self, query_dim: int, source_dim: int, key_dim: int, size: int, max_fertility: float):
        super().__init__(query_dim, source_dim, key_dim, size, max_fertility)
        self.source_projection = nn.Linear(source_dim, 3 * size)
        self.query_projection = nn.Linear(query_dim, 3 * size, bias=False)
        self.weight_projection = nn.Linear(1, 3 * size, bias=False)
        self.recurrence = nn.Linear(size, 3 * size)

    def forward(self, coverage: Tensor, weights: Tensor, query: Tensor, source: Optional[Tensor]) -> Tensor:
        return self.for_steps(1, source)(coverage, weights, query)

    def for_steps(self, steps: int, source: Optional[Tensor]) -> Step:
        source = _given(source)
        batch, length = source.shape[:2]
        of_query = RepeatedLinear(self.query_projection, steps, batch)
        of_coverage = RepeatedLinear(self.recurrence, steps, batch * length)
        of_weight = self.weight_projection.weight.squeeze(-1)

        def step(coverage: Tensor, weights: Tensor, query: Tensor) -> Tensor:
            read = source + of_query(query).unsqueeze(1) + weights.unsqueeze(-1) * of_weight
            kept = of_coverage(coverage.flatten(0, 1)).view(batch, length, -1)
            return gru_cell(read, kept, coverage)

        return step


def _given(source: Optional[Tensor]) -> Tensor:
    if source is None:
        raise ValueError("source is None; this coverage reads the source states, so give source_projection(states)")
    return source


COVERAGES: Dict[str, Optional[Type[Coverage]]] = {
    NO_COVERAGE: None,
    "sum": SumCoverage,
    "fertility": FertilityCoverage,
    "gru": RecurrentCoverage,
}
