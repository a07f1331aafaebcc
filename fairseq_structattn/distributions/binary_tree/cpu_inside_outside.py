"""The recursions of binary trees, compiled for the CPU. Loaded by :mod:`.cpu`, which describes their results.

For a span of words (i, j) of weight w(i, j),

    split(i, j) = Σ_{i≤k<j} span(i, k) · span(k+1, j)
    span(i, j)  = split(i, j) · w(i, j)

and Z = span(0, n-1). The outside value of a span is ∂ log Z / ∂ inside. Charts and algebras are those of
:mod:`..kernels.numba_spans`; ``last`` is the number of the last word.
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

# Charts, in the order in which they follow each other; OUTSIDE + c is the outside chart of c. SPLIT comes first because
# no step reads above its first row.
SPLIT, SPAN, OUTSIDE, WEIGHT = 0, 1, 2, 4
CHARTS = 5


@subroutine
def whole_sentence(last):
    """Index of the span of the whole sentence, whose value is Z."""
    return SPAN * chart_size(last) + last * stride_of(last)


def inside(step):
    """The recursion ``(charts, last)`` that fills in all spans, from short to long. Single words and weights have to be
    in place, and zeros everywhere else."""

    @subroutine
    def recursion(charts, last):
        size, stride = chart_size(last), stride_of(last)
        split, span, weight = SPLIT * size, SPAN * size, WEIGHT * size
        for start in range(last - last % LANES, -1, -LANES):
            for width in range(1, last + 1 - start):
                at = width * stride + start
                step(charts, split + at, span + start, stride, span + at - stride + 1, 1 - stride, width)
                step(charts, span + at, split + at, 0, weight + at, 0, 1)

    return recursion


def outside(step):
    """The recursion ``(charts, last)`` that fills in the outside values of spans of two words and more, from long to
    short. That of the whole sentence has to be in place.

    A span is the left part of longer spans with the same beginning, and the right part of those with the same end.
    """

    @subroutine
    def recursion(charts, last):
        size, stride = chart_size(last), stride_of(last)
        span, weight = SPAN * size, WEIGHT * size
        around_split, around_span = (OUTSIDE + SPLIT) * size, (OUTSIDE + SPAN) * size
        for start in range(0, last, LANES):
            for width in range(last - start, 0, -1):
                at, above, end = width * stride + start, (width + 1) * stride + start, start + width
                # Number of longer spans that begin with the first of the eight, and number that end with the last.
                begin, finish = last - end, min(last - width, start + LANES - 1)
                step(charts, around_span + at, around_split + above, stride, span + end + 1, stride, begin)
                before = around_split + above - 1
                step(charts, around_span + at, before, stride - 1, span + start - 1, stride - 1, finish)
                step(charts, around_split + at, around_span + at, 0, weight + at, 0, 1)

    return recursion


inside_numbers, outside_numbers = inside(add_products), outside(add_products)
inside_dual, outside_dual = inside(add_dual), outside(add_dual)
inside_scaled, outside_scaled = inside(sum_scaled), outside(add_scaled)
inside_scaled_dual, outside_scaled_dual = inside(sum_scaled_dual), outside(add_scaled_dual)
inside_best = inside(take_best)
