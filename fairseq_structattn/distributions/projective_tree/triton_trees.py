"""The best projective tree and samples on the GPU: spans in Triton kernels, and trees that are read from them.

The best tree is that of the recursion of Eisner (COLING 1996) in the (max, +) semiring, with the charts of
:mod:`.triton_inside_outside`. A tree is read from charts of either kind from the top down. The arcs of a span are
found by choosing one term of the sum, or of the maximum, that made its value; a lane computes the term of a split
point. There are two choices for each word, the extent of its arc and the split point under it, so a tree takes O(n²)
time.
"""

import triton
import triton.language as tl

from ..kernels.triton_scaled import power_of_two
from .triton_inside_outside import (
    BOTH,
    CHARTS,
    CHARTS_WITH_UNITS,
    LEFT,
    LEFT_ARC,
    RIGHT,
    RIGHT_ARC,
    arcs_between,
    chart_size,
    row,
)


@triton.jit(do_not_specialize=["single_root", "most"])
def best_spans(scores, lengths, best, single_root, most, SPANS: tl.constexpr, SPLITS: tl.constexpr):
    """Fill ``best`` ``[batch, 5, spans]``, charts with the score of the best span of each kind."""
    item = tl.program_id(0).to(tl.int64)
    # The host does not check lengths on a device, so they are clamped here.
    n = tl.minimum(tl.maximum(tl.load(lengths + item), 0), most).to(tl.int32)
    size = chart_size(most)
    scores += item * (most + 1) * most
    best += item * CHARTS_WITH_UNITS * size
    for first in range(0, n + 1, SPANS):
        nodes = first + tl.arange(0, SPANS)
        nothing = tl.zeros((SPANS,), best.dtype.element_ty)
        tl.store(best + RIGHT * size + nodes, nothing, mask=nodes <= n)
        tl.store(best + LEFT * size + nodes, nothing, mask=nodes <= n)
    for width in range(1, n + 1):
        tl.debug_barrier()
        for first in range(0, n + 1 - width, SPANS):
            starts = first + tl.arange(0, SPANS)
            _best_of_width(scores, best, size, width, starts, n, most, single_root, SPLITS)


@triton.jit
def _best_of_width(scores, best, size, width, starts, n, most, single_root, SPLITS: tl.constexpr):
    spans = starts <= n - width
    at = row(width, n) + starts
    to_right, to_left = arcs_between(width, starts, most)
    both = tl.full((SPLITS, starts.shape[0]), float("-inf"), best.dtype.element_ty)
    right, left = both, both
    for first in range(0, width, SPLITS):
        k = first + tl.arange(0, SPLITS)[:, None]
        halves = spans[None, :] & (k < width)
        parts = halves & (k > 0)
        begin = row(k, n) + starts[None, :]
        meeting = row(width - k, n) + starts[None, :] + k
        after = row(width - 1 - k, n) + starts[None, :] + k + 1
        both = tl.maximum(both, _score(best, RIGHT, size, begin, halves) + _score(best, LEFT, size, after, halves))
        right = tl.maximum(
            right, _score(best, RIGHT_ARC, size, begin, parts) + _score(best, RIGHT, size, meeting, parts)
        )
        left = tl.maximum(left, _score(best, LEFT, size, begin, parts) + _score(best, LEFT_ARC, size, meeting, parts))
    both = tl.max(both, 0)
    right_arc = both + tl.load(scores + to_right, mask=spans, other=float("-inf"))
    left_arc = both + tl.load(scores + to_left, mask=spans & (starts > 0), other=float("-inf"))
    right = tl.maximum(tl.max(right, 0), right_arc)
    # With a single root, a root that has a child takes no other.
    right = tl.where((single_root != 0) & (starts == 0) & (width < n), float("-inf"), right)
    tl.store(best + BOTH * size + at, both, mask=spans)
    tl.store(best + RIGHT * size + at, right, mask=spans)
    tl.store(best + LEFT * size + at, tl.maximum(tl.max(left, 0), left_arc), mask=spans)
    tl.store(best + RIGHT_ARC * size + at, right_arc, mask=spans)
    tl.store(best + LEFT_ARC * size + at, left_arc, mask=spans)


@triton.jit
def _score(best, CHART: tl.constexpr, size, at, mask):
    return tl.load(best + CHART * size + at, mask=mask, other=float("-inf"))


@triton.jit(do_not_specialize=["single_root", "most"])
def read_trees(
    values, units, fits, lengths, uniforms, stacks, heads, batch, single_root, most,
    BEST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Fill ``heads`` ``[count, batch, n]`` of possible items, by a program for each tree: the best, from charts of
    :func:`best_spans`, or a sample by ``uniforms`` ``[count, batch, 2n]``, from inside charts. ``stacks`` ``[count,
    batch, n+1]`` is room for the spans that are still to be read.
    """
    place = tl.program_id(0).to(tl.int64)
    item = place % batch
    # The host does not check lengths on a device, so they are clamped here.
    n = tl.minimum(tl.maximum(tl.load(lengths + item), 0), most).to(tl.int32)
    size = chart_size(most)
    values += item * (CHARTS_WITH_UNITS if BEST else CHARTS) * size
    units += item * CHARTS_WITH_UNITS * size
    scaled = False if BEST else tl.load(fits + item) == 0
    stacks, heads, uniforms = stacks + place * (most + 1), heads + place * most, uniforms + place * 2 * most
    # Comparisons are false for NaN.
    possible = tl.load(values + RIGHT * size + row(n, n)) > (float("-inf") if BEST else 0.0)
    possible = possible & ((single_root == 0) | (n > 0))
    waiting = _push(stacks, 0, RIGHT, n, 0, n)
    for choice in range(tl.where(possible, 2 * n, 0)):
        tl.debug_barrier()
        waiting -= 1
        code = tl.load(stacks + waiting)
        chart, width, start = code // ((n + 1) * (n + 1)), code // (n + 1) % (n + 1), code % (n + 1)
        if BEST:
            k = _best_split(values, size, chart, width, start, n, TILE)
        else:
            uniform = tl.load(uniforms + choice)
            k = _drawn_split(values, units, scaled, uniform, size, chart, width, start, n, TILE)
        middle = start + k
        if chart == BOTH:
            waiting = _push(stacks, waiting, RIGHT, k, start, n)
            waiting = _push(stacks, waiting, LEFT, width - 1 - k, middle + 1, n)
        else:
            rightward = chart == RIGHT
            tl.store(heads + middle - 1, tl.where(rightward, start, start + width).to(tl.int64))
            waiting = _push(stacks, waiting, tl.where(rightward, BOTH, LEFT), k, start, n)
            waiting = _push(stacks, waiting, tl.where(rightward, RIGHT, BOTH), width - k, middle, n)


@triton.jit
def _push(stack, waiting, chart, width, start, n):
    """The number of spans that wait, after one more. A single node has no arcs."""
    tl.store(stack + waiting, ((n + 1) * chart + width) * (n + 1) + start, mask=width > 0)
    return waiting + tl.where(width > 0, 1, 0)


# Terms of the value of a span: those of a complete span to the right have the numbers 1 to width, others 0 to width−1


@triton.jit
def _parts(size, chart, width, start, n, k):
    """The addresses in the charts of the two parts that meet at split points."""
    rest = tl.where(chart == BOTH, width - 1 - k, width - k)
    left_part = tl.where(chart == BOTH, RIGHT, tl.where(chart == RIGHT, RIGHT_ARC, LEFT))
    right_part = tl.where(chart == BOTH, LEFT, tl.where(chart == RIGHT, RIGHT, LEFT_ARC))
    return left_part * size + row(k, n) + start, right_part * size + row(rest, n) + (start + width - rest)


@triton.jit
def _best_split(values, size, chart, width, start, n, TILE: tl.constexpr):
    first_k = tl.where(chart == RIGHT, 1, 0)
    best, split = tl.max(tl.full((TILE,), float("-inf"), values.dtype.element_ty), 0), first_k
    for first in range(0, width, TILE):
        k = first_k + first + tl.arange(0, TILE)
        terms = k < first_k + width
        a, b = _parts(size, chart, width, start, n, k)
        total = _score(values, 0, size, a, terms) + _score(values, 0, size, b, terms)
        largest = tl.max(total, 0)
        split = tl.where(largest > best, first_k + first + tl.argmax(total, 0), split)
        best = tl.maximum(best, largest)
    return split


@triton.jit
def _drawn_split(values, units, scaled, uniform, size, chart, width, start, n, TILE: tl.constexpr):
    """The first split point at which the cumulative weight is above its share ``uniform``. Rounding may leave none:
    then it is the last whose weight is not 0."""
    first_k = tl.where(chart == RIGHT, 1, 0)
    unit = tl.max(tl.full((TILE,), float("-inf"), values.dtype.element_ty), 0)
    for first in range(0, width, TILE):
        a, b, terms = _terms(size, chart, width, start, n, first_k, first, TILE)
        unit = tl.maximum(unit, tl.max(_unit(units, scaled, a, terms) + _unit(units, scaled, b, terms), 0))
    total = tl.sum(tl.zeros((TILE,), values.dtype.element_ty), 0)
    for first in range(0, width, TILE):
        a, b, terms = _terms(size, chart, width, start, n, first_k, first, TILE)
        total += tl.sum(_weights(values, units, scaled, a, b, unit, terms), 0)
    before, split, last = 0 * total, -1 + 0 * width, first_k
    for first in range(0, width, TILE):
        a, b, terms = _terms(size, chart, width, start, n, first_k, first, TILE)
        weights = _weights(values, units, scaled, a, b, unit, terms)
        k = first_k + first + tl.arange(0, TILE)
        beyond = (before + tl.cumsum(weights, 0) > uniform * total) & (weights > 0)
        found = tl.min(tl.where(beyond, k, first_k + width), 0)
        split = tl.where((split < 0) & (found < first_k + width), found, split)
        last = tl.maximum(last, tl.max(tl.where(weights > 0, k, 0), 0))
        before += tl.sum(weights, 0)
    return tl.where(split < 0, last, split)


@triton.jit
def _terms(size, chart, width, start, n, first_k, first, TILE: tl.constexpr):
    k = first_k + first + tl.arange(0, TILE)
    a, b = _parts(size, chart, width, start, n, k)
    return a, b, k < first_k + width


@triton.jit
def _weights(values, units, scaled, a, b, unit, terms):
    product = tl.load(values + a, mask=terms, other=0.0) * tl.load(values + b, mask=terms, other=0.0)
    return product * power_of_two(_unit(units, scaled, a, terms) + _unit(units, scaled, b, terms) - unit)


@triton.jit
def _unit(units, scaled, at, terms):
    """Exponents, which are 0 where the values have none, and −∞ beyond the terms."""
    return tl.load(units + at, mask=terms & scaled, other=tl.where(terms, 0.0, float("-inf")))
