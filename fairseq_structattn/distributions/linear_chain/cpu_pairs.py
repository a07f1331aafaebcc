"""Chains of two states by messages that are pairs of probabilities, compiled for the CPU.

For the chains that are out of the range of :mod:`.cpu_odds`, such as those with impossible pairs of states. With the
weights w_i(a, b) of the edge into position i and e_i(b) of its states, each divided by the larger or largest of its
kind, the messages

    m_i(b) = e_i(b) Σ_a m_{i-1}(a) w_i(a, b) / s_i                    from the left,
    r_i(a) ∝ Σ_b w_{i+1}(a, b) e_{i+1}(b) r_{i+1}(b)                  from the right, without position i,

add up to 1. log Z is the sum of all log s_i and of what was divided by, and P(z_i = b) ∝ m_i(b) r_i(b). A weight of 0
is an impossible state or pair. Nothing is subtracted. A chain ``fits`` if no other number is so small that a product
could underflow; :mod:`.cpu_states` computes those that do not.

The gradient is the product of the covariance of the parts with the upstream gradient g. It is computed from ḟ and ḃ,
the derivatives in direction g of log (m_i(1) / m_i(0)) and of log (r_i(1) / r_i(0)). With G the part of g for edges,
β_b = P(z_{i-1} = 1 | z_i = b) given the left side and α_a = P(z_{i+1} = 1 | z_i = a),

    ḟ_i = g_i + (β_1 − β_0) ḟ_{i-1} + β_1 G_11 + (1 − β_1) G_01 − β_0 G_10 − (1 − β_0) G_00,
    ḃ_i = (α_1 − α_0) (g_{i+1} + ḃ_{i+1}) + α_1 G_11 + (1 − α_1) G_10 − α_0 G_01 − (1 − α_0) G_00.

A block of chains is treated at once, with positions first (see :mod:`.cpu_binary`).
"""

import numpy as np

from ..kernels.constants import LOG_2
from ..kernels.numba_compile import inlined, kernel, subroutine
from ..kernels.numba_math import EXPONENT_OF_ONE, FRACTION_BITS, exp, log
from ..semirings import NEGATIVE_INFINITY

WIDTH = 32
PAIRS = 4  # of states, in the order 00, 01, 10, 11
# The product of a message and two weights is at least 1e-300.
SMALLEST_WEIGHT, SMALLEST_MESSAGE = 1e-50, 1e-200
FRACTION = (1 << FRACTION_BITS) - 1


@kernel
def expectations(first, stride, items, unary, tables, lengths, log_partition, marginals, edges, fits):
    """log Z ``[chains]``, marginals in the shape of ``unary`` and, unless it is empty, edges ``[chains, n-1, 2, 2]`` of
    the listed chains, and whether they fit ``[chains]``. Those without any sequence have probabilities 0.

    ``unary`` is ``[chains, n, 1]``, of state 1, or ``[chains, n, 2]``.
    """
    n = unary.shape[1]
    states, weights, left = two(n), _four(n), two(n)
    posterior, pairs = two(n), _four(n)
    total, fit = np.empty(WIDTH), np.empty(WIDTH)
    for start in range(first * WIDTH, len(items), stride * WIDTH):
        _load(start, items, unary, tables, lengths, states, weights, total, fit)
        _left_messages(states, weights, left, total, fit)
        _right_messages(states, weights, left, posterior, pairs, fit)
        for w in range(min(WIDTH, len(items) - start)):
            item = items[start + w]
            fits[item] = fit[w] > 0
            log_partition[item] = total[w]
            store_states(posterior, w, lengths[item], marginals[item])
            for i in range(edges.shape[1] if edges.shape[0] > 0 else 0):
                for pair in range(PAIRS):
                    edges[item, i, pair >> 1, pair & 1] = pairs[pair][i + 1, w] if i + 1 < lengths[item] else 0.0


@kernel
def gradient(
    first, stride, items, unary, tables, lengths,
    grad_log_partition, grad_marginals, grad_edges, grad_unary, grad_tables,
):  # fmt: skip
    """Gradients of the listed chains with respect to ``unary`` and to the tables. Upstream gradients may be empty."""
    n = unary.shape[1]
    states, weights, left = two(n), _four(n), two(n)
    direction, edge_direction, tangents = np.empty((n, WIDTH)), _four(n), np.empty((n, WIDTH))
    grad_states, grad_pairs = two(n), _four(n)
    total, fit, scale = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH)
    for start in range(first * WIDTH, len(items), stride * WIDTH):
        _load(start, items, unary, tables, lengths, states, weights, total, fit)
        _left_messages(states, weights, left, total, fit)
        _load_direction(
            start, items, lengths, grad_log_partition, grad_marginals, grad_edges, scale, direction, edge_direction
        )
        _left_tangents(weights, left, direction, edge_direction, tangents)
        _gradients(states, weights, left, direction, edge_direction, tangents, scale, grad_states, grad_pairs)
        for w in range(min(WIDTH, len(items) - start)):
            item = items[start + w]
            length = lengths[item] if total[w] > NEGATIVE_INFINITY else 0
            store_states(grad_states, w, length, grad_unary[item])
            grad_tables[item] = 0
            for i in range(length - 1):
                table = grad_tables[item, 0 if grad_tables.shape[1] == 1 else i]
                for pair in range(PAIRS):
                    table[pair >> 1, pair & 1] += grad_pairs[pair][i + 1, w]


# Parts of the kernels, for a block of chains


@inlined
def two(n):
    # LLVM vectorises no loop that writes two rows of one array.
    return np.empty((n, WIDTH)), np.empty((n, WIDTH))


@inlined
def _four(n):
    return np.empty((n, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))


@inlined
def store_states(rows, w, length, matrix):
    """Store what the states of a chain have, ``[n, 2, WIDTH]`` and 0 for state 1 in padding, in ``[n, 1 or 2]``: that
    of state 1, or of both."""
    if matrix.shape[1] == 1:
        for i in range(matrix.shape[0]):
            matrix[i, 0] = rows[1][i, w]
    else:
        for i in range(matrix.shape[0]):
            matrix[i, 0], matrix[i, 1] = rows[0][i, w] if i < length else 0.0, rows[1][i, w]


@inlined
def load_difference(matrix, length, rows, w):
    """What state 1 has less what state 0 has, of ``[n, 1 or 2]``, in front of padding."""
    if matrix.shape[1] == 1:
        for i in range(length):
            rows[i, w] = matrix[i, 0]
    else:
        for i in range(length):
            rows[i, w] = matrix[i, 1] - matrix[i, 0]


@subroutine
def _load(start, items, unary, tables, lengths, states, weights, total, fit):
    """Weights of states and of edges; ``total``, the logarithm of what they were divided by. Positions in padding have
    the state 0, and their edges the weight 1, as has the one in front of the first position."""
    total[:], fit[:] = 0, 1
    length, largest = np.empty(WIDTH, np.int64), np.empty(WIDTH)
    for w in range(WIDTH):
        item = items[min(start + w, len(items) - 1)]
        length[w] = lengths[item]
        for i in range(unary.shape[1]):
            states[0][i, w] = unary[item, i, 0] if i < length[w] and unary.shape[2] == 2 else 0.0
            states[1][i, w] = unary[item, i, unary.shape[2] - 1] if i < length[w] else NEGATIVE_INFINITY
    for i in range(unary.shape[1]):
        for w in range(WIDTH):
            largest[w] = _finite(max(states[0][i, w], states[1][i, w]))
            total[w] += largest[w]
        _to_weights(i, largest, states, fit)
    if tables.shape[0] == 1 and tables.shape[1] == 1:
        _load_one_table(tables[0, 0], length, weights, total, fit)
    else:
        _load_tables(start, items, tables, length, weights, total, fit)


@inlined
def _load_one_table(table, length, weights, total, fit):
    for w in range(WIDTH):
        for pair in range(PAIRS):
            weights[pair][0, w] = table[pair >> 1, pair & 1]
        total[w] += max(length[w] - 1, 0) * _largest(table)
    _to_weights(0, np.full(WIDTH, _largest(table)), weights, fit)
    for pair in range(PAIRS):
        rows, weight = weights[pair], weights[pair][0, 0]
        for i in range(rows.shape[0]):
            for w in range(WIDTH):
                rows[i, w] = weight if (0 < i) & (i < length[w]) else 1.0


@inlined
def _load_tables(start, items, tables, length, weights, total, fit):
    for w in range(WIDTH):
        item = 0 if tables.shape[0] == 1 else items[min(start + w, len(items) - 1)]
        for i in range(weights[0].shape[0]):
            edge = 0 if tables.shape[1] == 1 else max(i - 1, 0)
            for pair in range(PAIRS):
                weights[pair][i, w] = tables[item, edge, pair >> 1, pair & 1] if 0 < i < length[w] else 0.0
    largest = np.empty(WIDTH)
    for i in range(weights[0].shape[0]):
        for w in range(WIDTH):
            from_zero, from_one = max(weights[0][i, w], weights[1][i, w]), max(weights[2][i, w], weights[3][i, w])
            largest[w] = _finite(max(from_zero, from_one))
            total[w] += largest[w]
        _to_weights(i, largest, weights, fit)


@inlined
def _largest(table):
    return _finite(max(max(table[0, 0], table[0, 1]), max(table[1, 0], table[1, 1])))


@inlined
def _finite(largest):
    return largest if largest > NEGATIVE_INFINITY else 0.0


@inlined
def _to_weights(i, largest, scores, fit):
    """exp(score − largest); what is neither impossible nor large enough (nor a number) does not fit."""
    for rows in scores:
        for w in range(WIDTH):
            score = rows[i, w]
            weight = exp(score - largest[w])
            rows[i, w] = weight
            fit[w] = fit[w] if (weight >= SMALLEST_WEIGHT) | (score == NEGATIVE_INFINITY) else 0.0


@inlined
def _inverse(mass):
    return 1 / mass if mass > 0 else 0.0


@inlined
def _keeps(probability):
    return (probability == 0) | (probability >= SMALLEST_MESSAGE)


@subroutine
def _left_messages(states, weights, left, total, fit):
    """Messages from the left, and log Z added to ``total``."""
    zero, one, mantissa, power = np.ones(WIDTH), np.zeros(WIDTH), np.ones(WIDTH), np.zeros(WIDTH, np.int64)
    for i in range(states[0].shape[0]):
        for w in range(WIDTH):
            to_zero = states[0][i, w] * (zero[w] * weights[0][i, w] + one[w] * weights[2][i, w])
            to_one = states[1][i, w] * (zero[w] * weights[1][i, w] + one[w] * weights[3][i, w])
            mass = to_zero + to_one
            zero[w], one[w] = to_zero * _inverse(mass), to_one * _inverse(mass)
            left[0][i, w], left[1][i, w] = zero[w], one[w]
            fit[w] = fit[w] if _keeps(zero[w]) & _keeps(one[w]) else 0.0
            # The product of all masses, with its powers of two counted separately, so that one logarithm is enough.
            bits = np.float64(mantissa[w] * mass).view(np.int64)
            power[w] += (bits >> FRACTION_BITS) - EXPONENT_OF_ONE
            mantissa[w] = np.int64((bits & FRACTION) | (EXPONENT_OF_ONE << FRACTION_BITS)).view(np.float64)
    for w in range(WIDTH):
        # Without any sequence, some mass is 0, and so are all messages behind it.
        possible = zero[w] + one[w] > 0
        total[w] = total[w] + log(mantissa[w]) + power[w] * LOG_2 if possible else NEGATIVE_INFINITY


@subroutine
def _right_messages(states, weights, left, posterior, pairs, fit):
    """P(z_i = b), and edge marginals at the right end of each edge."""
    n = states[0].shape[0]
    zero, one = np.full(WIDTH, 0.5), np.full(WIDTH, 0.5)
    for done in range(n):
        i = n - 1 - done
        before = max(i - 1, 0)
        for w in range(WIDTH):
            at_zero, at_one = left[0][i, w] * zero[w], left[1][i, w] * one[w]
            inverse = _inverse(at_zero + at_one)
            posterior[0][i, w], posterior[1][i, w] = at_zero * inverse, at_one * inverse
            zero[w], one[w] = states[0][i, w] * zero[w], states[1][i, w] * one[w]
            w00, w01 = weights[0][i, w] * zero[w], weights[1][i, w] * one[w]
            w10, w11 = weights[2][i, w] * zero[w], weights[3][i, w] * one[w]
            p00, p01 = left[0][before, w] * w00, left[0][before, w] * w01
            p10, p11 = left[1][before, w] * w10, left[1][before, w] * w11
            inverse = _inverse(p00 + p01 + p10 + p11)
            pairs[0][i, w], pairs[1][i, w] = p00 * inverse, p01 * inverse
            pairs[2][i, w], pairs[3][i, w] = p10 * inverse, p11 * inverse
            inverse = _inverse(w00 + w01 + w10 + w11)
            zero[w], one[w] = (w00 + w01) * inverse, (w10 + w11) * inverse
            fit[w] = fit[w] if _keeps(zero[w]) & _keeps(one[w]) else 0.0


@subroutine
def _load_direction(
    start, items, lengths, grad_log_partition, grad_marginals, grad_edges, scale, direction, edge_direction
):  # fmt: skip
    """The upstream gradients of a block; those of an edge at its right end. Padding is not read."""
    direction[:], scale[:] = 0, 0
    for pair in range(PAIRS):
        edge_direction[pair][:] = 0
    for w in range(min(WIDTH, len(items) - start)):
        item = items[start + w]
        if grad_log_partition.shape[0] > 0:
            scale[w] = grad_log_partition[item]
        if grad_marginals.shape[0] > 0:
            load_difference(grad_marginals[item], lengths[item], direction, w)
        for i in range(lengths[item] - 1 if grad_edges.shape[0] > 0 else 0):
            table = grad_edges[item, 0 if grad_edges.shape[1] == 1 else i]
            for pair in range(PAIRS):
                edge_direction[pair][i + 1, w] = table[pair >> 1, pair & 1]


@subroutine
def _left_tangents(weights, left, direction, edge_direction, tangents):
    """ḟ."""
    tangent = np.zeros(WIDTH)
    for i in range(weights[0].shape[0]):
        before = max(i - 1, 0)
        for w in range(WIDTH):
            zero, one = left[0][before, w], left[1][before, w]
            tangent[w] = direction[i, w] + _passed(
                zero * weights[0][i, w], one * weights[2][i, w], zero * weights[1][i, w], one * weights[3][i, w],
                tangent[w], edge_direction[0][i, w], edge_direction[2][i, w], edge_direction[1][i, w],
                edge_direction[3][i, w],
            )  # fmt: skip
            tangents[i, w] = tangent[w]


@inlined
def _passed(w00, w01, w10, w11, tangent, g00, g01, g10, g11):
    """The derivative of the log-odds of a message behind an edge. The neighbour in front of it has state b with a
    probability proportional to w_ab if the state behind it is a."""
    inverse0, inverse1 = _inverse(w00 + w01), _inverse(w10 + w11)
    under_zero, under_one = w01 * inverse0, w11 * inverse1
    beside_zero, beside_one = w00 * inverse0, w10 * inverse1
    passed = (under_one - under_zero) * tangent
    return passed + under_one * g11 + beside_one * g10 - under_zero * g01 - beside_zero * g00


@subroutine
def _gradients(states, weights, left, direction, edge_direction, tangents, scale, grad_states, grad_pairs):
    """ḃ, and with it the gradients: of the scores of both states, and of edges, at the right end of each."""
    n = states[0].shape[0]
    zero, one, tangent = np.full(WIDTH, 0.5), np.full(WIDTH, 0.5), np.zeros(WIDTH)
    for done in range(n):
        i = n - 1 - done
        before = max(i - 1, 0)
        for w in range(WIDTH):
            at_zero, at_one = left[0][i, w] * zero[w], left[1][i, w] * one[w]
            inverse = _inverse(at_zero + at_one)
            p, other, sensitivity = at_one * inverse, at_zero * inverse, tangents[i, w] + tangent[w]
            grad_states[0][i, w] = other * (scale[w] - p * sensitivity)
            grad_states[1][i, w] = p * (scale[w] + other * sensitivity)
            tangent[w] += direction[i, w]
            zero[w], one[w] = states[0][i, w] * zero[w], states[1][i, w] * one[w]
            w00, w01 = weights[0][i, w] * zero[w], weights[1][i, w] * one[w]
            w10, w11 = weights[2][i, w] * zero[w], weights[3][i, w] * one[w]
            g00, g01, g10, g11 = (
                edge_direction[0][i, w], edge_direction[1][i, w], edge_direction[2][i, w], edge_direction[3][i, w],
            )  # fmt: skip
            p00, p01 = left[0][before, w] * w00, left[0][before, w] * w01
            p10, p11 = left[1][before, w] * w10, left[1][before, w] * w11
            inverse = _inverse(p00 + p01 + p10 + p11)
            p00, p01, p10, p11 = p00 * inverse, p01 * inverse, p10 * inverse, p11 * inverse
            on_left = tangents[before, w]
            x01, x10, x11 = g01 + tangent[w], g10 + on_left, g11 + on_left + tangent[w]
            rest = scale[w] - (p00 * g00 + p01 * x01 + p10 * x10 + p11 * x11)
            grad_pairs[0][i, w], grad_pairs[1][i, w] = p00 * (g00 + rest), p01 * (x01 + rest)
            grad_pairs[2][i, w], grad_pairs[3][i, w] = p10 * (x10 + rest), p11 * (x11 + rest)
            tangent[w] = _passed(w00, w01, w10, w11, tangent[w], g00, g01, g10, g11)
            inverse = _inverse(w00 + w01 + w10 + w11)
            zero[w], one[w] = (w00 + w01) * inverse, (w10 + w11) * inverse
