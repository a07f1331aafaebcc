"""Spanning trees on the GPU: elimination in Triton kernels, with a backward pass in closed form.

As on the CPU, the backward pass is the derivative, in the direction of the upstream gradient, of the sweeps that
compute the marginals. The kernels never wait for the device and are bitwise deterministic. The weights of a sentence
are in registers (:mod:`.triton_elimination`), or in memory where they do not fit (:mod:`.triton_blocked`). Samples
reverse the elimination in memory (:mod:`.triton_sampling`).

The best tree is found on the CPU: the algorithm of Chu, Liu and Edmonds contracts one cycle after the other, and only
then is known how many there are. The lanes of a GPU would mostly wait, and no training needs the result.
"""

import inspect
import math
from typing import Dict, Optional, Tuple

import torch
import triton.language as tl
from torch import Tensor

from ..arcs import NO_HEAD
from ..kernels.triton_launch import next_power_of_two, on_device_of
from ..operations import Operation, without_gradient
from . import reference, triton_blocked, triton_elimination, triton_sampling
from .reverse_elimination import in_original_order
from .root_order import reorder, root_child_last

# Sizes of tiles in words, and the warps that share one. A tile has to fit in registers; one of 128 words does not.
# Releases of Triton that cannot be told to leave a loop as it is make no such kernels that fit.
WARPS = {32: 4, 64: 8} if "disable_licm" in inspect.signature(tl.range.__init__).parameters else {}
# Blocks of matrices in memory, and the warps that share a sentence, by its largest number of words. With 128 registers
# a thread, 16 warps fit on a multiprocessor.
BLOCKS = ((255, {"ROWS": 16, "COLUMNS": 64}, 8), (math.inf, {"ROWS": 16, "COLUMNS": 128}, 16))
REGISTERS = 128


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``, differentiable any number of times.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc, which includes padding and arcs from a word to itself;
            float32 or float64.
        lengths: integers ``[batch]``.
        single_root: whether exactly one word is attached to the root.
    """
    n = scores.shape[-1]
    if n == 0:
        return reference.expectations(scores, lengths, single_root)
    if n <= max(WARPS, default=0):
        return _elimination(scores, lengths, single_root)
    order = root_child_last(scores, lengths) if single_root else None
    log_partition, marginals = _blocked_elimination(reorder(scores, order), lengths, single_root)
    return log_partition, reorder(marginals, order)


# The kernels have no shorter way to log Z.
def log_partition(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """log Z ``[batch]``. Arguments as for :func:`expectations`."""
    return expectations(scores, lengths, single_root)[0]


argmax = reference.argmax


@without_gradient(
    "spanning_sample_on_gpu",
    "Tensor scores, Tensor lengths, bool single_root, int count",
    lambda scores, lengths, single_root, count: (count,) + scores.shape[::2],
)
def sample(
    scores: Tensor, lengths: Tensor, single_root: bool, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Heads ``[count, batch, n]`` of exact samples; ``NO_HEAD`` in padding and if no tree is possible."""
    batch, n, device = len(scores), scores.shape[-1], scores.device
    heads = torch.full((count, batch, n), NO_HEAD, device=device)
    source = device if generator is None else generator.device
    seeds = torch.randint(torch.iinfo(torch.int64).max, (count, batch), device=source, generator=generator).to(device)
    if heads.numel() == 0:
        return heads
    order = root_child_last(scores, lengths) if single_root else None
    scores, lengths = reorder(scores, order).contiguous(), lengths.contiguous()
    log_partition, *tape = _blocked_elimination.new(scores)
    problem = scores, lengths, *tape, log_partition
    _run_in_blocks(triton_blocked.eliminate, single_root, *problem)
    words, options = _words(n)
    links = torch.empty(count, batch, words, dtype=torch.int32, device=device)
    with on_device_of(scores):
        triton_sampling.restore[(count * batch,)](
            *problem, seeds, links, heads, batch, n, SINGLE_ROOT=single_root, WORDS=words, **options
        )
    return in_original_order(heads, order)


def _words(n: int) -> Tuple[int, Dict[str, int]]:
    """Lanes of a program that draws a tree, one for each word and the root, and options of the launch."""
    words = next_power_of_two(n + 1)
    return words, {"num_warps": min(max(words // 64, 1), 8)}


class _Elimination(Operation):
    """scores ``[batch, n+1, n]`` → log Z ``[batch]``, marginals ``[batch, n+1, n]``."""

    name = "spanning_trees_on_gpu"
    arguments = "Tensor scores, Tensor lengths, bool single_root"
    potentials, results, outputs, kept = 1, 2, 8, range(8)
    wide = False

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool):
        batch, n = len(scores), scores.shape[-1]
        scores, lengths = scores.contiguous(), lengths.contiguous()
        turns = torch.empty(batch, n, dtype=torch.int32, device=scores.device)
        mantissas, exponents, adjoint, marginals = (torch.empty_like(scores) for _ in range(4))
        fits = torch.empty(batch, dtype=torch.int32, device=scores.device)
        problem = scores, lengths, mantissas, exponents, scores.new_empty(batch, 2, n), turns, fits
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
        fits = scores.new_empty(batch, dtype=torch.int32)
        return scores.new_empty(batch), marginals, mantissas, exponents, pivots, turns, fits, adjoint

    def log_partition(self, scores, lengths, single_root):
        return reference.log_partition(scores, lengths, single_root)


class _BlockedElimination(Operation):
    """scores ``[batch, n+1, n]`` → log Z ``[batch]``, marginals ``[batch, n+1, n]``; a single root is over the last
    word of each sentence that has such a tree."""

    name = "long_spanning_trees_on_gpu"
    arguments = "Tensor scores, Tensor lengths, bool single_root"
    potentials, results, outputs, kept = 1, 2, 6, range(6)
    wide = False

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool):
        scores, lengths = scores.contiguous(), lengths.contiguous()
        log_partition, mantissas, exponents, pivots = self.new(scores)
        problem = scores, lengths, mantissas, exponents, pivots, log_partition
        adjoint, marginals = torch.zeros_like(scores), torch.zeros_like(scores)
        _run_in_blocks(triton_blocked.eliminate, single_root, *problem)
        _run_in_blocks(triton_blocked.distribute, single_root, *problem, adjoint, _sums(scores), marginals)
        return log_partition, marginals, mantissas, exponents, pivots, adjoint

    def gradient(self, inputs, outputs, upstream):
        (scores, lengths, single_root), (log_partition, marginals, *tape, adjoint) = inputs, outputs
        grad_log_partition, grad_marginals = upstream
        if grad_log_partition is None:
            grad_log_partition = torch.zeros_like(log_partition)
        if grad_marginals is None:
            possible = log_partition != float("-inf")
            return (torch.where(possible, grad_log_partition, 0)[:, None, None] * marginals,)
        problem = (scores.contiguous(), lengths.contiguous(), *tape)
        grad_log_partition, grad_marginals = grad_log_partition.contiguous(), grad_marginals.contiguous()
        tangents, pivot_tangents = torch.empty_like(marginals), torch.empty_like(marginals[:, 0])
        changes, grad_scores = torch.zeros_like(marginals), torch.zeros_like(marginals)
        derivatives = tangents, pivot_tangents
        _run_in_blocks(triton_blocked.eliminate_tangents, single_root, *problem, grad_marginals, *derivatives)
        state = log_partition, adjoint, grad_log_partition, grad_marginals, *derivatives, changes, _sums(marginals)
        _run_in_blocks(triton_blocked.distribute_tangents, single_root, *problem, *state, grad_scores)
        return (grad_scores,)

    def shapes(self, scores, lengths, single_root):
        log_partition, mantissas, exponents, pivots = self.new(scores)
        marginals, adjoint = scores.new_empty(scores.shape), scores.new_empty(scores.shape)
        return log_partition, marginals, mantissas, exponents, pivots, adjoint

    def log_partition(self, scores, lengths, single_root):
        return reference.log_partition(scores, lengths, single_root)

    def new(self, scores: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """log Z, mantissas, exponents and pivots, uninitialised."""
        batch, n = len(scores), scores.shape[-1]
        mantissas, exponents = scores.new_empty(scores.shape), scores.new_empty(scores.shape)
        return scores.new_empty(batch), mantissas, exponents, scores.new_empty(batch, 2, n)


_elimination, _blocked_elimination = _Elimination(), _BlockedElimination()


def _run(kernel, single_root: bool, scores: Tensor, *others: Tensor) -> None:
    batch, n = len(scores), scores.shape[-1]
    if batch == 0:
        return
    tile = min(size for size in WARPS if size >= n)
    with on_device_of(scores):
        for plain in (True, False):
            options = _tile_options(kernel, tile, plain, scores.dtype)
            kernel[(batch,)](scores, *others, n, SINGLE_ROOT=single_root, N=tile, PLAIN=plain, **options)


def _tile_options(kernel, tile: int, plain: bool, dtype: torch.dtype = torch.float32) -> Dict[str, int]:
    """Launch options. Without exponents and derivatives, two programs of 8 warps fit on a multiprocessor."""
    if dtype == torch.float64:  # takes twice the registers
        return {"num_warps": 2 * WARPS[tile]}
    fits_twice = plain and kernel in (triton_elimination.eliminate, triton_elimination.distribute)
    return {"num_warps": WARPS[tile], **({"maxnreg": REGISTERS} if fits_twice else {})}


def _blocks(n: int):
    """Compile-time constants and warps for sentences of up to n words."""
    return next((constants, warps) for most, constants, warps in BLOCKS if n <= most)


def _sums(scores: Tensor) -> Tensor:
    """Room for the sums over the dependents of each column of blocks."""
    batch, n = len(scores), scores.shape[-1]
    return scores.new_empty(batch, -(-n // _blocks(n)[0]["COLUMNS"]), n + 1)


def _run_in_blocks(kernel, single_root: bool, scores: Tensor, *others: Tensor) -> None:
    batch, n = len(scores), scores.shape[-1]
    if batch == 0:
        return
    constants, warps = _blocks(n)
    constants = dict(constants, HEADS=next_power_of_two(n + 1), SINGLE_ROOT=single_root)
    options = {"maxnreg": REGISTERS} if scores.dtype == torch.float32 else {}
    with on_device_of(scores):
        kernel[(batch,)](scores, *others, n, num_warps=warps, **options, **constants)


def _configurations():
    types = {"lengths": "*i64", "turns": "*i32", "fits": "*i32", "n": "i32"}
    for module, sizes in ((triton_elimination, _tiles), (triton_blocked, _blocks_in_use)):
        for name in ("eliminate", "distribute", "eliminate_tangents", "distribute_tangents"):
            kernel = getattr(module, name)
            signature = {name: types.get(name, "*fp32") for name in kernel.arg_names if not name.isupper()}
            for constants, options in sizes(kernel):
                yield kernel, signature, constants, options


def _tiles(kernel):
    for size in WARPS:
        for single_root, plain in ((False, False), (True, True), (True, False)):
            constants = {"SINGLE_ROOT": single_root, "N": size, "PLAIN": plain}
            yield constants, _tile_options(kernel, size, plain)


def _blocks_in_use(kernel):
    """Those for 100 and for 1,000 words."""
    for heads, (_, constants, warps) in zip((128, 1024), BLOCKS):
        yield dict(constants, HEADS=heads, SINGLE_ROOT=True), {"num_warps": warps, "maxnreg": REGISTERS}


def _sampling():
    """Those for 63 and for 1,023 words, in float64, as on the CPU."""
    kernel = triton_sampling.restore
    types = {"lengths": "*i64", "seeds": "*i64", "links": "*i32", "heads": "*i64", "batch": "i32", "n": "i32"}
    signature = {name: types.get(name, "*fp64") for name in kernel.arg_names if not name.isupper()}
    for n in (63, 1023):
        words, options = _words(n)
        yield kernel, signature, {"SINGLE_ROOT": True, "WORDS": words}, options


# The kernels that run: kernel, types of its arguments, compile-time constants and launch options.
CONFIGURATIONS = (*_configurations(), *_sampling())
