"""Positive numbers of any size for Triton kernels: x = mantissa · 2^exponent, each of the two a floating point number.

A weight is the exponential of a score. Where float32 holds the logarithm of e^±150 to 8e-6 at best, and the number
itself not at all, a mantissa always has 24 bits. Sums and products of positive numbers then keep a relative accuracy of
some 1e-7, and a sum takes one exponential, where one of logarithms takes an exponential and a logarithm.

Exponents are whole numbers. Zero has the mantissa 0, and an exponent below all others, so that it needs no care.
"""

import triton
import triton.language as tl

# That of zero; products of it are still finite.
LEAST_EXPONENT = tl.constexpr(-(2.0**100))
# Beyond this, floating point numbers of 24 bits do not tell one exponent from the next.
MOST_EXACT_EXPONENT = tl.constexpr(2.0**23)
LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
# The same in two parts (Cody & Waite 1980). The first has 9 bits: its product with an exponent of up to 15 is exact.
LN2_HIGH = tl.constexpr(0.693359375)
LN2_LOW = tl.constexpr(-2.1219444005469057e-4)


@triton.jit
def exponential(score):
    """e^score; a score of −inf gives 0, one that is no number a mantissa that is none."""
    is_zero = score == float("-inf")
    score = tl.where(is_zero, 0.0, score)
    exponent = tl.minimum(tl.maximum(tl.floor(score * LOG2_E), LEAST_EXPONENT), -LEAST_EXPONENT)
    rest = (score - exponent * LN2_HIGH) - exponent * LN2_LOW
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
