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
    if not single_root:
        return _elimination(scores, lengths, False)
    order = root_child_last(scores, lengths)
    log_partition, marginals = _elimination(reorder(scores, order), lengths, True)
    return log_partition.masked_fill(lengths == 0, NEGATIVE_INFINITY), reorder(marginals, order)


# One algorithm each, on the CPU wherever the scores are.
argmax = reference.argmax
sample = reference.sample


class _Elimination(Operation):
    """scores ``[batch, n+1, n]`` → log Z ``[batch]``, marginals ``[batch, n+1, n]``."""

    name = "spanning_trees"
    arguments = "Tensor scores, Tensor lengths, bool single_root"
    potentials, results, outputs, kept = 1, 2, 8, (1, 2, 3, 4, 5, 6, 7)

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool):
        # The kernels are compiled for contiguous arrays only.
        wide, lengths = scores.double().contiguous(), lengths.contiguous()
        best = wide.amax(-2)
        best = best.masked_fill(best == NEGATIVE_INFINITY, 0)
        log_weights = wide - best.unsqueeze(-2)
        weights = log_weights.exp()
        tape, adjoint, pivots = (torch.empty_like(part) for part in (weights, weights, best))
        log_partition, marginals = weights.new_empty(len(weights)), torch.zeros_like(weights)
        fits = torch.empty(len(weights), dtype=torch.bool, device=weights.device)
        state = _arrays(tape, adjoint, pivots)
        results = _arrays(log_partition, marginals)
        problem = lengths.numpy(), single_root, weights.numpy()
        over_batch(cpu_elimination.expectations, len(weights), *problem, *state, *results, fits.numpy())
        # From here on, the weights of the other sentences are logarithms.
        weights[~fits] = log_weights[~fits]
        others = _items(~fits)
        over_batch(cpu_log_elimination.expectations, len(others), others, *problem, *state, *results)
        marginals = marginals.clamp_(0, 1).to(scores.dtype)
        possible = log_partition != NEGATIVE_INFINITY
        log_partition = (log_partition + best.sum(-1)).to(scores.dtype)
        return log_partition, marginals, weights, tape, adjoint, pivots, fits, possible

    def gradient(self, inputs, outputs, upstream):
        lengths, single_root = inputs[1].contiguous(), inputs[2]
        _, marginals, weights, tape, adjoint, pivots, fits, possible = outputs
        grad_log_partition, grad_marginals = upstream
        result = torch.zeros_like(weights)
        if grad_marginals is not None:
            problem = (lengths.numpy(), single_root) + _arrays(weights, tape, adjoint, pivots)
            direction = _arrays(grad_marginals.double().contiguous(), result)
            for implementation, items in (
                (cpu_elimination, _items(fits)),
                (cpu_log_elimination, _items(possible & ~fits)),
            ):
                over_batch(implementation.gradient, len(items), items, *problem, *direction)
        if grad_log_partition is not None:
            result += grad_log_partition[:, None, None] * marginals
        return (result.to(marginals.dtype),)

    def shapes(self, scores, lengths, single_root):
        batch, (_, nodes, n) = lengths.shape, scores.shape
        square, rows, flags = batch + (nodes, n), batch + (n,), torch.bool
        wide = (scores.new_empty(shape, dtype=torch.double) for shape in (square, square, square, rows))
        chosen = (scores.new_empty(batch, dtype=flags) for _ in range(2))
        return (scores.new_empty(batch), scores.new_empty(square), *wide, *chosen)

    def log_partition(self, scores, lengths, single_root):
        return reference.log_partition(scores, lengths, single_root)


_elimination = _Elimination()


def _arrays(*tensors: Tensor) -> Tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in tensors)


def _items(chosen: Tensor) -> np.ndarray:
    return chosen.nonzero().squeeze(-1).numpy()
