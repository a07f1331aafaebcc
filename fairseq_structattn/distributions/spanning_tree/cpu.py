"""Spanning trees on the CPU: compiled elimination with a backward pass in closed form.

The gradient of the marginals μ for an upstream gradient g is Cov(arcs) · g, and a covariance is symmetric: the backward
pass is the derivative, in direction g, of the sweeps that compute the marginals.

All results are computed in float64, whatever the dtype of the scores: in linear space, or in log space for sentences
of which underflow would lose too much. Each dependent's best score is subtracted first, since every tree has one arc to
it.
"""

from typing import Tuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.numba_compile import over_batch
from ..operations import Operation
from ..semirings import NEGATIVE_INFINITY
from . import cpu_elimination, cpu_log_elimination, reference
from .root_order import reorder, root_child_last


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``, differentiable any number of times.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc, which includes padding and arcs from a word to itself.
        lengths: integers ``[batch]``.
        single_root: whether exactly one word is attached to the root.
    """
    if scores.shape[-1] == 0:
        return reference.expectations(scores, lengths, single_root)
    order = root_child_last(scores, lengths) if single_root else None
    value, marginals = _elimination(reorder(scores, order), lengths, single_root, True)
    return _without_empty(value, lengths, single_root), reorder(marginals, order)


def log_partition(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """log Z ``[batch]``, for a third of the time; marginals are computed in the backward pass. Arguments as for
    :func:`expectations`."""
    if scores.shape[-1] == 0:
        return reference.log_partition(scores, lengths, single_root)
    order = root_child_last(scores, lengths) if single_root else None
    return _without_empty(_elimination(reorder(scores, order), lengths, single_root, False)[0], lengths, single_root)


def _without_empty(value: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    return value.masked_fill(lengths == 0, NEGATIVE_INFINITY) if single_root else value


# One algorithm each, on the CPU wherever the scores are.
argmax = reference.argmax
sample = reference.sample


class _Elimination(Operation):
    """scores ``[batch, n+1, n]`` → log Z ``[batch]``, marginals ``[batch, n+1, n]`` (or ``None``)."""

    name = "spanning_trees"
    arguments = "Tensor scores, Tensor lengths, bool single_root, bool with_marginals"
    potentials, results, outputs, kept = 1, 2, 8, (1, 2, 3, 4, 5, 6, 7)

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        # The kernels are compiled for contiguous arrays only.
        wide, lengths = scores.double().contiguous(), lengths.contiguous()
        best = wide.amax(-2)
        best = best.masked_fill(best == NEGATIVE_INFINITY, 0)
        log_weights = wide - best.unsqueeze(-2)
        weights = log_weights.exp()
        tape, pivots, value = torch.empty_like(weights), torch.empty_like(best), weights.new_empty(len(weights))
        fits = torch.empty(len(weights), dtype=torch.bool, device=weights.device)
        problem = (lengths.numpy(), single_root) + _arrays(weights, tape, pivots)
        over_batch(cpu_elimination.total, len(weights), *problem, value.numpy(), fits.numpy())
        # From here on, the weights of the other sentences are logarithms.
        weights[~fits] = log_weights[~fits]
        others = _items(~fits)
        over_batch(cpu_log_elimination.total, len(others), others, *problem, value.numpy())
        possible = value != NEGATIVE_INFINITY
        value = (value + best.sum(-1)).to(scores.dtype)
        state = weights, tape, pivots, fits, possible
        if not with_marginals:
            return (value, None, weights.new_empty(0), *state)
        marginals, adjoint = _marginals(lengths, single_root, *state)
        return (value, marginals.to(scores.dtype), adjoint, *state)

    def gradient(self, inputs, outputs, upstream):
        _, lengths, single_root, with_marginals = inputs
        lengths = lengths.contiguous()
        _, marginals, adjoint, *state = outputs
        weights, tape, pivots, fits, possible = state
        grad_log_partition, grad_marginals = upstream
        if not with_marginals:
            marginals = _marginals(lengths, single_root, *state)[0].to(inputs[0].dtype)
        result = torch.zeros_like(weights)
        if grad_marginals is not None:
            problem = (lengths.numpy(), single_root) + _arrays(weights, tape, pivots, adjoint)
            direction = _arrays(grad_marginals.double().contiguous(), result)
            for implementation, items in _implementations(fits, possible):
                over_batch(implementation.gradient, len(items), items, *problem, *direction)
        if grad_log_partition is not None:
            result += grad_log_partition[:, None, None] * marginals
        return (result.to(marginals.dtype),)

    def shapes(self, scores, lengths, single_root, with_marginals):
        batch, (_, nodes, n) = lengths.shape, scores.shape
        square, rows, flags = batch + (nodes, n), batch + (n,), torch.bool
        marginals = square if with_marginals else (0,)
        wide = (scores.new_empty(shape, dtype=torch.double) for shape in (marginals, square, square, rows))
        chosen = (scores.new_empty(batch, dtype=flags) for _ in range(2))
        return (scores.new_empty(batch), scores.new_empty(marginals), *wide, *chosen)

    def all_results(self, scores, lengths, single_root, with_marginals):
        return scores, lengths, single_root, True

    def log_partition(self, scores, lengths, single_root, with_marginals):
        return reference.log_partition(scores, lengths, single_root)


_elimination = _Elimination()


def _marginals(
    lengths: Tensor, single_root: bool, weights: Tensor, tape: Tensor, pivots: Tensor, fits: Tensor, possible: Tensor
) -> Tuple[Tensor, Tensor]:
    """Marginals ``[batch, n+1, n]`` in float64, and what the kernels of the gradient need in addition."""
    marginals, adjoint = torch.zeros_like(weights), torch.empty_like(weights)
    problem = (lengths.numpy(), single_root) + _arrays(weights, tape, pivots, adjoint, marginals)
    for implementation, items in _implementations(fits, possible):
        over_batch(implementation.expectations, len(items), items, *problem)
    return marginals.clamp_(0, 1), adjoint


def _implementations(fits: Tensor, possible: Tensor) -> Tuple[tuple, ...]:
    """The modules of kernels, each with the sentences that it computes."""
    return (cpu_elimination, _items(fits)), (cpu_log_elimination, _items(possible & ~fits))


def _arrays(*tensors: Tensor) -> Tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in tensors)


def _items(chosen: Tensor) -> np.ndarray:
    return chosen.nonzero().squeeze(-1).numpy()
