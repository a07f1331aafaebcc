"""Projective dependency trees on the GPU, in Triton. O(n²) memory, O(n³) time.

The algorithm is that of :mod:`.cpu`, with two differences. First, the range of float32 is small, so an inside value
may need its own exponent (``unit``), which is accurate for scores of any size. Every kernel is launched twice: first
for sentences whose values fit float32 without exponents, as those of moderate scores do, then for the others; ``fits``
``[batch]`` tells them apart (:mod:`.triton_inside_outside`). Second, the backward pass reads the charts of the forward
pass instead of filling them in again, and computes only derivatives.

**Layout.** A program of several warps computes a sentence. Charts then stay in the cache of one multiprocessor (110 kB
at 64 words), and one barrier among the warps for each width replaces a kernel launch. Neighbouring lanes compute
neighbouring spans of one width, which are adjacent in the charts; the warps divide the split points among them. Each
span adds up its own sum, in a fixed order, so results are deterministic.
"""

import math
from typing import Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arcs import NO_HEAD
from ..kernels.triton_launch import on_device_of
from ..kernels.triton_scaled import LOG_2, scaled_log
from ..operations import Operation, uniform, without_gradient
from ..semirings import NEGATIVE_INFINITY
from . import reference
from .triton_inside_outside import (
    CHARTS,
    CHARTS_WITH_UNITS,
    FIRST_RATE,
    LEFT,
    RIGHT,
    best_heads,
    chart_size,
    excess_rate,
    inside,
    inside_tangents,
    outside,
    outside_tangents,
    rescale,
    row,
    set_single_nodes,
)
from .triton_trees import best_spans, read_trees

# Spans and split points computed at once, and options of the launch, by the largest number of words in a sentence. Two
# programs of 8 warps fit on a multiprocessor if a thread has 128 registers; some compilers take more unless told.
_TILES = (
    (32, {"SPANS": 32, "SPLITS": 8}, {"num_warps": 4}),
    (math.inf, {"SPANS": 64, "SPLITS": 8}, {"num_warps": 8, "maxnreg": 128}),
)
# Split points among which a warp chooses at once.
_READING = {"TILE": 64, "num_warps": 1}


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``, differentiable any number of times.

    Args:
        scores: ``[batch, n+1, n]``, float32 or float64, −inf where there is no arc.
        lengths: integers ``[batch]``.
        single_root: count only the trees with one word under the root.
    """
    return _expectations(scores, lengths, single_root)


@without_gradient(
    "projective_argmax_on_gpu", "Tensor scores, Tensor lengths, bool single_root", lambda scores, *_: scores.shape[::2]
)
def argmax(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Heads ``[batch, n]`` of a best tree, :data:`NO_HEAD` in padding and where no tree is possible."""
    charts = _charts(scores, CHARTS_WITH_UNITS)
    _launch(best_spans, scores.contiguous(), lengths.contiguous(), charts, int(single_root))
    return _read(charts, None, None, scores, lengths, single_root, 1)[0]


@without_gradient(
    "projective_sample_on_gpu",
    "Tensor scores, Tensor lengths, bool single_root, int count",
    lambda scores, lengths, single_root, count: (count,) + scores.shape[::2],
)
def sample(
    scores: Tensor, lengths: Tensor, single_root: bool, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Heads ``[count, batch, n]`` of samples, :data:`NO_HEAD` in padding and where no tree is possible."""
    *_, values, units, fits = _forward_pass(scores, lengths, single_root, with_marginals=False)
    # Two choices for each arc: the split point under it, and the extent of the span beyond it.
    uniforms = uniform((count, len(scores), 2 * scores.shape[-1]), scores.device, generator, scores.dtype)
    return _read(values, units, fits, scores, lengths, single_root, count, uniforms)


def _read(
    values: Tensor,
    units: Optional[Tensor],
    fits: Optional[Tensor],
    scores: Tensor,
    lengths: Tensor,
    single_root: bool,
    count: int,
    uniforms: Optional[Tensor] = None,
) -> Tensor:
    """Heads ``[count, batch, n]`` of trees from charts: the best, without ``uniforms``, or samples."""
    batch, _, n = scores.shape
    heads = torch.full((count, batch, n), NO_HEAD, device=scores.device)
    if heads.numel() == 0:
        return heads
    stacks = torch.empty(count, batch, n + 1, dtype=torch.int32, device=scores.device)
    # What a best tree does not need is not read.
    given = (values if tensor is None else tensor for tensor in (units, fits))
    numbers = values if uniforms is None else uniforms
    with on_device_of(scores):
        read_trees[(count * batch,)](
            values, *given, lengths.contiguous(), numbers, stacks, heads, batch, int(single_root), n,
            BEST=uniforms is None, **_READING,
        )  # fmt: skip
    return heads


class _Expectations(Operation):
    """Scores ``[batch, n+1, n]`` → log Z ``[batch]`` and marginals ``[batch, n+1, n]``."""

    name = "projective_trees_on_gpu"
    arguments = "Tensor scores, Tensor lengths, bool single_root"
    potentials, results, outputs, kept = 1, 2, 5, (1, 2, 3, 4)
    wide = False

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool):
        return _forward_pass(scores, lengths, single_root)

    def gradient(self, inputs, outputs, upstream):
        lengths, (_, marginals, *charts) = inputs[1].contiguous(), outputs
        grad_log_partition, grad_marginals = upstream
        gradient = torch.zeros_like(marginals)
        if grad_marginals is not None:
            tangents = _charts(marginals, CHARTS)
            direction = _centred(grad_marginals, marginals)
            for plain in (True, False):
                _launch(_backward, direction, lengths, marginals, *charts, tangents, gradient, PLAIN=plain)
        if grad_log_partition is not None:
            gradient.addcmul_(marginals, grad_log_partition[:, None, None])
        return (gradient,)

    def shapes(self, scores, lengths, single_root):
        charts = _charts(scores, CHARTS), _charts(scores, CHARTS_WITH_UNITS)
        fits = scores.new_empty(lengths.shape, dtype=torch.int32)
        return (scores.new_empty(lengths.shape), scores.new_empty(scores.shape), *charts, fits)

    def log_partition(self, scores, lengths, single_root):
        return reference.total(scores, lengths, single_root)


_expectations = _Expectations()


def _forward_pass(
    scores: Tensor, lengths: Tensor, single_root: bool, with_marginals: bool = True
) -> Tuple[Tensor, ...]:
    """log Z, marginals (or zeros), and charts: values, exponents, and which sentences have none."""
    scores, lengths = scores.contiguous(), lengths.contiguous()
    log_partition = scores.new_full(lengths.shape, NEGATIVE_INFINITY)
    marginals = torch.zeros_like(scores)
    values, units = _charts(scores, CHARTS), _charts(scores, CHARTS_WITH_UNITS)
    fits = torch.empty(lengths.shape, dtype=torch.int32, device=scores.device)
    charts, shifts = (values, units, fits), scores.new_empty(scores.shape[::2])
    flags = int(single_root), int(with_marginals)
    for plain in (True, False):
        _launch(_forward, scores, lengths, log_partition, marginals, *charts, shifts, *flags, PLAIN=plain)
    return (log_partition, marginals, *charts)


def _charts(scores: Tensor, count: tl.constexpr) -> Tensor:
    """Uninitialised charts for every sentence."""
    batch, nodes, _ = scores.shape
    spans = nodes * (nodes + 1) // 2
    return torch.empty(batch, count.value, spans, dtype=scores.dtype, device=scores.device)


def _centred(direction: Tensor, marginals: Tensor) -> Tensor:
    """A direction less its expectation for each word, and 0 for arcs of probability 0.

    A word has one head, so subtracting a constant for each word changes only the size of rounding errors.
    """
    direction = direction.masked_fill(marginals == 0, 0)
    return (direction - (direction * marginals).sum(1, keepdim=True)).contiguous()


def _launch(kernel: triton.JITFunction, scores: Tensor, *arguments, **flags) -> None:
    """Run a kernel with a program for each item of its first argument, ``[batch, n+1, n]``."""
    batch, _, n = scores.shape
    if batch == 0:
        return
    constants, options = next((constants, options) for most, constants, options in _TILES if n <= most)
    if scores.dtype == torch.float64:  # needs twice the registers
        options = {name: value for name, value in options.items() if name != "maxnreg"}
    with on_device_of(scores):
        kernel[(batch,)](scores, *arguments, n, **flags, **options, **constants)


# Kernels


@triton.jit(do_not_specialize=["single_root", "with_marginals", "most"])
def _forward(
    scores, lengths, log_partition, marginals, values, units, fits, shifts, single_root, with_marginals, most,
    SPANS: tl.constexpr, SPLITS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    if not PLAIN:
        if tl.load(fits + item) != 0:
            return
    # The host does not check lengths on a device, so they are clamped here.
    n = tl.minimum(tl.maximum(tl.load(lengths + item), 0), most).to(tl.int32)
    size = chart_size(most)
    scores += item * (most + 1) * most
    marginals += item * (most + 1) * most
    values += item * CHARTS * size
    units += item * CHARTS_WITH_UNITS * size
    shifts += item * most
    for first in range(0, n + 1, SPANS):
        set_single_nodes(values, units, size, first + tl.arange(0, SPANS), n, PLAIN)
    shift = best_heads(scores, shifts, n, most, SPANS, SPLITS) if PLAIN else 0.0
    rate, outlier = 0 * shift + FIRST_RATE, tl.zeros((SPANS,), tl.int32)
    for width in range(1, n + 1):
        tl.debug_barrier()
        for first in range(0, n + 1 - width, SPANS):
            starts = first + tl.arange(0, SPANS)
            outlier |= inside(
                scores, values, units, shifts, rate, size, width, starts, n, most, single_root, SPLITS, PLAIN
            )
        if PLAIN:
            if (width > 1) & (width < n) & ((width & (width - 1)) == 0):
                tl.debug_barrier()
                change = excess_rate(values, size, width, n, SPANS)
                tl.debug_barrier()
                outlier |= rescale(values, size, width, change, n, single_root, SPANS, SPLITS)
                rate += change
    tl.debug_barrier()
    if PLAIN:
        fit = tl.max(outlier, 0) == 0
        tl.store(fits + item, fit.to(tl.int32))
        if not fit:
            return
    top = RIGHT * size + row(n, n)
    total = tl.load(values + top)
    # The comparison is false for NaN, which is propagated.
    impossible = (total == 0) | ((single_root != 0) & (n == 0))
    if not impossible:
        if PLAIN:
            tl.store(log_partition + item, tl.log(total) + rate * n * LOG_2 + shift)
        else:
            tl.store(log_partition + item, scaled_log(total, tl.load(units + top)))
        for step in range(tl.where(with_marginals != 0, n, 0)):
            width = n - step
            for first in range(0, n + 1 - width, SPANS):
                starts = first + tl.arange(0, SPANS)
                outside(marginals, values, units, size, width, starts, n, most, SPLITS, PLAIN)
            tl.debug_barrier()


@triton.jit(do_not_specialize=["most"])
def _backward(
    directions, lengths, marginals, values, units, fits, tangents, gradient, most,
    SPANS: tl.constexpr, SPLITS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    if (tl.load(fits + item) != 0) != PLAIN:
        return
    # The host does not check lengths on a device, so they are clamped here.
    n = tl.minimum(tl.maximum(tl.load(lengths + item), 0), most).to(tl.int32)
    size = chart_size(most)
    directions += item * (most + 1) * most
    marginals += item * (most + 1) * most
    gradient += item * (most + 1) * most
    values += item * CHARTS * size
    tangents += item * CHARTS * size
    units += item * CHARTS_WITH_UNITS * size
    possible = tl.load(values + RIGHT * size + row(n, n)) != 0
    if possible:
        for first in range(0, n + 1, SPANS):
            nodes = first + tl.arange(0, SPANS)
            nothing = tl.zeros((SPANS,), values.dtype.element_ty)
            tl.store(tangents + RIGHT * size + nodes, nothing, mask=nodes <= n)
            tl.store(tangents + LEFT * size + nodes, nothing, mask=nodes <= n)
        for width in range(1, n + 1):
            tl.debug_barrier()
            for first in range(0, n + 1 - width, SPANS):
                starts = first + tl.arange(0, SPANS)
                inside_tangents(directions, values, units, tangents, size, width, starts, n, most, SPLITS, PLAIN)
        for step in range(n):
            tl.debug_barrier()
            width = n - step
            for first in range(0, n + 1 - width, SPANS):
                starts = first + tl.arange(0, SPANS)
                outside_tangents(
                    directions,
                    marginals,
                    gradient,
                    values,
                    units,
                    tangents,
                    size,
                    width,
                    starts,
                    n,
                    most,
                    SPLITS,
                    PLAIN,
                )


# All kernels that the launches above compile: kernel, types of its arguments, compile-time constants and options.
_INTEGERS = ("single_root", "with_marginals", "most", "batch")
_TYPES = {"lengths": "*i64", "fits": "*i32", "stacks": "*i32", "heads": "*i64", **dict.fromkeys(_INTEGERS, "i32")}


def _configurations():
    passes = [(kernel, {"PLAIN": plain}) for kernel in (_forward, _backward) for plain in (True, False)]
    for kernel, flags in (*passes, (best_spans, {})):
        for _, constants, options in _TILES:
            yield kernel, {**constants, **flags}, options
    for best in (True, False):
        yield read_trees, {"TILE": _READING["TILE"], "BEST": best}, {"num_warps": _READING["num_warps"]}


def _types(kernel: triton.JITFunction):
    # The best tree and samples are found in float64, as on the CPU.
    number = "*fp32" if kernel in (_forward, _backward) else "*fp64"
    return {name: _TYPES.get(name, number) for name in kernel.arg_names if not name.isupper()}


CONFIGURATIONS = [(kernel, _types(kernel), constants, options) for kernel, constants, options in _configurations()]
