"""Semirings, by which one recursion computes several quantities.

A recursion over a semiring multiplies with ``+`` (scores are logarithms in all three) and adds with ``semiring.sum``.
The gradient of the total with respect to the potentials is the vector of marginals (:class:`LogSemiring`), the
indicator of the best structure (:class:`MaxSemiring`) or of an exact sample (:class:`SamplingSemiring`). See Goodman,
"Semiring Parsing" (Computational Linguistics 1999), and, for gradients as marginals and samples, Rush, "Torch-Struct"
(ACL 2020 demonstrations), section 4.

In each semiring, a sum without terms, or whose terms are all −inf, is −inf and passes no gradient.

:class:`SignedLog` represents real numbers of either sign, for the backward passes of Kim et al. (2017).
"""

from typing import NamedTuple, Optional, Protocol

import torch
from torch import Tensor

NEGATIVE_INFINITY = float("-inf")


class Semiring(Protocol):
    """Addition of a semiring on log scores; multiplication is ``+``, the one is 0 and the zero −inf. An object, or a
    class if addition needs no settings."""

    def sum(self, scores: Tensor, dim: int) -> Tensor:
        """Add along ``dim``, which is removed."""
        ...


class LogSemiring:
    """(logaddexp, +): the total is log Z, its gradient the marginals. It can be differentiated any number of times."""

    @staticmethod
    def sum(scores: Tensor, dim: int) -> Tensor:
        if scores.shape[dim] == 0:
            return scores.sum(dim) + NEGATIVE_INFINITY
        shift = _finite_shift(scores, dim)
        mass = (scores - shift).exp().sum(dim)
        # The logarithm must not be evaluated at 0, where its infinite derivative times a zero gradient is NaN.
        empty = mass == 0
        total = mass.masked_fill(empty, 1).log() + shift.squeeze(dim)
        return total.masked_fill(empty, NEGATIVE_INFINITY)


class MaxSemiring:
    """(max, +): the total is the best score, its gradient the indicator of one best structure."""

    @staticmethod
    def sum(scores: Tensor, dim: int) -> Tensor:
        # amax would spread the gradient over ties, and the result would not be a structure.
        best = scores.max(dim).values
        return best.masked_fill(best == NEGATIVE_INFINITY, NEGATIVE_INFINITY)


class SamplingSemiring:
    """(logaddexp, +) whose gradient is a sample: each sum passes its gradient to one term, drawn by its probability.

    Args:
        generator: source of randomness; ``None``: PyTorch's default generator.
    """

    def __init__(self, generator: Optional[torch.Generator]) -> None:
        self._generator = generator

    def sum(self, scores: Tensor, dim: int) -> Tensor:
        return _SampledSum.apply(scores, dim, self._generator)


class _SampledSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, dim: int, generator: Optional[torch.Generator]) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.dim, ctx.generator = dim, generator
        return LogSemiring.sum(scores, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        (scores,) = ctx.saved_tensors
        weights = (scores - _finite_shift(scores, ctx.dim)).exp()
        choice = one_hot_sample(weights, ctx.dim, ctx.generator)
        return choice * grad.unsqueeze(ctx.dim), None, None


class SignedLog(NamedTuple):
    """Real numbers as a sign and the logarithm of the absolute value: the signed log-space semifield (Li & Eisner,
    EMNLP 2009; table 1 of Kim et al., ICLR 2017). Zero has the logarithm −inf and either sign.

    Attributes:
        log_size: log |a|
        sign: 1 or −1, in the same shape
    """

    log_size: Tensor
    sign: Tensor

    @classmethod
    def of(cls, value: Tensor) -> "SignedLog":
        """Real numbers of any sign."""
        return cls(value.abs().log(), torch.where(value < 0, -torch.ones_like(value), torch.ones_like(value)))

    @classmethod
    def exp(cls, log_size: Tensor) -> "SignedLog":
        """Positive numbers, given by their logarithms."""
        return cls(log_size, torch.ones_like(log_size))

    def times(self, other: "SignedLog") -> "SignedLog":
        """Product, with broadcasting."""
        return SignedLog(self.log_size + other.log_size, self.sign * other.sign)

    def plus(self, other: "SignedLog") -> "SignedLog":
        """Sum of two numbers of one shape."""
        both = (torch.stack((self.log_size, other.log_size)), torch.stack((self.sign, other.sign)))
        return SignedLog(*both).sum(0)

    def sum(self, dim: int) -> "SignedLog":
        """Sum along a dimension of size 1 or more, which is removed."""
        shift = _finite_shift(self.log_size, dim)
        total = SignedLog.of((self.sign * (self.log_size - shift).exp()).sum(dim))
        return SignedLog(total.log_size + shift.squeeze(dim), total.sign)

    def real(self) -> Tensor:
        """The numbers themselves ("signexp")."""
        return self.sign * self.log_size.exp()


def one_hot_sample(weights: Tensor, dim: int, generator: Optional[torch.Generator]) -> Tensor:
    """Draw one index along ``dim`` with probability proportional to ``weights`` (non-negative, any scale).

    The result has the shape of ``weights`` and is one-hot along ``dim``, or zero where all weights are.
    """
    # Among independent exponential variables of rates w, the k-th is the smallest with probability w_k / Σ w.
    device = weights.device if generator is None else generator.device
    # empty_like would keep the strides of weights and be filled in the order of memory.
    rates = torch.empty(weights.shape, dtype=weights.dtype, device=device).exponential_(generator=generator)
    race = weights / rates.to(weights.device)
    index = race.argmax(dim, keepdim=True)
    return torch.zeros_like(weights).scatter_(dim, index, 1) * (weights > 0)


def _finite_shift(scores: Tensor, dim: int) -> Tensor:
    best = scores.detach().amax(dim, keepdim=True)
    return best.masked_fill(best == NEGATIVE_INFINITY, 0)
