"""Positive numbers of unlimited range in Triton kernels: mantissa · 2^exponent. Loaded by the ``cuda.py`` modules.

A weight is the exponential of a score. float32 cannot represent e^±150, and its logarithm only to 8e-6; a mantissa
always has 24 bits. Sums and products of positive numbers then keep a relative accuracy of about 1e-7. A sum takes one
exponential, whereas a sum of logarithms takes an exponential and a logarithm.

Exponents are whole numbers stored as floating point numbers. Mantissas of results are between 1 and 2, or 0 for zero.
The exponent of zero differs between two sets of functions. It is −∞ in those for sums of many terms: a term never has
a larger exponent than the sum, so every power of two needed is at most 1. It is :data:`LEAST_EXPONENT` in those that
also subtract exponents, for elimination.
"""

import triton
import triton.language as tl

from . import constants

LOG_2, LOG2_E = tl.constexpr(constants.LOG_2), tl.constexpr(constants.LOG2_E)
# log 2 in two parts (Cody & Waite 1980). The first has 9 bits: its products with exponents of up to 15 bits are exact.
LOG_2_HIGH = tl.constexpr(0.693359375)
LOG_2_LOW = tl.constexpr(-2.1219444005469057e-4)
# The exponent of zero, below all others; sums of it are still finite.
LEAST_EXPONENT = tl.constexpr(-(2.0**100))
# Beyond this exponent, float32 with its 24 bits does not distinguish neighbouring integers.
MOST_EXACT_EXPONENT = tl.constexpr(2.0**23)


# Functions for which zero has the exponent −∞


@triton.jit
def power_of_two(exponent):
    """2^exponent for a whole exponent of at most 1, exactly; 0 where it is too small to be represented.

    Adding 1.5 · 2^(bits of the mantissa) leaves the exponent in the last bits of the sum, which are then shifted into
    place. Exponents that come from zeros give 0 as well: +∞, because its last bits are 0, and −∞ − (−∞), because
    ``tl.maximum`` ignores NaN.
    """
    if exponent.dtype == tl.float64:
        bits = (tl.maximum(exponent, -1023.0) + (6755399441055744.0 + 1023.0)).to(tl.int64, bitcast=True)
        return (bits << 52).to(tl.float64, bitcast=True)
    else:
        bits = (tl.maximum(exponent, -127.0) + (12582912.0 + 127.0)).to(tl.int32, bitcast=True)
        return (bits << 23).to(tl.float32, bitcast=True)


@triton.jit
def scaled_exp(score):
    """exp(score); 0 for scores whose exponent is −∞, below −2.3e38 in float32."""
    exponent = tl.floor(score / LOG_2)
    rest = (score - exponent * LOG_2_HIGH) - exponent * LOG_2_LOW
    # For huge scores the difference is rounding error alone.
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
    """The sum of each column."""
    common = tl.max(exponents, 0)
    return tl.sum(totals * power_of_two(exponents - common[None, :]), 0), common


@triton.jit
def normalised(total, exponent):
    """The same number with a mantissa between 1 and 2."""
    excess = tl.floor(tl.log2(total))
    return total * power_of_two(-excess), exponent + excess


# Functions for which zero has the exponent LEAST_EXPONENT


@triton.jit
def exponential(score):
    """e^score; 0 for a score of −inf; a NaN mantissa for NaN."""
    is_zero = score == float("-inf")
    score = tl.where(is_zero, 0.0, score)
    exponent = tl.minimum(tl.maximum(tl.floor(score * LOG2_E), LEAST_EXPONENT), -LEAST_EXPONENT)
    rest = (score - exponent * LOG_2_HIGH) - exponent * LOG_2_LOW
    rest = tl.where(tl.abs(exponent) > MOST_EXACT_EXPONENT, score - score, rest)
    return tl.where(is_zero, 0.0, tl.exp(rest)), tl.where(is_zero, LEAST_EXPONENT, exponent)


@triton.jit
def normalise(mantissa, exponent):
    """The same number with a mantissa between 1 and 2, outside of which sums and products may leave it."""
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
