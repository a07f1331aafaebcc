"""The recursions of projective trees for Triton kernels: one width at a time, for the spans that begin at ``starts``.

They are those of :mod:`.cpu_inside_outside`. A span is built from shorter spans, and its outside value from those of
longer spans. The only exception is the arc from end to end, of the same width, whose term is added in registers.

**Charts.** A chart has rows of n + 1, n, n − 1 … spans, one row for each width from 0 to n. The charts of a sentence
follow each other in the order of their numbers, ``size`` apart. ``values`` and ``tangents`` have all charts, ``units``
(exponents) only the inside charts: the exponent of an outside value makes its product with the inside value a
probability. Tangents of inside values are derivatives of their logarithms.

**Without exponents** (``PLAIN``). Where the inside values of a sentence fit float32, they need no exponents, which
saves half of the loads and most of the arithmetic. A span of width w has arcs to w words (BOTH: w − 1), so a factor for
each arc changes all values of a width alike. The best head of each word gets the weight 2^(−rate). The rate, in bits a
word, is chosen anew whenever the width has doubled, so that the largest complete span of this width is about 1, and the
values so far are rescaled. It is a multiple of 1/16, so the exponents of all factors are exact. A sentence fits if all
inside values are between :data:`LEAST` and :data:`MOST`. Terms that underflow are then at most e^−27 of their sum, and
outside values, which are probabilities divided by inside values, are at most 1/LEAST. No value may be 0, so sentences
with forbidden arcs have exponents.
"""

import math

import triton
import triton.language as tl

from ..kernels.triton_scaled import add_product, add_rows, normalised, power_of_two, scaled_exp

# OUTSIDE_BOTH + c is the outside chart of c.
BOTH, RIGHT, LEFT, RIGHT_ARC, LEFT_ARC = (tl.constexpr(chart) for chart in range(5))
OUTSIDE_BOTH, OUTSIDE_RIGHT, OUTSIDE_LEFT = (tl.constexpr(chart) for chart in range(5, 8))
CHARTS, CHARTS_WITH_UNITS = tl.constexpr(8), tl.constexpr(5)
# The range of inside values without exponents, and the rate for the narrowest spans.
LEAST, MOST = tl.constexpr(math.exp(-60)), tl.constexpr(math.exp(25))
FIRST_RATE = tl.constexpr(1.5)


# The four passes


@triton.jit
def inside(
    scores, values, units, shifts, rate, size, width, starts, n, most, single_root,
    SPLITS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Whether, if ``PLAIN``, a value is out of range, for each of ``starts``."""
    spans = starts <= n - width
    at = row(width, n) + starts
    to_right, to_left = arcs_between(width, starts, most)
    right_score = tl.load(scores + to_right, mask=spans, other=float("-inf"))
    left_score = tl.load(scores + to_left, mask=spans & (starts > 0), other=float("-inf"))
    both = tl.zeros((SPLITS, starts.shape[0]), values.dtype.element_ty)
    right, left = both, both
    both_unit = both + float("-inf")
    right_unit, left_unit = both_unit, both_unit
    for first in range(0, width, SPLITS):
        k = first + tl.arange(0, SPLITS)[:, None]
        halves = spans[None, :] & (k < width)
        parts = halves & (k > 0)
        begin = row(k, n) + starts[None, :]
        meeting = row(width - k, n) + starts[None, :] + k
        after = row(width - 1 - k, n) + starts[None, :] + k + 1
        a, a_unit = _load(values, units, RIGHT, size, begin, halves, PLAIN)
        b, b_unit = _load(values, units, LEFT, size, after, halves, PLAIN)
        both, both_unit = _add_product(both, both_unit, a, a_unit, b, b_unit, PLAIN)
        a, a_unit = _load(values, units, RIGHT_ARC, size, begin, parts, PLAIN)
        b, b_unit = _load(values, units, RIGHT, size, meeting, parts, PLAIN)
        right, right_unit = _add_product(right, right_unit, a, a_unit, b, b_unit, PLAIN)
        a, a_unit = _load(values, units, LEFT, size, begin, parts, PLAIN)
        b, b_unit = _load(values, units, LEFT_ARC, size, meeting, parts, PLAIN)
        left, left_unit = _add_product(left, left_unit, a, a_unit, b, b_unit, PLAIN)
    both, both_unit = _add_rows(both, both_unit, PLAIN)
    both, both_unit = _normalised(both, both_unit, PLAIN)
    weight, weight_unit = _weight(right_score, shifts + starts + width - 1, rate, spans, PLAIN)
    right_arc, right_arc_unit = both * weight, both_unit + weight_unit
    weight, weight_unit = _weight(left_score, shifts + starts - 1, rate, spans & (starts > 0), PLAIN)
    left_arc, left_arc_unit = both * weight, both_unit + weight_unit
    # The remaining term of the sums: an arc from end to end with a complete span of a single node.
    right, right_unit = _add_rows(right, right_unit, PLAIN)
    right, right_unit = _add_product(right, right_unit, right_arc, right_arc_unit, 1.0, 0.0, PLAIN)
    right, right_unit = _normalised(right, right_unit, PLAIN)
    left, left_unit = _add_rows(left, left_unit, PLAIN)
    left, left_unit = _add_product(left, left_unit, left_arc, left_arc_unit, 1.0, 0.0, PLAIN)
    left, left_unit = _normalised(left, left_unit, PLAIN)
    # With a single root, a root that has a child takes no other.
    full = (single_root != 0) & (starts == 0) & (width < n)
    right, right_unit = tl.where(full, 0.0, right), tl.where(full, float("-inf"), right_unit)
    _store(values, units, BOTH, size, at, both, both_unit, spans, PLAIN)
    _store(values, units, RIGHT, size, at, right, right_unit, spans, PLAIN)
    _store(values, units, LEFT, size, at, left, left_unit, spans, PLAIN)
    _store(values, units, RIGHT_ARC, size, at, right_arc, right_arc_unit, spans, PLAIN)
    _store(values, units, LEFT_ARC, size, at, left_arc, left_arc_unit, spans, PLAIN)
    leftward = spans & (starts > 0)
    outlier = (spans & ~(_in_range(both) & _in_range(right_arc) & (_in_range(right) | full))) | (
        leftward & ~(_in_range(left) & _in_range(left_arc))
    )
    return outlier.to(tl.int32)


@triton.jit
def outside(marginals, values, units, size, width, starts, n, most, SPLITS: tl.constexpr, PLAIN: tl.constexpr):
    spans = starts <= n - width
    at = row(width, n) + starts
    top = 1.0 / tl.load(values + RIGHT * size + at, mask=spans, other=1.0)
    around = _around(values, units, values, size, width, starts, top, n, False, SPLITS, PLAIN)
    right, left, right_arc, left_arc = around
    right_arc *= tl.load(values + RIGHT_ARC * size + at, mask=spans, other=0.0)
    left_arc *= tl.load(values + LEFT_ARC * size + at, mask=spans, other=0.0)
    both = _quotient(right_arc + left_arc, tl.load(values + BOTH * size + at, mask=spans, other=0.0))
    to_right, to_left = arcs_between(width, starts, most)
    tl.store(marginals + to_right, right_arc, mask=spans)
    tl.store(marginals + to_left, left_arc, mask=spans & (starts > 0))
    tl.store(values + OUTSIDE_BOTH * size + at, both, mask=spans)
    tl.store(values + OUTSIDE_RIGHT * size + at, right, mask=spans)
    tl.store(values + OUTSIDE_LEFT * size + at, left, mask=spans)


@triton.jit
def inside_tangents(
    directions, values, units, tangents, size, width, starts, n, most, SPLITS: tl.constexpr, PLAIN: tl.constexpr
):
    spans = starts <= n - width
    at = row(width, n) + starts
    to_right, to_left = arcs_between(width, starts, most)
    right_arc_tangent = tl.load(directions + to_right, mask=spans, other=0.0)
    left_arc_tangent = tl.load(directions + to_left, mask=spans & (starts > 0), other=0.0)
    both, both_unit = _load(values, units, BOTH, size, at, spans, PLAIN)
    right, right_unit = _load(values, units, RIGHT, size, at, spans, PLAIN)
    left, left_unit = _load(values, units, LEFT, size, at, spans, PLAIN)
    right_arc, right_arc_unit = _load(values, units, RIGHT_ARC, size, at, spans, PLAIN)
    left_arc, left_arc_unit = _load(values, units, LEFT_ARC, size, at, spans, PLAIN)
    grad_both = tl.zeros((SPLITS, starts.shape[0]), values.dtype.element_ty)
    grad_right, grad_left = grad_both, grad_both
    for first in range(0, width, SPLITS):
        k = first + tl.arange(0, SPLITS)[:, None]
        halves = spans[None, :] & (k < width)
        parts = halves & (k > 0)
        begin = row(k, n) + starts[None, :]
        meeting = row(width - k, n) + starts[None, :] + k
        after = row(width - 1 - k, n) + starts[None, :] + k + 1
        grad_both += _weighted(values, units, tangents, RIGHT, begin, LEFT, after, both_unit, size, halves, PLAIN)
        grad_right += _weighted(
            values, units, tangents, RIGHT_ARC, begin, RIGHT, meeting, right_unit, size, parts, PLAIN
        )
        grad_left += _weighted(values, units, tangents, LEFT, begin, LEFT_ARC, meeting, left_unit, size, parts, PLAIN)
    both_tangent = _quotient(tl.sum(grad_both, 0), both)
    right_arc_tangent += both_tangent
    left_arc_tangent += both_tangent
    last = right_arc * _ratio(right_arc_unit, right_unit, PLAIN) * right_arc_tangent
    right_tangent = _quotient(tl.sum(grad_right, 0) + last, right)
    last = left_arc * _ratio(left_arc_unit, left_unit, PLAIN) * left_arc_tangent
    left_tangent = _quotient(tl.sum(grad_left, 0) + last, left)
    tl.store(tangents + BOTH * size + at, both_tangent, mask=spans)
    tl.store(tangents + RIGHT * size + at, right_tangent, mask=spans)
    tl.store(tangents + LEFT * size + at, left_tangent, mask=spans)
    tl.store(tangents + RIGHT_ARC * size + at, right_arc_tangent, mask=spans)
    tl.store(tangents + LEFT_ARC * size + at, left_arc_tangent, mask=spans)


@triton.jit
def outside_tangents(
    directions, marginals, gradient, values, units, tangents, size, width, starts, n, most,
    SPLITS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    spans = starts <= n - width
    leftward = spans & (starts > 0)
    at = row(width, n) + starts
    to_right, to_left = arcs_between(width, starts, most)
    top = tl.load(tangents + RIGHT * size + at, mask=spans, other=0.0)
    top = -top / tl.load(values + RIGHT * size + at, mask=spans, other=1.0)
    right, left, right_arc, left_arc = _around(
        values, units, tangents, size, width, starts, top, n, True, SPLITS, PLAIN
    )
    right_marginal = tl.load(marginals + to_right, mask=spans, other=0.0)
    left_marginal = tl.load(marginals + to_left, mask=leftward, other=0.0)
    # The derivatives of the marginals, without that of the sum which both arcs share.
    right_arc *= tl.load(values + RIGHT_ARC * size + at, mask=spans, other=0.0)
    right_arc += right_marginal * tl.load(directions + to_right, mask=spans, other=0.0)
    left_arc *= tl.load(values + LEFT_ARC * size + at, mask=spans, other=0.0)
    left_arc += left_marginal * tl.load(directions + to_left, mask=leftward, other=0.0)
    both = _quotient(right_arc + left_arc, tl.load(values + BOTH * size + at, mask=spans, other=0.0))
    between = tl.load(tangents + BOTH * size + at, mask=spans, other=0.0)
    tl.store(gradient + to_right, right_arc + right_marginal * between, mask=spans)
    tl.store(gradient + to_left, left_arc + left_marginal * between, mask=leftward)
    tl.store(tangents + OUTSIDE_BOTH * size + at, both, mask=spans)
    tl.store(tangents + OUTSIDE_RIGHT * size + at, right, mask=spans)
    tl.store(tangents + OUTSIDE_LEFT * size + at, left, mask=spans)


# Sums over longer spans


@triton.jit
def _around(
    values, units, tangents, size, width, starts, top, n,
    CHANGES: tl.constexpr, SPLITS: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """The outside values of right, left, right_arc and left_arc, or their derivatives; ``top`` is that of the sentence.

    A span is the left part of longer spans with the same beginning, and the right part of those with the same end.
    """
    spans = starts <= n - width
    ends = starts + width
    at = row(width, n) + starts
    right_unit = _unit(units, RIGHT, size, at, spans, PLAIN)
    left_unit = _unit(units, LEFT, size, at, spans, PLAIN)
    right_arc_unit = _unit(units, RIGHT_ARC, size, at, spans, PLAIN)
    left_arc_unit = _unit(units, LEFT_ARC, size, at, spans, PLAIN)
    right = tl.zeros((SPLITS, starts.shape[0]), values.dtype.element_ty)
    left, right_arc, left_arc = right, right, right
    for first in range(0, n - width, SPLITS):
        k = first + tl.arange(0, SPLITS)[:, None]
        begin = spans[None, :] & (k < n - ends[None, :])
        longer = row(width + 1 + k, n) + starts[None, :]
        after, meeting = row(k, n) + ends[None, :] + 1, row(k + 1, n) + ends[None, :]
        right += _passed(values, units, tangents, BOTH, longer, LEFT, after, right_unit, size, begin, CHANGES, PLAIN)
        left += _passed(
            values, units, tangents, LEFT, longer, LEFT_ARC, meeting, left_unit, size, begin, CHANGES, PLAIN
        )
        right_arc += _passed(
            values, units, tangents, RIGHT, longer, RIGHT, meeting, right_arc_unit, size, begin, CHANGES, PLAIN
        )
        end = spans[None, :] & (k < starts[None, :])
        first_start = starts[None, :] - 1 - k
        longer = row(width + 1 + k, n) + first_start
        before, meeting = row(k, n) + first_start, row(k + 1, n) + first_start
        right += _passed(
            values, units, tangents, RIGHT, longer, RIGHT_ARC, meeting, right_unit, size, end, CHANGES, PLAIN
        )
        left += _passed(values, units, tangents, BOTH, longer, RIGHT, before, left_unit, size, end, CHANGES, PLAIN)
        left_arc += _passed(
            values, units, tangents, LEFT, longer, LEFT, meeting, left_arc_unit, size, end, CHANGES, PLAIN
        )
    right, left = tl.sum(right, 0), tl.sum(left, 0)
    right = tl.where(width == n, top, right)
    if PLAIN:
        # The root that takes no other child; elsewhere, the exponent of 0 does this.
        right = tl.where(tl.load(values + RIGHT * size + at, mask=spans, other=0.0) == 0, 0.0, right)
    # The remaining term: an arc from end to end with a complete span of a single node.
    right_arc = tl.sum(right_arc, 0) + right * _ratio(right_arc_unit, right_unit, PLAIN)
    left_arc = tl.sum(left_arc, 0) + left * _ratio(left_arc_unit, left_unit, PLAIN)
    return right, left, right_arc, left_arc


@triton.jit
def _passed(
    values, units, tangents, WHOLE: tl.constexpr, at_whole, SIBLING: tl.constexpr, at_sibling, unit, size, mask,
    CHANGES: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """The term, or its derivative, that the outside value of a whole adds to that of a part, whose unit is given."""
    outside = tl.load(values + (OUTSIDE_BOTH + WHOLE) * size + at_whole, mask=mask, other=0.0)
    share, sibling_unit = _load(values, units, SIBLING, size, at_sibling, mask, PLAIN)
    if not PLAIN:
        whole_unit = tl.load(units + WHOLE * size + at_whole, mask=mask, other=0.0)
        share *= power_of_two((sibling_unit + unit[None, :]) - whole_unit)
    if CHANGES:
        sibling_tangent = tl.load(tangents + SIBLING * size + at_sibling, mask=mask, other=0.0)
        change = tl.load(tangents + (OUTSIDE_BOTH + WHOLE) * size + at_whole, mask=mask, other=0.0)
        return share * (change + outside * sibling_tangent)
    else:
        return share * outside


@triton.jit
def _weighted(
    values, units, tangents, LEFT_PART: tl.constexpr, at_left, RIGHT_PART: tl.constexpr, at_right, unit, size, mask,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """Products of inside values, in the unit of their sum, times the derivatives of their logarithms."""
    a, a_unit = _load(values, units, LEFT_PART, size, at_left, mask, PLAIN)
    b, b_unit = _load(values, units, RIGHT_PART, size, at_right, mask, PLAIN)
    a_tangent = tl.load(tangents + LEFT_PART * size + at_left, mask=mask, other=0.0)
    b_tangent = tl.load(tangents + RIGHT_PART * size + at_right, mask=mask, other=0.0)
    product = a * b
    if not PLAIN:
        product *= power_of_two((a_unit + b_unit) - unit[None, :])
    return product * (a_tangent + b_tangent)


# Numbers with exponents, or without


@triton.jit
def _add_product(total, unit, a, a_unit, b, b_unit, PLAIN: tl.constexpr):
    if PLAIN:
        return total + a * b, unit
    else:
        return add_product(total, unit, a, a_unit, b, b_unit)


@triton.jit
def _add_rows(totals, units, PLAIN: tl.constexpr):
    if PLAIN:
        return tl.sum(totals, 0), 0.0
    else:
        return add_rows(totals, units)


@triton.jit
def _normalised(total, unit, PLAIN: tl.constexpr):
    if PLAIN:
        return total, unit
    else:
        return normalised(total, unit)


@triton.jit
def _ratio(unit, other_unit, PLAIN: tl.constexpr):
    if PLAIN:
        return 1.0
    else:
        return power_of_two(unit - other_unit)


@triton.jit
def _weight(score, shift, rate, mask, PLAIN: tl.constexpr):
    """e^score; if ``PLAIN``, with the best head of the word, whose score is at ``shift``, at 2^(−rate)."""
    if PLAIN:
        return tl.exp(score - tl.load(shift, mask=mask, other=0.0)) * tl.exp2(-rate), 0.0
    else:
        return scaled_exp(score)


# The range of values without exponents


@triton.jit
def _in_range(value):
    # False for NaN.
    return (value >= LEAST) & (value <= MOST)


@triton.jit
def best_heads(scores, shifts, n, most, SPANS: tl.constexpr, SPLITS: tl.constexpr):
    """Stores the score of the best head of each word in ``shifts``; the sum of these scores."""
    total = tl.sum(tl.zeros((SPANS,), scores.dtype.element_ty), 0)
    for first in range(0, n, SPANS):
        words = first + tl.arange(0, SPANS)
        best = tl.full((SPLITS, SPANS), float("-inf"), scores.dtype.element_ty)
        for first_head in range(0, n + 1, SPLITS):
            heads = first_head + tl.arange(0, SPLITS)[:, None]
            arcs = (heads <= n) & (words[None, :] < n) & (heads != words[None, :] + 1)
            best = tl.maximum(best, tl.load(scores + heads * most + words[None, :], mask=arcs, other=float("-inf")))
        best = tl.max(best, 0)
        tl.store(shifts + words, best, mask=words < n)
        total += tl.sum(tl.where(words < n, best, 0.0), 0)
    return total


@triton.jit
def excess_rate(values, size, width, n, SPANS: tl.constexpr):
    """The change of rate, in bits a word, after which the largest complete span of a width is about 1."""
    largest = tl.zeros((SPANS,), values.dtype.element_ty)
    for first in range(0, n + 1 - width, SPANS):
        starts = first + tl.arange(0, SPANS)
        at = row(width, n) + starts
        for chart in tl.static_range(RIGHT, LEFT + 1):
            largest = tl.maximum(largest, tl.load(values + chart * size + at, mask=starts <= n - width, other=0.0))
    return tl.floor(tl.log2(tl.max(largest, 0)) / width * 16 + 0.5) / 16


@triton.jit
def rescale(values, size, width, change, n, single_root, SPANS: tl.constexpr, SPLITS: tl.constexpr):
    """Divides each value of at most a width by 2^change for each word; whether a value is out of range then."""
    outlier = tl.zeros((SPANS,), tl.int32)
    for first_width in range(1, width + 1, SPLITS):
        widths = first_width + tl.arange(0, SPLITS)[:, None]
        for first in range(0, n + 1 - first_width, SPANS):
            starts = first + tl.arange(0, SPANS)[None, :]
            spans = (widths <= width) & (starts <= n - widths)
            at = row(widths, n) + starts
            for chart in tl.static_range(BOTH, LEFT_ARC + 1):
                words = widths - 1 if chart == BOTH else widths
                value = tl.load(values + chart * size + at, mask=spans, other=1.0) * tl.exp2(-change * words)
                tl.store(values + chart * size + at, value, mask=spans)
                outside = spans & ~_in_range(value)
                if chart == LEFT or chart == LEFT_ARC:
                    outside = outside & (starts > 0)
                if chart == RIGHT:
                    outside = outside & ((starts > 0) | (single_root == 0))
                outlier = outlier | tl.max(outside.to(tl.int32), 0)
    return outlier


# Charts


@triton.jit
def chart_size(n):
    return (n + 1) * (n + 2) // 2


@triton.jit
def row(width, n):
    """Index of the first span of a width in a chart; the span that begins at i is i further."""
    return width * (2 * n + 3 - width) // 2


@triton.jit
def arcs_between(width, starts, most):
    """Indices in ``[n+1, n]`` of the arcs between the ends of spans, rightward and leftward."""
    return starts * most + starts + width - 1, (starts + width) * most + starts - 1


@triton.jit
def set_single_nodes(values, units, size, starts, n, PLAIN: tl.constexpr):
    """Set complete spans of a single node to 1."""
    nodes = starts <= n
    zero = tl.zeros(starts.shape, values.dtype.element_ty)
    _store(values, units, RIGHT, size, starts, zero + 1, zero, nodes, PLAIN)
    _store(values, units, LEFT, size, starts, zero + 1, zero, nodes, PLAIN)


@triton.jit
def _load(values, units, CHART: tl.constexpr, size, at, mask, PLAIN: tl.constexpr):
    return tl.load(values + CHART * size + at, mask=mask, other=0.0), _unit(units, CHART, size, at, mask, PLAIN)


@triton.jit
def _unit(units, CHART: tl.constexpr, size, at, mask, PLAIN: tl.constexpr):
    if PLAIN:
        return 0.0
    else:
        return tl.load(units + CHART * size + at, mask=mask, other=float("-inf"))


@triton.jit
def _store(values, units, CHART: tl.constexpr, size, at, value, unit, mask, PLAIN: tl.constexpr):
    tl.store(values + CHART * size + at, value, mask=mask)
    if not PLAIN:
        tl.store(units + CHART * size + at, unit, mask=mask)


@triton.jit
def _quotient(a, b):
    return tl.where(b == 0, 0.0, a / b)
