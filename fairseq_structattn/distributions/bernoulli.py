"""Independent positions."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .registry import register_distribution
from .semirings import NEGATIVE_INFINITY
from .structured import StructuredDistribution, cached, log_prob_of_marks, split_positions


@register_distribution("sigmoid")
class Bernoulli(StructuredDistribution):
    """Each position is selected or not, independently of the others: the distribution behind sigmoid attention.

    p(z) ∝ exp(Σ_i logits_i z_i) over z in {0, 1}ⁿ: a linear chain without couplings. Kim et al., "Structured Attention
    Networks" (ICLR 2017), section 4.2 ("sigmoid").

    Args:
        logits: ``[*batch, n]``.
        lengths: integers broadcastable against ``[*batch]``; ``None`` (default): no padding.

    Raises:
        TypeError, ValueError: see :class:`StructuredDistribution`; ``logits`` without dimension.
    """

    def __init__(self, logits: Tensor, lengths: Optional[Tensor] = None) -> None:
        batch_shape, max_length = split_positions("logits", logits)
        super().__init__(batch_shape, max_length, lengths, logits=logits)
        self._logits = logits

    @property
    def support_size(self) -> Tensor:
        """2 to the length, ``[*batch]`` in float64."""
        return torch.exp2(self.lengths.double())

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """log p of selecting the aligned positions and no other, see
        :meth:`StructuredDistribution.alignment_log_prob`."""
        return log_prob_of_marks(self, alignment)

    @cached
    def log_partition(self) -> Tensor:
        """log Z, ``[*batch]``."""
        return self._public(self._inferred[0])

    @cached
    def marginals(self) -> Tensor:
        """Probability of each position to be selected, ``[*batch, n]``; exactly 0 in padding."""
        logits = self._logits if self._moderate is None else self._moderate.potentials[0]
        selected = torch.sigmoid(self._without_padding(logits.to(self._narrow_dtype)))
        return self._public_parts(self._without_padding(selected))

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        logits = self._usable_potentials[0].to(dtype)
        log_partition = self._without_padding(_softplus(logits)).sum(-1)
        return log_partition, self._without_padding(torch.sigmoid(logits))

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        """Of logarithms of probabilities, which never are differences of large numbers."""
        (selected,) = parts
        (logits,) = self._usable_potentials
        forbidden = logits == NEGATIVE_INFINITY
        finite = logits.masked_fill(forbidden, 0)
        terms = selected * _softplus(-finite) + (1 - selected) * _softplus(finite)
        terms = self._without_padding(terms.masked_fill(forbidden, 0))
        return terms.sum(-1).masked_fill((forbidden & (selected != 0)).any(-1), float("inf"))

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._without_padding(self._logits.to(self.compute_dtype)),)

    def _argmax(self) -> Tensor:
        return self._usable_potentials[0].detach() > 0

    def _sample(self, sample_shape: torch.Size) -> Tensor:
        return torch.bernoulli(self._inferred[1].expand(sample_shape + self.batch_shape + (self.max_length,)))

    def _in_support(self, structure: Tensor) -> Tensor:
        return ((structure == 0) | (structure == 1) | ~self.position_mask).all(-1)


def _softplus(scores: Tensor) -> Tensor:
    # The default threshold of 20 is visible in float64.
    return F.softplus(scores, threshold=40)
