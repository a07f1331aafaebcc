"""Independent positions."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .registry import register_distribution
from .structured import StructuredDistribution, log_prob_of_marks, split_positions


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

    def _inference(self) -> Tuple[Tensor, Tensor]:
        (logits,) = self._potentials()
        # The default threshold of 20 is visible in float64.
        log_partition = self._without_padding(F.softplus(logits, threshold=40)).sum(-1)
        return log_partition, self._without_padding(torch.sigmoid(logits))

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._without_padding(self._logits.to(self.compute_dtype)),)

    def _argmax(self) -> Tensor:
        return self._potentials()[0].detach() > 0

    def _sample(self, sample_shape: torch.Size) -> Tensor:
        return torch.bernoulli(self._inferred[1].expand(sample_shape + self.batch_shape + (self.max_length,)))
