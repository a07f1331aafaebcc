"""One position out of n."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import integers, k_best
from .gumbel import RelaxedSample, relaxed_choice
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
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError, ValueError: see :class:`StructuredDistribution`; ``logits`` without dimension.

    Example:
        >>> attention = Categorical(torch.tensor([1.0, 2.0, 5.0]).log())
        >>> attention.marginals
        tensor([0.1250, 0.2500, 0.6250])
        >>> attention.argmax
        tensor([0., 0., 1.])
        >>> attention.as_integers(attention.topk(2).structures)
        tensor([2, 1])
        >>> attention.entropy()
        tensor(0.9003)
    """

    has_rsample = True

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
        """Number of positions, ``[*batch]`` in float64."""
        return self.lengths.double()

    @cached
    def log_partition(self) -> Tensor:
        """log Z, ``[*batch]``."""
        return self._public(self._inferred[0])

    @cached
    def marginals(self) -> Tensor:
        """Probability of each position, ``[*batch, n]``; exactly 0 in padding."""
        # A decoder does not need log Z, so it is not computed here. A softmax in float32 is accurate for scores of any
        # size.
        return self._public_parts(probabilities(self._masked_logits(self._narrow_dtype)))

    @staticmethod
    def marginals_of_masked(logits: Tensor) -> Tensor:
        """``marginals`` for logits that are finite, and in padding far below all others. Without an instance this takes
        one operation, for loops; an item of length 0 has equal marginals in its padding."""
        return torch.softmax(logits, -1)

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """Σᵢ Aᵢ log p(z = i), see :meth:`StructuredDistribution.alignment_log_prob`."""
        self._check_unchanged()
        share = self._without_padding(alignment.to(self.compute_dtype))
        with self._full_precision():
            return self._public(0 - self._cross_entropy((share,)))

    def as_integers(self, parts: Tensor) -> Tensor:
        """The selected position, ``[*sample, *batch]``; −1 where none is selected."""
        return integers.of_choices(self._without_padding(parts), -1)

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """One-hot vectors ``[*sample, *batch, n]`` of positions; the inverse of :meth:`as_integers`."""
        return self._without_padding(integers.one_hot(integers_, self.max_length, -1, self.dtype))

    def _best_values(self, k: int) -> Tuple[Tensor, Tensor]:
        return k_best.best_choices(self._masked_logits(self.compute_dtype), k)

    def _structure_name(self) -> str:
        return f"one-hot vectors of {self.max_length} positions"

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        logits = self._masked_logits(self.compute_dtype)
        return LogSemiring.sum(logits, -1), probabilities(logits)

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        return cross_entropy(self._masked_logits(self.compute_dtype), parts[0])

    def _masked_logits(self, dtype: torch.dtype) -> Tensor:
        """Logits in ``dtype`` with −inf in padding."""
        logits = self.logits if self._moderate is None else self._moderate.potentials[0]
        return self._without_padding(logits.to(dtype), NEGATIVE_INFINITY)

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._without_padding(self.logits.to(self.compute_dtype)),)

    def _argmax(self) -> Tensor:
        return best_choice(self._masked_logits(self.compute_dtype))

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        marginals = self._inferred[1].expand(sample_shape + self.batch_shape + (self.max_length,))
        return one_hot_sample(marginals, -1, generator) if self.max_length > 0 else marginals

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        logits = self._masked_logits(self.compute_dtype)
        if self.max_length == 0:
            nothing = logits.expand(sample_shape + logits.shape)
            return RelaxedSample(nothing, nothing)
        return relaxed_choice(logits.expand(sample_shape + logits.shape), temperature, generator)

    def _in_support(self, structure: Tensor) -> Tensor:
        parts = self._without_padding(structure.to(self.compute_dtype))
        return ((parts == 1).sum(-1) == 1) & ((parts != 0).sum(-1) == 1)


# Choices along the last dimension, given by scores that may be −inf. Where all scores are −inf, nothing is chosen.


def probabilities(logits: Tensor) -> Tensor:
    """Softmax; 0 where all logits are −inf."""
    # A softmax over a row of −inf divides 0 by 0, and that NaN would survive a later mask in the gradient.
    finite = logits.clamp(min=torch.finfo(logits.dtype).min)
    return torch.softmax(finite, -1).masked_fill(logits == NEGATIVE_INFINITY, 0)


def cross_entropy(logits: Tensor, share: Tensor) -> Tensor:
    """−Σ share · log p, computed without subtracting large numbers; +inf where a forbidden part has a positive
    share."""
    forbidden = logits == NEGATIVE_INFINITY
    log_probs = torch.log_softmax(logits.clamp(min=torch.finfo(logits.dtype).min), -1)
    impossible = (forbidden & (share != 0)).any(-1)
    return (0 - (log_probs.masked_fill(forbidden, 0) * share).sum(-1)).masked_fill(impossible, float("inf"))


def best_choice(logits: Tensor) -> Tensor:
    """One-hot vector of the largest logit; zero where all logits are −inf."""
    logits = logits.detach()
    if logits.shape[-1] == 0:
        return logits
    possible = logits > NEGATIVE_INFINITY
    return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1) * possible
