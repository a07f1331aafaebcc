"""The recursions of projective trees for Triton kernels: one width at a time, for the spans that begin at ``starts``.

They are those of :mod:`.cpu_inside_outside`. A span is built from shorter spans, and its outside value from those of
longer spans. The only exception is the arc from end to end, of the same width, whose term is added in registers.

**Charts.** A chart has rows of n + 1, n, n − 1 … spans, one row for each width from 0 to n. The charts of a sentence
follow each other in the order of their numbers, ``size`` apart. ``values`` and ``tangents`` have all charts, ``units``
(exponents) only the inside charts: the exponent of an outside value makes its product with the inside value a
probability. Tangents of inside values are derivatives of their logarithms.
"""

import triton
import triton.language as tl

from ..kernels.triton_scaled import add_product, add_rows, normalised, power_of_two, scaled_exp

# OUTSIDE_BOTH + c is the outside chart of c.
BOTH, RIGHT, LEFT, RIGHT_ARC, LEFT_ARC = (tl.constexpr(chart) for chart in range(5))
OUTSIDE_BOTH, OUTSIDE_RIGHT, OUTSIDE_LEFT = (tl.constexpr(chart) for chart in range(5, 8))
CHARTS, CHARTS_WITH_UNITS = tl.constexpr(8), tl.constexpr(5)


# The four passes


@triton.jit
def inside(scores, values, units, size, width, starts, n, most, single_root, SPLITS: tl.constexpr):
    spans = starts <= n - width
    at = row(width, n) + starts
    to_right, to_left = _arcs(width, starts, most)
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
        a, a_unit = _load(values, units, RIGHT, size, begin, halves)
        b, b_unit = _load(values, units, LEFT, size, after, halves)
        both, both_unit = add_product(both, both_unit, a, a_unit, b, b_unit)
        a, a_unit = _load(values, units, RIGHT_ARC, size, begin, parts)
        b, b_unit = _load(values, units, RIGHT, size, meeting, parts)
        right, right_unit = add_product(right, right_unit, a, a_unit, b, b_unit)
        a, a_unit = _load(values, units, LEFT, size, begin, parts)
        b, b_unit = _load(values, units, LEFT_ARC, size, meeting, parts)
        left, left_unit = add_product(left, left_unit, a, a_unit, b, b_unit)
    both, both_unit = add_rows(both, both_unit)
    both, both_unit = normalised(both, both_unit)
    weight, weight_unit = scaled_exp(right_score)
    right_arc, right_arc_unit = both * weight, both_unit + weight_unit
    weight, weight_unit = scaled_exp(left_score)
    left_arc, left_arc_unit = both * weight, both_unit + weight_unit
    # The remaining term of the sums: an arc from end to end with a complete span of a single node.
    right, right_unit = add_rows(right, right_unit)
    right, right_unit = add_product(right, right_unit, right_arc, right_arc_unit, 1.0, 0.0)
    right, right_unit = normalised(right, right_unit)
    left, left_unit = add_rows(left, left_unit)
    left, left_unit = add_product(left, left_unit, left_arc, left_arc_unit, 1.0, 0.0)
    left, left_unit = normalised(left, left_unit)
    # With a single root, a root that has a child takes no other.
    full = (single_root != 0) & (starts == 0) & (width < n)
    right, right_unit = tl.where(full, 0.0, right), tl.where(full, float("-inf"), right_unit)
    _store(values, units, BOTH, size, at, both, both_unit, spans)
    _store(values, units, RIGHT, size, at, right, right_unit, spans)
    _store(values, units, LEFT, size, at, left, left_unit, spans)
    _store(values, units, RIGHT_ARC, size, at, right_arc, right_arc_unit, spans)
    _store(values, units, LEFT_ARC, size, at, left_arc, left_arc_unit, spans)


@triton.jit
def outside(marginals, values, units, size, width, starts, n, most, SPLITS: tl.constexpr):
    spans = starts <= n - width
    at = row(width, n) + starts
    top = 1.0 / tl.load(values + RIGHT * size + at, mask=spans, other=1.0)
    right, left, right_arc, left_arc = _around(values, units, values, size, width, starts, top, n, False, SPLITS)
    right_arc *= tl.load(values + RIGHT_ARC * size + at, mask=spans, other=0.0)
    left_arc *= tl.load(values + LEFT_ARC * size + at, mask=spans, other=0.0)
    both = _quotient(right_arc + left_arc, tl.load(values + BOTH * size + at, mask=spans, other=0.0))
    to_right, to_left = _arcs(width, starts, most)
    tl.store(marginals + to_right, right_arc, mask=spans)
    tl.store(marginals + to_left, left_arc, mask=spans & (starts > 0))
    tl.store(values + OUTSIDE_BOTH * size + at, both, mask=spans)
    tl.store(values + OUTSIDE_RIGHT * size + at, right, mask=spans)
    tl.store(values + OUTSIDE_LEFT * size + at, left, mask=spans)


@triton.jit
def inside_tangents(directions, values, units, tangents, size, width, starts, n, most, SPLITS: tl.constexpr):
    spans = starts <= n - width
    at = row(width, n) + starts
    to_right, to_left = _arcs(width, starts, most)
    right_arc_tangent = tl.load(directions + to_right, mask=spans, other=0.0)
    left_arc_tangent = tl.load(directions + to_left, mask=spans & (starts > 0), other=0.0)
    both, both_unit = _load(values, units, BOTH, size, at, spans)
    right, right_unit = _load(values, units, RIGHT, size, at, spans)
    left, left_unit = _load(values, units, LEFT, size, at, spans)
    right_arc, right_arc_unit = _load(values, units, RIGHT_ARC, size, at, spans)
    left_arc, left_arc_unit = _load(values, units, LEFT_ARC, size, at, spans)
    grad_both = tl.zeros((SPLITS, starts.shape[0]), values.dtype.element_ty)
    grad_right, grad_left = grad_both, grad_both
    for first in range(0, width, SPLITS):
        k = first + tl.arange(0, SPLITS)[:, None]
        halves = spans[None, :] & (k < width)
        parts = halves & (k > 0)
        begin = row(k, n) + starts[None, :]
        meeting = row(width - k, n) + starts[None, :] + k
        after = row(width - 1 - k, n) + starts[None, :] + k + 1
        grad_both += _weighted(values, units, tangents, RIGHT, begin, LEFT, after, both_unit, size, halves)
        grad_right += _weighted(values, units, tangents, RIGHT_ARC, begin, RIGHT, meeting, right_unit, size, parts)
        grad_left += _weighted(values, units, tangents, LEFT, begin, LEFT_ARC, meeting, left_unit, size, parts)
    both_tangent = _quotient(tl.sum(grad_both, 0), both)
    right_arc_tangent += both_tangent
    left_arc_tangent += both_tangent
    last = right_arc * power_of_two(right_arc_unit - right_unit) * right_arc_tangent
    right_tangent = _quotient(tl.sum(grad_right, 0) + last, right)
    last = left_arc * power_of_two(left_arc_unit - left_unit) * left_arc_tangent
    left_tangent = _quotient(tl.sum(grad_left, 0) + last, left)
    tl.store(tangents + BOTH * size + at, both_tangent, mask=spans)
    tl.store(tangents + RIGHT * size + at, right_tangent, mask=spans)
    tl.store(tangents + LEFT * size + at, left_tangent, mask=spans)
    tl.store(tangents + RIGHT_ARC * size + at, right_arc_tangent, mask=spans)
    tl.store(tangents + LEFT_ARC * size + at, left_arc_tangent, mask=spans)


@triton.jit
def outside_tangents(
    directions, marginals, gradient, values, units, tangents, size, width, starts, n, most, SPLITS: tl.constexpr
):
    spans = starts <= n - width
    leftward = spans & (starts > 0)
    at = row(width, n) + starts
    to_right, to_left = _arcs(width, starts, most)
    top = tl.load(tangents + RIGHT * size + at, mask=spans, other=0.0)
    top = -top / tl.load(values + RIGHT * size + at, mask=spans, other=1.0)
    right, left, right_arc, left_arc = _around(values, units, tangents, size, width, starts, top, n, True, SPLITS)
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
def _around(values, units, tangents, size, width, starts, top, n, DERIVATIVES: tl.constexpr, SPLITS: tl.constexpr):
    """The outside values of right, left, right_arc and left_arc, or their derivatives; ``top`` is that of the sentence.

    A span is the left part of longer spans with the same beginning, and the right part of those with the same end.
    """
    spans = starts <= n - width
    ends = starts + width
    at = row(width, n) + starts
    right_unit = tl.load(units + RIGHT * size + at, mask=spans, other=float("-inf"))
    left_unit = tl.load(units + LEFT * size + at, mask=spans, other=float("-inf"))
    right_arc_unit = tl.load(units + RIGHT_ARC * size + at, mask=spans, other=float("-inf"))
    left_arc_unit = tl.load(units + LEFT_ARC * size + at, mask=spans, other=float("-inf"))
    right = tl.zeros((SPLITS, starts.shape[0]), values.dtype.element_ty)
    left, right_arc, left_arc = right, right, right
    for first in range(0, n - width, SPLITS):
        k = first + tl.arange(0, SPLITS)[:, None]
        begin = spans[None, :] & (k < n - ends[None, :])
        longer = row(width + 1 + k, n) + starts[None, :]
        after, meeting = row(k, n) + ends[None, :] + 1, row(k + 1, n) + ends[None, :]
        right += _passed(values, units, tangents, BOTH, longer, LEFT, after, right_unit, size, begin, DERIVATIVES)
        left += _passed(values, units, tangents, LEFT, longer, LEFT_ARC, meeting, left_unit, size, begin, DERIVATIVES)
        right_arc += _passed(
            values, units, tangents, RIGHT, longer, RIGHT, meeting, right_arc_unit, size, begin, DERIVATIVES
        )
        end = spans[None, :] & (k < starts[None, :])
        first_start = starts[None, :] - 1 - k
        longer = row(width + 1 + k, n) + first_start
        before, meeting = row(k, n) + first_start, row(k + 1, n) + first_start
        right += _passed(values, units, tangents, RIGHT, longer, RIGHT_ARC, meeting, right_unit, size, end, DERIVATIVES)
        left += _passed(values, units, tangents, BOTH, longer, RIGHT, before, left_unit, size, end, DERIVATIVES)
        left_arc += _passed(values, units, tangents, LEFT, longer, LEFT, meeting, left_arc_unit, size, end, DERIVATIVES)
    right, left = tl.sum(right, 0), tl.sum(left, 0)
    right = tl.where(width == n, top, right)
    # The remaining term: an arc from end to end with a complete span of a single node.
    right_arc = tl.sum(right_arc, 0) + right * power_of_two(right_arc_unit - right_unit)
    left_arc = tl.sum(left_arc, 0) + left * power_of_two(left_arc_unit - left_unit)
    return right, left, right_arc, left_arc


@triton.jit
def _passed(
    values,
    units,
    tangents,
    WHOLE: tl.constexpr,
    at_whole,
    SIBLING: tl.constexpr,
    at_sibling,
    unit,
    size,
    mask,
    DERIVATIVES: tl.constexpr,
):
    """The term, or its derivative, that the outside value of a whole adds to that of a part, whose unit is given."""
    outside = tl.load(values + (OUTSIDE_BOTH + WHOLE) * size + at_whole, mask=mask, other=0.0)
    whole_unit = tl.load(units + WHOLE * size + at_whole, mask=mask, other=0.0)
    sibling, sibling_unit = _load(values, units, SIBLING, size, at_sibling, mask)
    share = sibling * power_of_two((sibling_unit + unit[None, :]) - whole_unit)
    if DERIVATIVES:
        sibling_tangent = tl.load(tangents + SIBLING * size + at_sibling, mask=mask, other=0.0)
        change = tl.load(tangents + (OUTSIDE_BOTH + WHOLE) * size + at_whole, mask=mask, other=0.0)
        return share * (change + outside * sibling_tangent)
    else:
        return share * outside


@triton.jit
def _weighted(
    values, units, tangents, LEFT_PART: tl.constexpr, at_left, RIGHT_PART: tl.constexpr, at_right, unit, size, mask
):
    """Products of inside values, in the unit of their sum, times the derivatives of their logarithms."""
    a, a_unit = _load(values, units, LEFT_PART, size, at_left, mask)
    b, b_unit = _load(values, units, RIGHT_PART, size, at_right, mask)
    a_tangent = tl.load(tangents + LEFT_PART * size + at_left, mask=mask, other=0.0)
    b_tangent = tl.load(tangents + RIGHT_PART * size + at_right, mask=mask, other=0.0)
    return a * b * power_of_two((a_unit + b_unit) - unit[None, :]) * (a_tangent + b_tangent)


# Charts


@triton.jit
def chart_size(n):
    return (n + 1) * (n + 2) // 2


@triton.jit
def row(width, n):
    """Index of the first span of a width in a chart; the span that begins at i is i further."""
    return width * (2 * n + 3 - width) // 2


@triton.jit
def _arcs(width, starts, most):
    """Indices in ``[n+1, n]`` of the arcs between the ends of spans, rightward and leftward."""
    return starts * most + starts + width - 1, (starts + width) * most + starts - 1


@triton.jit
def set_single_nodes(values, units, size, starts, n):
    """Set complete spans of a single node to 1."""
    nodes = starts <= n
    zero = tl.zeros(starts.shape, values.dtype.element_ty)
    _store(values, units, RIGHT, size, starts, zero + 1, zero, nodes)
    _store(values, units, LEFT, size, starts, zero + 1, zero, nodes)


@triton.jit
def _load(values, units, CHART: tl.constexpr, size, at, mask):
    value = tl.load(values + CHART * size + at, mask=mask, other=0.0)
    return value, tl.load(units + CHART * size + at, mask=mask, other=float("-inf"))


@triton.jit
def _store(values, units, CHART: tl.constexpr, size, at, value, unit, mask):
    tl.store(values + CHART * size + at, value, mask=mask)
    tl.store(units + CHART * size + at, unit, mask=mask)


@triton.jit
def _quotient(a, b):
    return tl.where(b == 0, 0.0, a / b)
