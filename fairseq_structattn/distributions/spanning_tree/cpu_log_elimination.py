"""Elimination of words in log space, compiled for the CPU: for sentences whose weights leave the range of float64.

Layout and order are those of :mod:`.bounded_elimination`, but the tape holds logarithms, and w(h→v) in place of the
share.
Marginals and their tangents are multiplied only with fractions between 0 and 1,

    σ = q(h) w(v→m) / w(h→m),

the part of the weight w(h→m) on the tape that came through v. Let a be the probability of an arc in the reduced
sentence in which the first of its ends is eliminated. The reverse step is

    a(v→m) = Σ_h σ a(h→m),    a(h→v) = Σ_m σ a(h→m) + q(h) (1 − Σ_hm σ a(h→m)),

and the marginal of an arc is a times the fraction of its weight on the tape that is its original weight.
"""

import math

import numpy as np

from ..kernels.numba_compile import kernel
from .bounded_elimination import arrange

# The exponential of anything less is 0 in float64.
SMALLEST_LOGARITHM = -745.0


@kernel
def total(first, stride, items, lengths, single_root, log_weights, tape, pivots, log_partition):
    """log Z ``[batch]`` of the listed sentences, −inf for a sentence without any tree.

    The other kernels need ``tape`` ``[batch, n+1, n]`` and ``pivots`` ``[batch, n]``.
    """
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, d = tape[i], pivots[i]
        arrange(log_weights[i], n, w)
        total = 0.0
        for v in range(n):
            counted = n + 1 if v == n - 1 or not single_root else n
            best = -np.inf
            for h in range(v + 1, counted):
                best = max(best, w[h, v])
            mass = 0.0
            for h in range(v + 1, counted):
                if w[h, v] != -np.inf:
                    mass += math.exp(w[h, v] - best)
            if mass == 0:
                total = -np.inf
                break
            d[v] = best + math.log(mass)
            total += d[v]
            for h in range(v + 1, n + 1):
                share = w[h, v] - d[v]
                for m in range(v + 1, n):
                    through, direct = share + w[v, m], w[h, m]
                    larger, smaller = max(through, direct), min(through, direct)
                    if smaller - larger > SMALLEST_LOGARITHM:
                        larger += math.log1p(math.exp(smaller - larger))
                    w[h, m] = larger
        log_partition[i] = total


@kernel
def expectations(first, stride, items, lengths, single_root, log_weights, tape, pivots, adjoint, marginals):
    """Marginals ``[batch, n+1, n]``, 0 on entry, of the listed sentences, which have trees.

    :func:`gradient` needs ``adjoint``, in the same shape.
    """
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, a, d = tape[i], adjoint[i], pivots[i]
        a[:] = 0
        for v in range(n - 1, -1, -1):
            counted = n + 1 if v == n - 1 or not single_root else n
            routed = 0.0
            for h in range(v + 1, n + 1):
                share = w[h, v] - d[v]
                for m in range(v + 1, n):
                    exponent = share + w[v, m] - w[h, m]
                    if h != m and exponent > SMALLEST_LOGARITHM:
                        part = a[h, m] * math.exp(exponent)
                        a[h, v] += part
                        a[v, m] += part
                routed += a[h, v]
            for h in range(v + 1, counted):
                a[h, v] += math.exp(w[h, v] - d[v]) * (1 - routed)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                if log_weights[i, h, m] != -np.inf:
                    probability = a[row, m] * math.exp(log_weights[i, h, m] - w[row, m])
                    marginals[i, h, m] = min(max(probability, 0.0), 1.0)


@kernel
def gradient(first, stride, items, lengths, single_root, log_weights, tape, pivots, adjoint, upstream, result):
    """Derivative ``[batch, n+1, n]`` of the marginals in the direction ``upstream``, of the listed sentences."""
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, a, d = tape[i], adjoint[i], pivots[i]
        # Tangents of the logarithms on the tape, of the probabilities a and of log d.
        w_dot, a_dot, d_dot = np.zeros((n + 1, n)), np.zeros((n + 1, n)), np.zeros(n)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                if log_weights[i, h, m] != -np.inf:
                    w_dot[row, m] = upstream[i, h, m] * math.exp(log_weights[i, h, m] - w[row, m])
        for v in range(n):
            counted = n + 1 if v == n - 1 or not single_root else n
            for h in range(v + 1, counted):
                d_dot[v] += math.exp(w[h, v] - d[v]) * w_dot[h, v]
            for h in range(v + 1, n + 1):
                share, share_dot = w[h, v] - d[v], w_dot[h, v] - d_dot[v]
                for m in range(v + 1, n):
                    exponent = share + w[v, m] - w[h, m]
                    if h != m and exponent > SMALLEST_LOGARITHM:
                        w_dot[h, m] += math.exp(exponent) * (share_dot + w_dot[v, m])
        for v in range(n - 1, -1, -1):
            counted = n + 1 if v == n - 1 or not single_root else n
            routed, routed_dot = 0.0, 0.0
            for h in range(v + 1, n + 1):
                share, share_dot = w[h, v] - d[v], w_dot[h, v] - d_dot[v]
                for m in range(v + 1, n):
                    exponent = share + w[v, m] - w[h, m]
                    if h != m and exponent > SMALLEST_LOGARITHM:
                        fraction = math.exp(exponent)
                        part = a[h, m] * fraction
                        part_dot = a_dot[h, m] * fraction + part * (share_dot + w_dot[v, m] - w_dot[h, m])
                        a_dot[h, v] += part_dot
                        a_dot[v, m] += part_dot
                        routed += part
                        routed_dot += part_dot
            for h in range(v + 1, counted):
                share_dot = w_dot[h, v] - d_dot[v]
                a_dot[h, v] += math.exp(w[h, v] - d[v]) * (share_dot * (1 - routed) - routed_dot)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                if log_weights[i, h, m] != -np.inf:
                    fraction = math.exp(log_weights[i, h, m] - w[row, m])
                    change = a_dot[row, m] + a[row, m] * (upstream[i, h, m] - w_dot[row, m])
                    result[i, h, m] = fraction * change
