"""exp, log and copies that LLVM turns into vector instructions, for kernels compiled with numba.

Calls of the C library's functions keep a loop from being vectorised. The functions here consist of an argument
reduction and a series, without branches or memory access. Errors are within a few units in the last place of a float64.
"""

import math

import numpy as np

from .constants import LOG2_E
from .numba_compile import inlined

# log 2 as a sum. The first term has 33 significant bits, so its products with integers of 20 bits are exact.
LOG_2_HIGH = 0.6931471804855391
LOG_2_LOW = 7.440617110012397e-11
LEAST_ARGUMENT = -708.0
FRACTION_BITS = 52
EXPONENT_OF_ONE = 1023
BITS_OF_SQRT_HALF = int(np.float64(math.sqrt(0.5)).view(np.int64))


@inlined
def copy(source, target):
    """``target[:] = source`` for rows of equal length. numba would compile an error message for unequal lengths with
    every such assignment, which takes more than a second."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@inlined
def exp(x):
    """eˣ for x ≤ 709, flushed to 0 below −708."""
    bounded = max(x, LEAST_ARGUMENT)
    power = np.floor(bounded * LOG2_E + 0.5)
    r = (bounded - power * LOG_2_HIGH) - power * LOG_2_LOW
    # Σ rᵏ / k! up to k = 13, for |r| ≤ ln 2 / 2.
    series = 1 / 479001600 + r * (1 / 6227020800)
    series = 1 / 39916800 + r * series
    series = 1 / 3628800 + r * series
    series = 1 / 362880 + r * series
    series = 1 / 40320 + r * series
    series = 1 / 5040 + r * series
    series = 1 / 720 + r * series
    series = 1 / 120 + r * series
    series = 1 / 24 + r * series
    series = 1 / 6 + r * series
    series = 1 / 2 + r * series
    series = 1 + r * (1 + r * series)
    scale = np.int64((np.int64(power) + EXPONENT_OF_ONE) << FRACTION_BITS).view(np.float64)
    # NaN fails the comparison and is propagated.
    return 0.0 if x < LEAST_ARGUMENT else series * scale


@inlined
def log(x):
    """log x for positive, finite, normal x; NaN for NaN; unspecified for other x."""
    bits = np.float64(x).view(np.int64)
    power = (bits - BITS_OF_SQRT_HALF) >> FRACTION_BITS
    fraction = np.int64(bits - (power << FRACTION_BITS)).view(np.float64)
    # log fraction = 2 artanh s = 2 Σ s²ᵏ⁺¹ / (2k + 1) up to k = 10, for |s| < 0.172.
    s = (fraction - 1) / (fraction + 1)
    square = s * s
    series = 1 / 19 + square * (1 / 21)
    series = 1 / 17 + square * series
    series = 1 / 15 + square * series
    series = 1 / 13 + square * series
    series = 1 / 11 + square * series
    series = 1 / 9 + square * series
    series = 1 / 7 + square * series
    series = 1 / 5 + square * series
    series = 1 / 3 + square * series
    # The last term is 0, or NaN if x is NaN, whose bits would otherwise be read as a number.
    return power * LOG_2_HIGH + (power * LOG_2_LOW + 2 * s * (1 + square * series)) + 0 * x
