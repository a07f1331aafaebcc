"""Spanning trees on the GPU: elimination in Triton kernels, with a backward pass in closed form.

As on the CPU, the backward pass is the derivative, in the direction of the upstream gradient, of the sweeps that
compute the marginals. The kernels never wait for the device and are bitwise deterministic.
"""

from typing import Tuple

import torch
from torch import Tensor

from ..kernels.triton_launch import on_device_of
from ..operations import Operation
from . import reference, triton_elimination

# Sizes of tiles in words, and the warps that share one. A tile has to fit in registers; one of 128 words does not.
WARPS = {32: 4, 64: 8}


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``, differentiable any number of times.

    The reference computes sentences of more than 64 words, whose weights do not fit in registers.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc, which includes padding and arcs from a word to itself;
            float32 or float64.
        lengths: integers ``[batch]``.
        single_root: whether exactly one word is attached to the root.
    """
    if not 0 < scores.shape[-1] <= max(WARPS):
        return reference.expectations(scores, lengths, single_root)
    return _elimination(scores, lengths, single_root)


# One algorithm each, on the CPU wherever the scores are.
argmax = reference.argmax
sample = reference.sample


class _Elimination(Operation):
    """scores ``[batch, n+1, n]`` → log Z ``[batch]``, marginals ``[batch, n+1, n]``."""

    name = "spanning_trees_on_gpu"
    arguments = "Tensor scores, Tensor lengths, bool single_root"
    potentials, results, outputs, kept = 1, 2, 7, range(7)
    wide = False

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool):
        batch, n = len(scores), scores.shape[-1]
        scores, lengths = scores.contiguous(), lengths.contiguous()
        turns = torch.empty(batch, n, dtype=torch.int32, device=scores.device)
        mantissas, exponents, adjoint, marginals = (torch.empty_like(scores) for _ in range(4))
        problem = scores, lengths, mantissas, exponents, scores.new_empty(batch, 2, n), turns
        log_partition = scores.new_empty(batch)
        _run(triton_elimination.eliminate, single_root, *problem, log_partition)
        _run(triton_elimination.distribute, single_root, *problem, log_partition, adjoint, marginals)
        return (log_partition, marginals, *problem[2:], adjoint)

    def gradient(self, inputs, outputs, upstream):
        (scores, lengths, single_root), (log_partition, marginals, *tape, adjoint) = inputs, outputs
        problem = (scores.contiguous(), lengths.contiguous(), *tape)
        grad_log_partition, grad_marginals = upstream
        if grad_log_partition is None:
            grad_log_partition = torch.zeros_like(log_partition)
        if grad_marginals is None:
            possible = log_partition != float("-inf")
            return (torch.where(possible, grad_log_partition, 0)[:, None, None] * marginals,)
        grad_log_partition, grad_marginals = grad_log_partition.contiguous(), grad_marginals.contiguous()
        tangents, grad_scores = torch.empty_like(marginals), torch.empty_like(marginals)
        _run(triton_elimination.eliminate_tangents, single_root, *problem, grad_marginals, tangents)
        state = log_partition, adjoint, grad_log_partition, grad_marginals, tangents
        _run(triton_elimination.distribute_tangents, single_root, *problem, *state, grad_scores)
        return (grad_scores,)

    def shapes(self, scores, lengths, single_root):
        batch, n = len(scores), scores.shape[-1]
        square = (scores.new_empty(scores.shape) for _ in range(4))
        marginals, mantissas, exponents, adjoint = square
        pivots, turns = scores.new_empty(batch, 2, n), scores.new_empty(batch, n, dtype=torch.int32)
        return scores.new_empty(batch), marginals, mantissas, exponents, pivots, turns, adjoint

    def log_partition(self, scores, lengths, single_root):
        return reference.log_partition(scores, lengths, single_root)


_elimination = _Elimination()


def _run(kernel, single_root: bool, scores: Tensor, *others: Tensor) -> None:
    batch, n = len(scores), scores.shape[-1]
    if batch == 0:
        return
    tile = min(size for size in WARPS if size >= n)
    # float64 takes twice the registers.
    warps = WARPS[tile] * scores.element_size() // 4
    with on_device_of(scores):
        kernel[(batch,)](scores, *others, n, SINGLE_ROOT=single_root, N=tile, num_warps=warps)


def _configurations():
    floats = ["scores", "mantissas", "exponents", "pivots", "adjoint", "log_partition", "marginals", "tangents"]
    floats += ["grad_log_partition", "grad_marginals", "grad_scores"]
    types = dict.fromkeys(floats, "*fp32")
    types.update(lengths="*i64", turns="*i32", n="i32")
    tile = triton_elimination
    for kernel in (tile.eliminate, tile.distribute, tile.eliminate_tangents, tile.distribute_tangents):
        signature = {name: types[name] for name in kernel.arg_names if name in types}
        for size, warps in WARPS.items():
            for single_root in (False, True):
                yield kernel, signature, {"SINGLE_ROOT": single_root, "N": size}, warps


# All kernels that may run in float32: kernel, types of its arguments, compile-time constants and warps.
CONFIGURATIONS = tuple(_configurations())
