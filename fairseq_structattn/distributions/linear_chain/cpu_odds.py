"""The recursion of :mod:`.log_odds` on odds, compiled for the CPU: sweeps over the blocks of :mod:`.cpu_binary`.

With F = eᶠ, C = eᶜ, E = eʰ and K = eᴶ the messages are F_{i+1} = E_{i+1} · (1 + F_i K_i) / (1 + F_i), and likewise C
from the right. All numbers are positive and nothing is subtracted, so results are correct to a few units in the last
place. A position takes one exponential and no logarithm, which is several times faster than log-odds. The price is a
limited range: couplings of ±75 nats. Fields may have any size, since two neighbours change the log-odds of a position
by at most 150. A position with a field above 200 is 0 with a probability below e⁻⁵⁰, which a sum with 1 does not show,
so the excess of the field is added to log Z. With a very low field, the odds of a state that does not matter underflow.

LLVM vectorises a loop only if it reads no other row of an array that it writes: the previous message has a row of its
own. The outer loop has to count upwards: step ``done`` from the right is at position n − 1 − done.
"""

import numpy as np

from ..kernels.constants import LOG_2
from ..kernels.numba_compile import inlined, subroutine
from ..kernels.numba_math import EXPONENT_OF_ONE, FRACTION_BITS, copy, exp, log

# Number of chains in a block: a constant, because LLVM vectorises the loops only if it knows the number.
WIDTH = 32
# With these bounds the largest number of the recursions, a product of two odds and four K, stays below 1e308.
LARGEST_FIELD = 200.0
INFINITY = float("inf")
LARGEST_COUPLING = 75.0
FRACTION = (1 << FRACTION_BITS) - 1


@subroutine
def bring_into_range(fields, coupling, usual, total):
    """Clip the fields, adding their excess to log Z ``total``, and return the number of chains whose scores are in
    range; ``usual``, 1.0 on entry, stays so for these chains."""
    for i in range(fields.shape[0]):
        for w in range(WIDTH):
            usable = fields[i, w] < INFINITY and abs(coupling[i, w]) <= LARGEST_COUPLING
            usual[w] = usual[w] if usable else 0.0
            excess = max(fields[i, w] - LARGEST_FIELD, 0.0)
            fields[i, w] -= excess
            total[w] += excess
    return usual.sum()


@subroutine
def exponentiate(coupling, shared):
    """From J to K in place, ``[n+1, WIDTH]``; all edges of a chain have the same K if ``shared``."""
    n = coupling.shape[0] - 1
    coupling[0], coupling[n] = 1, 1
    for i in range(1, n):
        if shared and i > 1:
            copy(coupling[1], coupling[i])
        else:
            for w in range(WIDTH):
                coupling[i, w] = exp(coupling[i, w])


@subroutine
def left_messages(fields, strength, weights, left, total):
    """E and messages F, and log Z = Σ log(1 + F) added to ``total``."""
    n = fields.shape[0]
    message, mantissa, power = np.zeros(WIDTH), np.ones(WIDTH), np.zeros(WIDTH, np.int64)
    for i in range(n):
        for w in range(WIDTH):
            weights[i, w] = exp(fields[i, w])
            message[w] = weights[i, w] * (1 + message[w] * strength[i, w]) / (1 + message[w])
            left[i, w] = message[w]
        # The product of all 1 + F, with its powers of two counted separately, so that one logarithm is enough.
        for w in range(WIDTH):
            bits = np.float64(mantissa[w] * (1 + message[w])).view(np.int64)
            power[w] += (bits >> FRACTION_BITS) - EXPONENT_OF_ONE
            mantissa[w] = np.int64((bits & FRACTION) | (EXPONENT_OF_ONE << FRACTION_BITS)).view(np.float64)
    for w in range(WIDTH):
        total[w] += log(mantissa[w]) + power[w] * LOG_2


@subroutine
def right_messages(strength, weights, left, states):
    """P(z_i = b), and messages C in place of E."""
    n = left.shape[0]
    message = np.zeros(WIDTH)
    for done in range(n):
        i = n - 1 - done
        for w in range(WIDTH):
            arrived = (1 + message[w] * strength[i + 1, w]) / (1 + message[w])
            odds = left[i, w] * arrived
            other = 1 / (1 + odds)
            states[0][i, w], states[1][i, w] = other, odds * other
            message[w] = weights[i, w] * arrived
            weights[i, w] = message[w]


@subroutine
def left_tangents(fields, strength, direction, edge_direction, weights, left, left_tangent):
    """E, messages F, and the derivatives of their logarithms."""
    n = fields.shape[0]
    message, tangent = np.zeros(WIDTH), np.zeros(WIDTH)
    for i in range(n):
        for w in range(WIDTH):
            weights[i, w] = exp(fields[i, w])
            passed, joined, gate = _step(message[w], strength[i, w])
            message[w] = weights[i, w] * passed
            tangent[w] = direction[i, w] + gate * tangent[w] + joined * edge_direction[i, w]
            left[i, w], left_tangent[i, w] = message[w], tangent[w]


@subroutine
def gradients(strength, direction, edge_direction, weights, left, left_tangent, scale, grad_states, grad_coupling):
    """Messages C, the derivatives of their logarithms, and with them the gradients: of the scores of both states."""
    n = left.shape[0]
    message, tangent, rest = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    for done in range(n):
        i = n - 1 - done
        for w in range(WIDTH):
            passed, joined, gate = _step(message[w], strength[i + 1, w])
            arrived = gate * tangent[w] + joined * edge_direction[i + 1, w]
            odds = left[i, w] * passed
            other = 1 / (1 + odds)
            p = odds * other
            both = p * joined
            sensitivity = left_tangent[i, w] + arrived
            grad_states[0][i, w] = other * (scale[w] - p * sensitivity)
            grad_states[1][i, w] = p * (scale[w] + other * sensitivity)
            grad_coupling[i, w] = both * (
                other * left_tangent[i, w] + rest[w] * tangent[w] + (1 - both) * edge_direction[i + 1, w] + scale[w]
            )
            message[w] = weights[i, w] * passed
            tangent[w] = direction[i, w] + arrived
            rest[w] = other


@inlined
def _step(odds, strength):
    """For a message F, the factor (1 + F K) / (1 + F) that it passes on; the probability F K / (1 + F K) of a 1 given
    that the neighbour is 1; and the difference of this to the probability given that the neighbour is 0."""
    joint = odds * strength
    inverse = 1 / ((1 + odds) * (1 + joint))
    return (1 + joint) * (1 + joint) * inverse, joint * (1 + odds) * inverse, (joint - odds) * inverse
