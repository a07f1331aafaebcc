"""Semirings that turn one recursion into several quantities.

A recursion written against a semiring multiplies with ``+`` (scores are logarithms in all three) and adds with
``semiring.sum``. The gradient of its total with respect to the potentials is then what one wants to know about the
parts: marginals (:class:`LogSemiring`), the best structure (:class:`MaxSemiring`) or an exact sample
(:class:`SamplingSemiring`). See Goodman, "Semiring Parsing" (Computational Linguistics 1999), and, for gradients as
marginals and samples, Rush, "Torch-Struct" (ACL 2020 demonstrations), section 4.

In each, a sum whose terms are all −inf (or that has no terms) is −inf and passes no gradient.
"""

import torch
from torch import Tensor

NEGATIVE_INFINITY = float("-inf")


class Semiring:
    """Addition of a semiring on log scores; its multiplication is ``+``, its one 0 and its zero −inf."""

    @staticmethod
    def sum(scores: Tensor, dim: int) -> Tensor:
        """Add along ``dim``, which disappears."""
        raise NotImplementedError


class LogSemiring(Semiring):
    """(logaddexp, +): the total is log Z, its gradient the marginals, and it can be differentiated again."""

    @staticmethod
    def sum(scores: Tensor, dim: int) -> Tensor:
        if scores.shape[dim] == 0:
            return scores.sum(dim) + NEGATIVE_INFINITY
        shift = _finite_shift(scores, dim)
        mass = (scores - shift).exp().sum(dim)
        # The logarithm must not even be evaluated at 0: its infinite slope times a zero gradient would be NaN.
        empty = mass == 0
        total = mass.masked_fill(empty, 1).log() + shift.squeeze(dim)
        return total.masked_fill(empty, NEGATIVE_INFINITY)


class MaxSemiring(Semiring):
    """(max, +): the total is the best score, its gradient the indicator of one best structure, ties broken."""

    @staticmethod
    def sum(scores: Tensor, dim: int) -> Tensor:
        # Not amax: that one spreads the gradient over ties, and the result would not be a structure.
        best = scores.max(dim).values
        return best.masked_fill(best == NEGATIVE_INFINITY, NEGATIVE_INFINITY)


class SamplingSemiring(Semiring):
    """(logaddexp, +) whose gradient is a sample: each sum hands its gradient to one term, drawn by its share."""

    @staticmethod
    def sum(scores: Tensor, dim: int) -> Tensor:
        return _SampledSum.apply(scores, dim)


class _SampledSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.dim = dim
        return LogSemiring.sum(scores, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        (scores,) = ctx.saved_tensors
        weights = (scores - _finite_shift(scores, ctx.dim)).exp()
        choice = one_hot_sample(weights, ctx.dim)
        return choice * grad.unsqueeze(ctx.dim), None


def one_hot_sample(weights: Tensor, dim: int) -> Tensor:
    """Draw one index along ``dim`` with probability proportional to ``weights`` (non-negative, any scale).

    The result has the shape of ``weights`` and is one-hot along ``dim``, or zero where all weights are.
    """
    # The smallest of independent exponential variables of rates w is the one of rate w_k with probability w_k / Σ w.
    race = weights / torch.empty_like(weights).exponential_()
    index = race.argmax(dim, keepdim=True)
    return torch.zeros_like(weights).scatter_(dim, index, 1) * (weights > 0)


def _finite_shift(scores: Tensor, dim: int) -> Tensor:
    best = scores.detach().amax(dim, keepdim=True)
    return best.masked_fill(best == NEGATIVE_INFINITY, 0)
