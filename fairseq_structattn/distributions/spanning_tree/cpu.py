"""Spanning trees on the CPU: compiled elimination with a backward pass in closed form.

The gradient of the marginals μ for an upstream gradient g is Cov(arcs) · g, and a covariance is symmetric: the backward
pass is the derivative, in direction g, of the sweeps that compute the marginals.

All results are computed in float64, whatever the dtype of the scores: in linear space, or in log space for sentences
of which underflow would lose too much. Each dependent's best score is subtracted first, since every tree has one arc to
it. Kernels read scores and write marginals and gradients in the dtype of the scores.
"""

from typing import Tuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.numba_compile import over_batch
from ..operations import Operation
from ..semirings import NEGATIVE_INFINITY
from . import cpu_elimination, cpu_log_elimination, reference
from .cpu_products import BLOCK
from .root_order import reorder, root_child_last


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` in float64 and marginals ``[batch, n+1, n]``, differentiable any number of times.

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
    """log Z ``[batch]`` in float64, for a third of the time; marginals are computed in the backward pass.

    Arguments as for :func:`expectations`.
    """
    if scores.shape[-1] == 0:
        return reference.log_partition(scores, lengths, single_root)
    order = root_child_last(scores, lengths) if single_root else None
    return _without_empty(_elimination(reorder(scores, order), lengths, single_root, False)[0], lengths, single_root)


def _without_empty(value: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    return value.masked_fill(lengths == 0, NEGATIVE_INFINITY) if single_root else value


# One implementation each, compiled if numba is installed.
argmax = reference.argmax
sample = reference.sample


class _Elimination(Operation):
    """scores ``[batch, n+1, n]`` → log Z ``[batch]`` in float64, marginals ``[batch, n+1, n]`` (or ``None``)."""

    name = "spanning_trees"
    arguments = "Tensor scores, Tensor lengths, bool single_root, bool with_marginals"
    potentials, results, outputs, kept = 1, 2, 8, (1, 2, 3, 4, 5, 6, 7)

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool):
        # The kernels are compiled for contiguous arrays only.
        given, lengths, batch = scores.contiguous(), lengths.contiguous(), len(scores)
        weights = torch.empty_like(given, dtype=torch.double)
        tape, pivots, value = _tape(weights), weights.new_empty(batch, scores.shape[-1]), weights.new_empty(batch)
        best, fits = torch.zeros_like(pivots), torch.empty(batch, dtype=torch.bool, device=weights.device)
        problem = (lengths.numpy(), single_root) + _arrays(weights, tape, pivots)
        over_batch(cpu_elimination.total, batch, *_arrays(given, best), *problem, value.numpy(), fits.numpy())
        others = np.flatnonzero(~fits.numpy())
        possible = fits.clone()
        if len(others) > 0:
            # From here on, the weights of the other sentences are logarithms.
            weights[others] = given[others] - best[others].unsqueeze(-2)
            over_batch(cpu_log_elimination.total, len(others), others, *problem, value.numpy())
            possible = value != NEGATIVE_INFINITY
            value[others] += best[others].sum(-1)
        state = weights, tape, pivots, fits, possible
        if not with_marginals:
            return (value, None, weights.new_empty(0), *state)
        return (value, *_marginals(scores.dtype, lengths, single_root, *state), *state)

    def gradient(self, inputs, outputs, upstream):
        scores, lengths, single_root, with_marginals = inputs
        lengths = lengths.contiguous()
        _, marginals, adjoint, *state = outputs
        weights, tape, pivots, fits, possible = state
        grad_log_partition, grad_marginals = upstream
        if not with_marginals:
            marginals = _marginals(scores.dtype, lengths, single_root, *state)[0]
        result = torch.zeros_like(marginals, memory_format=torch.contiguous_format)
        if grad_marginals is not None:
            problem = (lengths.numpy(), single_root) + _arrays(weights, tape, pivots, adjoint)
            direction = _arrays(grad_marginals.to(result.dtype).contiguous(), result)
            for implementation, items in _implementations(fits, possible):
                over_batch(implementation.gradient, len(items), items, *problem, *direction)
        if grad_log_partition is not None:
            result += (grad_log_partition[:, None, None] * marginals).to(result.dtype)
        return (result,)

    def shapes(self, scores, lengths, single_root, with_marginals):
        batch, (_, nodes, n) = lengths.shape, scores.shape
        weights, pivots = (scores.new_empty(batch + shape, dtype=torch.double) for shape in ((nodes, n), (n,)))
        tape = _tape(weights)
        marginals, adjoint = (torch.empty_like(t) if with_marginals else t.new_empty(0) for t in (scores, tape))
        fits, possible = (scores.new_empty(batch, dtype=torch.bool) for _ in range(2))
        return pivots.new_empty(batch), marginals, adjoint, weights, tape, pivots, fits, possible

    def all_results(self, scores, lengths, single_root, with_marginals):
        return scores, lengths, single_root, True

    def log_partition(self, scores, lengths, single_root, with_marginals):
        return reference.log_partition(scores, lengths, single_root)


_elimination = _Elimination()


def _tape(weights: Tensor) -> Tensor:
    """Room for the weights of each sentence, whose rows are padded to a multiple of a block of words."""
    return weights.new_empty(*weights.shape[:-1], -(-weights.shape[-1] // BLOCK) * BLOCK)


def _marginals(
    dtype: torch.dtype,
    lengths: Tensor,
    single_root: bool,
    weights: Tensor,
    tape: Tensor,
    pivots: Tensor,
    fits: Tensor,
    possible: Tensor,
) -> Tuple[Tensor, Tensor]:
    """Marginals ``[batch, n+1, n]``, and what the kernels of the gradient need in addition."""
    marginals, adjoint = torch.zeros_like(weights, dtype=dtype), torch.empty_like(tape)
    problem = (lengths.numpy(), single_root) + _arrays(weights, tape, pivots, adjoint, marginals)
    for implementation, items in _implementations(fits, possible):
        over_batch(implementation.expectations, len(items), items, *problem)
    return marginals, adjoint


def _implementations(fits: Tensor, possible: Tensor) -> Tuple[tuple, ...]:
    """The modules of kernels, each with the sentences that it computes."""
    linear, each = fits.numpy(), possible.numpy()
    return (cpu_elimination, np.flatnonzero(linear)), (cpu_log_elimination, np.flatnonzero(each & ~linear))


def _arrays(*tensors: Tensor) -> Tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in tensors)
