"""Sums over the ways to divide spans, compiled for the CPU: what recursions over projective and binary trees share.

**Charts.** The span (i, i + width) of nodes 0 to ``last`` is at ``width · stride + i``. All spans of one width are
independent, and the terms of a sum lie at fixed distances, so eight spans are computed at once in a vector register. A
chart is zero outside its triangle, and each row ends in at least eight zeros. So spans that would end after the
sentence, or begin before it (in the end of the row above), read zeros. The charts of a sentence follow each other in
one flat array.

**Algebras.** The recursions are generic in a step that adds products to eight sums. The step determines what is
computed, on which arrays: numbers; scaled numbers, each with its own exponent (``unit``); either of these with their
derivatives in some direction; or best scores.
"""

import math

import numpy as np

from .constants import LOG_2
from .numba_compile import subroutine
from .numba_math import LOG_2_HIGH, LOG_2_LOW
from .numba_simd import LANES, add, fill, load, maximum, multiply, multiply_add, power_of_two, store, subtract

NEGATIVE_INFINITY = float("-inf")
LARGEST_EXPONENT = 400
LARGEST_VALUE = 2.0**LARGEST_EXPONENT


# Layout


@subroutine
def stride_of(last):
    # An odd number of cache lines, because otherwise a walk down a column would use few sets of the cache.
    return ((last + 2 * LANES) // LANES | 1) * LANES


@subroutine
def chart_size(last):
    return (last + 1) * stride_of(last)


# Algebras: ``step(charts, target, a, a_step, b, b_step, count)`` adds to each of the eight spans at ``target`` the
# products of the ``count`` pairs at ``a + k · a_step`` and ``b + k · b_step``.


@subroutine
def add_products(charts, target, a, a_step, b, b_step, count):
    """``(values,)``: numbers."""
    (values,) = charts
    total, other = load(values, target), fill(0.0)
    for _ in range(count // 2):
        total = multiply_add(load(values, a), load(values, b), total)
        other = multiply_add(load(values, a + a_step), load(values, b + b_step), other)
        a += 2 * a_step
        b += 2 * b_step
    if count % 2:
        total = multiply_add(load(values, a), load(values, b), total)
    store(values, target, add(total, other))


@subroutine
def add_dual(charts, target, a, a_step, b, b_step, count):
    """``(values, tangents)``: numbers and their derivatives."""
    values, tangents = charts
    total, change, other = load(values, target), load(tangents, target), fill(0.0)
    for _ in range(count):
        value_a, value_b = load(values, a), load(values, b)
        total = multiply_add(value_a, value_b, total)
        change = multiply_add(load(tangents, a), value_b, change)
        other = multiply_add(value_a, load(tangents, b), other)
        a += a_step
        b += b_step
    store(values, target, total)
    store(tangents, target, add(change, other))


@subroutine
def add_scaled(charts, target, a, a_step, b, b_step, count):
    """``(values, units)``: numbers value · 2^unit. The unit of the target is given, and at least that of any term."""
    values, units = charts
    total, unit = load(values, target), load(units, target)
    for _ in range(count):
        product = multiply(load(values, a), load(values, b))
        total = multiply_add(product, _shift(units, a, b, unit), total)
        a += a_step
        b += b_step
    store(values, target, total)


@subroutine
def add_scaled_dual(charts, target, a, a_step, b, b_step, count):
    """``(values, units, tangents)``: scaled numbers and their derivatives, with the same unit."""
    values, units, tangents = charts
    total, change, unit = load(values, target), load(tangents, target), load(units, target)
    for _ in range(count):
        shift = _shift(units, a, b, unit)
        value_a, value_b = load(values, a), multiply(load(values, b), shift)
        total = multiply_add(value_a, value_b, total)
        change = multiply_add(load(tangents, a), value_b, change)
        change = multiply_add(value_a, multiply(load(tangents, b), shift), change)
        a += a_step
        b += b_step
    store(values, target, total)
    store(tangents, target, change)


@subroutine
def sum_scaled(charts, target, a, a_step, b, b_step, count):
    """``(values, units)``: set an empty target to a sum of products, with the largest unit of its terms."""
    values, units = charts
    take_best((units,), target, a, a_step, b, b_step, count)
    add_scaled(charts, target, a, a_step, b, b_step, count)
    for span in range(target, target + LANES):
        # A value is a sum over trees, whose number may overflow a float64.
        if values[span] > LARGEST_VALUE:
            values[span] /= LARGEST_VALUE
            units[span] += LARGEST_EXPONENT


@subroutine
def sum_scaled_dual(charts, target, a, a_step, b, b_step, count):
    """``(values, units, tangents)``: :func:`sum_scaled` with derivatives."""
    values, units, tangents = charts
    take_best((units,), target, a, a_step, b, b_step, count)
    add_scaled_dual(charts, target, a, a_step, b, b_step, count)
    for span in range(target, target + LANES):
        if values[span] > LARGEST_VALUE:
            values[span] /= LARGEST_VALUE
            tangents[span] /= LARGEST_VALUE
            units[span] += LARGEST_EXPONENT


@subroutine
def take_best(charts, target, a, a_step, b, b_step, count):
    """``(scores,)``: the largest sum of a pair instead of the sum of products."""
    (scores,) = charts
    best = fill(NEGATIVE_INFINITY)
    for _ in range(count):
        best = maximum(add(load(scores, a), load(scores, b)), best)
        a += a_step
        b += b_step
    store(scores, target, best)


@subroutine
def _shift(units, a, b, unit):
    """The factor that converts the product of a and b to ``unit``, which is at least its own."""
    return power_of_two(add(subtract(load(units, b), unit), load(units, a)))


# Into the charts


@subroutine
def scaled_exp(score):
    """exp(score) as value · 2^unit with a value between 1 and 2."""
    if score == NEGATIVE_INFINITY:
        return 0.0, NEGATIVE_INFINITY
    unit = np.floor(score / LOG_2)
    rest = (score - unit * LOG_2_HIGH) - unit * LOG_2_LOW
    # For huge scores the difference is rounding error alone.
    return math.exp(min(max(rest, 0.0), LOG_2)), unit


# Structures from the charts: ``choose(charts, a, a_step, b, b_step, count, uniform)`` picks a term of a sum.


@subroutine
def push(stack, waiting, chart, width, start):
    # A single node needs no choice.
    if width == 0:
        return waiting
    stack[waiting, 0], stack[waiting, 1], stack[waiting, 2] = chart, width, start
    return waiting + 1


@subroutine
def best_split(charts, a, a_step, b, b_step, count, uniform):
    (scores,) = charts
    best = 0
    for k in range(1, count):
        if scores[a + k * a_step] + scores[b + k * b_step] > scores[a + best * a_step] + scores[b + best * b_step]:
            best = k
    return best


@subroutine
def draw_split(charts, a, a_step, b, b_step, count, uniform):
    values, units = charts
    top = NEGATIVE_INFINITY
    for k in range(count):
        top = max(top, units[a + k * a_step] + units[b + k * b_step])
    total = 0.0
    for k in range(count):
        total += _product(values, units, a + k * a_step, b + k * b_step, top)
    choice, rest = 0, uniform * total
    for k in range(count):
        product = _product(values, units, a + k * a_step, b + k * b_step, top)
        if product > 0 and rest >= 0:
            choice = k
        rest -= product
    return choice


@subroutine
def _product(values, units, a, b, top):
    return values[a] * values[b] * 2.0 ** (units[a] + units[b] - top)
