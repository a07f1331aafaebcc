"""Coverage: a summary of earlier attention as an input of attention scores.

Tu et al., "Modeling Coverage for Neural Machine Translation" (ACL 2016), section 3: each source position i has a
coverage C_{t,i}, a vector of d numbers, initially 0. The score of step t depends on C_{t−1,i}: in the paper, with an
additive score, it is vᵀtanh(W s + U h_i + V C_{t−1,i}), so V C_{t−1,i} is added to the key U h_i of the position. Here
it is added to the keys of every score. For inner products this adds the term sᵀV C_{t−1,i} to the score without
coverage.
"""

from typing import Dict, Optional, Type

import torch
from torch import Tensor, nn

NO_COVERAGE = "none"


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
        fertility = self.max_fertility * torch.sigmoid(_given(source).to(coverage.dtype))
        return coverage + weights.to(coverage.dtype).unsqueeze(-1) / fertility.clamp(
            min=torch.finfo(fertility.dtype).eps
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
        source = _given(source)
        read = source + self.query_projection(query).unsqueeze(1) + self.weight_projection(weights.unsqueeze(-1))
        read_reset, read_update, read_new = read.chunk(3, -1)
        kept_reset, kept_update, kept_new = self.recurrence(coverage.to(source.dtype)).chunk(3, -1)
        reset, update = torch.sigmoid(read_reset + kept_reset), torch.sigmoid(read_update + kept_update)
        new = torch.tanh(read_new + reset * kept_new)
        return torch.lerp(new.to(coverage.dtype), coverage, update.to(coverage.dtype))


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
