"""Positive numbers of unlimited range inside Triton kernels, mantissa · 2^exponent. Loaded by the ``cuda.py`` modules.

A weight is the exponential of a score. Where float32 holds the logarithm of e^±150 to 8e-6 at best, and the number
itself not at all, a mantissa always has 24 bits. Sums and products of positive numbers then keep a relative accuracy of
some 1e-7, and a sum takes one exponential, where one of logarithms takes an exponential and a logarithm.

Exponents are whole numbers, kept as floating point numbers. Mantissas of results are from 1 to 2, and 0 for zero. What
zero has for an exponent is told apart: −∞ where sums have many terms, so that no product that adds to a sum has an
exponent above the sum's, and every power of two needed is at most 1; :data:`LEAST_EXPONENT` where exponents are also
subtracted, as in an elimination.
"""

import triton
import triton.language as tl

from . import constants

LOG_2, LOG2_E = tl.constexpr(constants.LOG_2), tl.constexpr(constants.LOG2_E)
# log 2 in two parts (Cody & Waite 1980). The first has 9 bits: its product with an exponent of up to 15 is exact.
LOG_2_HIGH = tl.constexpr(0.693359375)
LOG_2_LOW = tl.constexpr(-2.1219444005469057e-4)
# That of zero, below all others; sums of it are still finite.
LEAST_EXPONENT = tl.constexpr(-(2.0**100))
# Beyond this, floating point numbers of 24 bits do not tell one exponent from the next.
MOST_EXACT_EXPONENT = tl.constexpr(2.0**23)


# Zero has the exponent −∞


@triton.jit
def power_of_two(exponent):
    """2^exponent for a whole exponent of at most 1, exactly; 0 where it is too small to be represented.

    A sum with 1.5 · 2^(bits of the mantissa) has the exponent in its last bits, from where they are moved to their
    place. What has to do with zeros gives 0 too: +∞, whose last bits are 0, and −∞ − (−∞), as a
    maximum passes over NaN.
    """
    if exponent.dtype == tl.float64:
        bits = (tl.maximum(exponent, -1023.0) + (6755399441055744.0 + 1023.0)).to(tl.int64, bitcast=True)
        return (bits << 52).to(tl.float64, bitcast=True)
    else:
        bits = (tl.maximum(exponent, -127.0) + (12582912.0 + 127.0)).to(tl.int32, bitcast=True)
        return (bits << 23).to(tl.float32, bitcast=True)


@triton.jit
def scaled_exp(score):
    """exp(score); a score whose exponent is no finite number, below −2.3e38 in float32, gives 0."""
    exponent = tl.floor(score / LOG_2)
    rest = (score - exponent * LOG_2_HIGH) - exponent * LOG_2_LOW
    # The difference of huge scores is all rounding error.
    rest = tl.clamp(rest, 0.0, LOG_2, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(exponent == float("-inf"), 0.0, tl.exp(rest)), exponent


@triton.jit
def scaled_log(mantissa, exponent):
    return tl.log(mantissa) + exponent * LOG_2


@triton.jit
def add_product(total, exponent, mantissa_a, exponent_a, mantissa_b, exponent_b):
    """total · 2^exponent + a · b, with the larger of the two exponents."""
    exponent_of_product = exponent_a + exponent_b
    common = tl.maximum(exponent, exponent_of_product)
    product = mantissa_a * mantissa_b * power_of_two(exponent_of_product - common)
    return total * power_of_two(exponent - common) + product, common


@triton.jit
def add_rows(totals, exponents):
    """The sums of columns."""
    common = tl.max(exponents, 0)
    return tl.sum(totals * power_of_two(exponents - common[None, :]), 0), common


@triton.jit
def normalised(total, exponent):
    """A sum with a mantissa from 1 to 2."""
    excess = tl.floor(tl.log2(total))
    return total * power_of_two(-excess), exponent + excess


# Zero has the least exponent


@triton.jit
def exponential(score):
    """e^score; a score of −inf gives 0, one that is no number a mantissa that is none."""
    is_zero = score == float("-inf")
    score = tl.where(is_zero, 0.0, score)
    exponent = tl.minimum(tl.maximum(tl.floor(score * LOG2_E), LEAST_EXPONENT), -LEAST_EXPONENT)
    rest = (score - exponent * LOG_2_HIGH) - exponent * LOG_2_LOW
    rest = tl.where(tl.abs(exponent) > MOST_EXACT_EXPONENT, score - score, rest)
    return tl.where(is_zero, 0.0, tl.exp(rest)), tl.where(is_zero, LEAST_EXPONENT, exponent)


@triton.jit
def normalise(mantissa, exponent):
    """The same number with a mantissa from 1 to 2. Sums and products leave it larger or smaller."""
    is_zero = mantissa == 0
    shift = tl.floor(tl.log2(tl.where(is_zero, 1.0, mantissa)))
    return mantissa * tl.exp2(-shift), tl.where(is_zero, LEAST_EXPONENT, exponent + shift)


@triton.jit
def add(mantissa, exponent, other_mantissa, other_exponent):
    """The sum; its mantissa is not normalised."""
    lead = exponent - other_exponent
    small = tl.exp2(-tl.abs(lead))
    total = tl.where(lead > 0, mantissa + other_mantissa * small, mantissa * small + other_mantissa)
    return total, tl.maximum(exponent, other_exponent)
