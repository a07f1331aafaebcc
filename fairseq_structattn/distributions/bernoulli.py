"""Positions that are selected independently of each other."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from . import integers
from .linear_chain import LinearChain
from .operations import uniform
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
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError, ValueError: see :class:`StructuredDistribution`; ``logits`` without dimension.

    Example:
        >>> marks = Bernoulli(torch.tensor([1.0, 3.0]).log())
        >>> marks.marginals
        tensor([0.5000, 0.7500])
        >>> marks.topk(3).log_probs.exp()
        tensor([0.3750, 0.3750, 0.1250])
        >>> marks.log_prob(torch.tensor([1.0, 1.0])).exp()
        tensor(0.3750)
    """

    def __init__(self, logits: Tensor, lengths: Optional[Tensor] = None, validate_args: Optional[bool] = None) -> None:
        batch_shape, max_length = split_positions("logits", logits)
        super().__init__(batch_shape, max_length, lengths, validate_args, logits=logits)
        self._validate_potentials()

    @property
    def logits(self) -> Tensor:
        """The scores as given, ``[*batch, n]``."""
        return self._given["logits"]

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
        logits = self.logits if self._moderate is None else self._moderate.potentials[0]
        selected = torch.sigmoid(self._without_padding(logits.to(self._narrow_dtype)))
        return self._public_parts(self._without_padding(selected))

    @staticmethod
    def marginals_of_masked(logits: Tensor) -> Tensor:
        """``marginals`` for logits that are finite, and in padding far below all others. Without an instance this takes
        one operation, for loops."""
        return torch.sigmoid(logits)

    def as_integers(self, parts: Tensor) -> Tensor:
        """1 for selected positions and 0 for the others, ``[*sample, *batch, n]``; −1 in padding."""
        return integers.of_marks(parts, self.position_mask)

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """Indicators ``[*sample, *batch, n]``; the inverse of :meth:`as_integers`."""
        return self._without_padding(integers_.to(self.dtype))

    def _num_values(self) -> int:
        return 2

    def _restricted(self, allowed: Tensor) -> LinearChain:
        # Either of the two states may be forbidden.
        (logits,) = self._usable_potentials
        states = torch.stack((torch.zeros_like(logits), logits), -1).masked_fill(~allowed, NEGATIVE_INFINITY)
        lengths = self.lengths if self._has_padding else None
        return LinearChain(states, states.new_zeros(2, 2), lengths, num_states=2)

    def _structure_name(self) -> str:
        return f"vectors of {self.max_length} zeros and ones"

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        logits = self._usable_potentials[0].to(dtype)
        log_partition = self._without_padding(_softplus(logits)).sum(-1)
        return log_partition, self._without_padding(torch.sigmoid(logits))

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        """Computed from log-probabilities, so that no large numbers are subtracted."""
        (selected,) = parts
        (logits,) = self._usable_potentials
        forbidden = logits == NEGATIVE_INFINITY
        finite = logits.masked_fill(forbidden, 0)
        terms = selected * _softplus(-finite) + (1 - selected) * _softplus(finite)
        terms = self._without_padding(terms.masked_fill(forbidden, 0))
        return terms.sum(-1).masked_fill((forbidden & (selected != 0)).any(-1), float("inf"))

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._without_padding(self.logits.to(self.compute_dtype)),)

    def _argmax(self) -> Tensor:
        return self._usable_potentials[0].detach() > 0

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        selected = self._inferred[1]
        return uniform(sample_shape + selected.shape, selected.device, generator, selected.dtype) < selected

    def _in_support(self, structure: Tensor) -> Tensor:
        return ((structure == 0) | (structure == 1) | ~self.position_mask).all(-1)


def _softplus(scores: Tensor) -> Tensor:
    # The error of softplus with its default threshold of 20 is visible in float64.
    return F.softplus(scores, threshold=40)
