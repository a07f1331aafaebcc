"""Numbers value · 2^unit of unlimited range inside Triton kernels. Loaded by the ``cuda.py`` modules.

Units are whole numbers, kept as floats for the sake of −∞, the unit of zero. Values of results are from 1 to 2 (zero
has 0), so that no product that adds to a sum has a unit above the sum's, and every power of two needed is at most 1.
"""

import triton
import triton.language as tl

# log 2 in two parts; multiples of the first are exact.
LOG_2 = tl.constexpr(0.6931471805599453)
LOG_2_HIGH = tl.constexpr(0.693359375)
LOG_2_LOW = tl.constexpr(-2.1219444005469057e-4)


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
    """exp(score) as value and unit; a score whose unit is no finite number, below −2.3e38 in float32, gives 0."""
    unit = tl.floor(score / LOG_2)
    rest = (score - unit * LOG_2_HIGH) - unit * LOG_2_LOW
    # Of huge scores, the difference is all rounding error.
    rest = tl.clamp(rest, 0.0, LOG_2, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(unit == float("-inf"), 0.0, tl.exp(rest)), unit


@triton.jit
def scaled_log(value, unit):
    return tl.log(value) + unit * LOG_2


@triton.jit
def add_product(total, unit, value_a, unit_a, value_b, unit_b):
    """total · 2^unit + a · b, in the larger of the two units."""
    unit_of_product = unit_a + unit_b
    common = tl.maximum(unit, unit_of_product)
    product = value_a * value_b * power_of_two(unit_of_product - common)
    return total * power_of_two(unit - common) + product, common


@triton.jit
def add_rows(totals, units):
    """The sums of columns."""
    common = tl.max(units, 0)
    return tl.sum(totals * power_of_two(units - common[None, :]), 0), common


@triton.jit
def normalised(total, unit):
    """A sum with a value from 1 to 2."""
    excess = tl.floor(tl.log2(total))
    return total * power_of_two(-excess), unit + excess
