"""One position out of n."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .registry import register_distribution
from .semirings import NEGATIVE_INFINITY, LogSemiring, one_hot_sample
from .structured import StructuredDistribution, cached, split_positions


@register_distribution("softmax")
class Categorical(StructuredDistribution):
    """Exactly one position is selected: the distribution behind ordinary softmax attention.

    p(z = i) ∝ exp(logits_i). A structure is a one-hot vector over positions. An item of length 0 is impossible.
    Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (ICLR 2015), equation 6;
    seen as a latent variable: Kim et al., "Structured Attention Networks" (ICLR 2017), section 2.

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
        """Number of positions, ``[*batch]`` in float64."""
        return self.lengths.double()

    @cached
    def marginals(self) -> Tensor:
        """Probability of each position, ``[*batch, n]``; exactly 0 in padding."""
        # Without log Z, which a decoder would compute in vain at every step.
        return self._public(self._probabilities)

    @cached
    def _probabilities(self) -> Tensor:
        logits = self._masked_logits
        # A row of −inf would make softmax divide 0 by 0, and the NaN would survive a later mask in the gradient.
        finite = logits.clamp(min=torch.finfo(logits.dtype).min)
        return torch.softmax(finite, -1).masked_fill(logits == NEGATIVE_INFINITY, 0)

    @cached
    def _masked_logits(self) -> Tensor:
        return self._without_padding(self._logits.to(self.compute_dtype), NEGATIVE_INFINITY)

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """Σᵢ Aᵢ log p(z = i), see :meth:`StructuredDistribution.alignment_log_prob`."""
        (share,) = self._parts(alignment)
        aligned = share.sum(-1)
        with self._full_precision():
            log_partition = self._inferred[0]
            possible = log_partition.masked_fill(log_partition == NEGATIVE_INFINITY, 0)
            return self._public(self._score((share,)) - aligned * possible)

    def _inference(self) -> Tuple[Tensor, Tensor]:
        return LogSemiring.sum(self._masked_logits, -1), self._probabilities

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._without_padding(self._logits.to(self.compute_dtype)),)

    def _argmax(self) -> Tensor:
        marginals = self._probabilities.detach()
        if self.max_length == 0:
            return marginals
        return torch.zeros_like(marginals).scatter_(-1, marginals.argmax(-1, keepdim=True), 1) * (marginals > 0)

    def _sample(self, sample_shape: torch.Size) -> Tensor:
        marginals = self._probabilities.expand(sample_shape + self.batch_shape + (self.max_length,))
        return one_hot_sample(marginals, -1) if self.max_length > 0 else marginals

    def _in_support(self, structure: Tensor) -> Tensor:
        return self._parts(structure)[0].sum(-1) == 1
