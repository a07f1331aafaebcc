"""The recursions of projective trees, compiled for the CPU. Loaded by :mod:`.cpu`, which describes their results.

For a span of nodes (i, j), where node 0 is the root, and arc weights w(h→m),

    both(i, j)      = Σ_{i≤k<j} right(i, k) · left(k+1, j)
    right_arc(i, j) = both(i, j) · w(i→j)                     left_arc(i, j) = both(i, j) · w(j→i)
    right(i, j)     = Σ_{i<k≤j} right_arc(i, k) · right(k, j)
    left(i, j)      = Σ_{i≤k<j} left(i, k) · left_arc(k, j)

and Z = right(0, n): Eisner (COLING 1996), in the form of figure 6 of Kim et al. (ICLR 2017), except that the sum shared
by both directions of an arc is computed once. A complete span has its head at the left end (``right``) or at the right
end (``left``). In an incomplete span, an arc joins the two ends. The outside value of a span is ∂ log Z / ∂ inside.

Charts and algebras are those of :mod:`..kernels.numba_spans`.
"""

from ..kernels.numba_compile import subroutine
from ..kernels.numba_simd import LANES
from ..kernels.numba_spans import (
    add_dual,
    add_products,
    add_scaled,
    add_scaled_dual,
    chart_size,
    stride_of,
    sum_scaled,
    sum_scaled_dual,
    take_best,
)

# Charts, in the order in which they follow each other; OUTSIDE + c is the outside chart of c. BOTH comes first because
# no step reads above its first row.
BOTH, RIGHT, LEFT, RIGHT_ARC, LEFT_ARC, OUTSIDE, RIGHT_WEIGHT, LEFT_WEIGHT = 0, 1, 2, 3, 4, 5, 10, 11
CHARTS = 12


# Layout


@subroutine
def whole_sentence(n):
    """Index of the span of the whole sentence, whose value is Z."""
    return RIGHT * chart_size(n) + n * stride_of(n)


@subroutine
def arc_position(right_chart, left_chart, head, word, n):
    """Index of the span of an arc in the chart of its direction."""
    if head < word:
        return right_chart * chart_size(n) + (word - head) * stride_of(n) + head
    return left_chart * chart_size(n) + (head - word) * stride_of(n) + word


@subroutine
def clear(chart, zero, one, n):
    """Reset the charts to zero, except complete spans of a single node, which have the value one."""
    size = chart_size(n)
    chart[: CHARTS * size] = zero
    chart[RIGHT * size : RIGHT * size + n + 1] = one
    chart[LEFT * size : LEFT * size + n + 1] = one


# Recursions over an algebra: functions ``(charts, n, single_root)``.


def inside(step):
    """Fill in all spans, from short to long. :func:`clear` has to have run, and the weights have to be in place."""

    @subroutine
    def recursion(charts, n, single_root):
        size, stride = chart_size(n), stride_of(n)
        both, right, left = BOTH * size, RIGHT * size, LEFT * size
        right_arc, left_arc = RIGHT_ARC * size, LEFT_ARC * size
        for start in range(n - n % LANES, -1, -LANES):
            for width in range(1, n + 1 - start):
                at = width * stride + start
                after_start = at - stride + 1
                step(charts, both + at, right + start, stride, left + after_start, 1 - stride, width)
                step(charts, right_arc + at, both + at, 0, RIGHT_WEIGHT * size + at, 0, 1)
                step(charts, left_arc + at, both + at, 0, LEFT_WEIGHT * size + at, 0, 1)
                step(charts, right + at, right_arc + stride + start, stride, right + after_start, 1 - stride, width)
                step(charts, left + at, left + start, stride, left_arc + at, 1 - stride, width)
                if single_root and start == 0 and width < n:
                    _forbid_second_root(charts, right + at, left + at)

    return recursion


def outside(step):
    """Fill in the outside values, from long spans to short. That of the whole sentence has to be in place.

    A span is the left part of longer spans with the same beginning, and the right part of those with the same end.
    """

    @subroutine
    def recursion(charts, n, single_root):
        size, stride = chart_size(n), stride_of(n)
        right, left, right_arc, left_arc = RIGHT * size, LEFT * size, RIGHT_ARC * size, LEFT_ARC * size
        around_both, around_right, around_left, around_right_arc, around_left_arc = (
            (OUTSIDE + BOTH) * size,
            (OUTSIDE + RIGHT) * size,
            (OUTSIDE + LEFT) * size,
            (OUTSIDE + RIGHT_ARC) * size,
            (OUTSIDE + LEFT_ARC) * size,
        )
        for start in range(0, n, LANES):
            for width in range(n - start, 0, -1):
                row, above, end = width * stride, (width + 1) * stride, start + width
                at = row + start
                # Number of longer spans that begin with the first of the eight, and number that end with the last.
                begin, finish = n - end, min(n - width, start + LANES - 1)
                # right as the left part of both, and as the right part of right
                to, before = around_right + at, above + start - 1
                step(charts, to, around_both + above + start, stride, left + end + 1, stride, begin)
                step(charts, to, around_right + before, stride - 1, right_arc + stride + start - 1, stride - 1, finish)
                # left as the left part of left, and as the right part of both
                to = around_left + at
                step(charts, to, around_left + above + start, stride, left_arc + stride + end, stride, begin)
                step(charts, to, around_both + before, stride - 1, right + start - 1, stride - 1, finish)
                if single_root and start == 0 and width < n:
                    _forbid_second_root(charts, around_right + row, around_left + row)
                # right_arc as the left part of right, left_arc as the right part of left
                step(charts, around_right_arc + at, around_right + at, stride, right + end, stride, begin + 1)
                step(charts, around_left_arc + at, around_left + at, stride - 1, left + start, stride - 1, finish + 1)
                step(charts, around_both + at, around_right_arc + at, 0, RIGHT_WEIGHT * size + at, 0, 1)
                step(charts, around_both + at, around_left_arc + at, 0, LEFT_WEIGHT * size + at, 0, 1)

    return recursion


@subroutine
def _forbid_second_root(charts, right_of_root, left_of_root):
    """Keep a root that has a child from taking another one, by a chart entry that is zero: no arc leads to the root
    from the right."""
    for chart in charts:
        chart[right_of_root] = chart[left_of_root]


inside_numbers, outside_numbers = inside(add_products), outside(add_products)
inside_dual, outside_dual = inside(add_dual), outside(add_dual)
inside_scaled, outside_scaled = inside(sum_scaled), outside(add_scaled)
inside_scaled_dual, outside_scaled_dual = inside(sum_scaled_dual), outside(add_scaled_dual)
inside_best = inside(take_best)
