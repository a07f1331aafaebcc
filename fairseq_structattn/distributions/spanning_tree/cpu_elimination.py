"""Elimination of words in linear space, compiled for the CPU.

Working arrays have the layout of the tape of :mod:`.bounded_elimination`. Let X = ∂ log Z / ∂w, which is the same
before and after the addition of step v. The reverse step is

    X(v→m) = Σ_h q(h) X(h→m),    a(h) = Σ_m X(h→m) w(v→m),    X(h→v) = (a(h) + 1 − Σ_h' q(h') a(h')) / d_v.

The backward pass differentiates both sweeps in the direction of the upstream gradient: O(n²) memory. The diagonal of X
stays 0.
"""

import math

import numpy as np

from ..kernels.numba_compile import kernel
from .bounded_elimination import arrange, eliminate

# Weights below exp(−250) count as lost. Then X stays below exp(250) wherever the elimination is accurate, which leaves
# room in float64 for products of X with weights and for the size of upstream gradients.
SMALLEST, LARGEST = math.exp(-250.0), math.exp(250.0)
# Largest relative error of a pivot d; beyond it, the elimination in log space takes a sentence.
TOLERANCE = 1e-14


@kernel
def total(first, stride, lengths, single_root, weights, tape, pivots, log_partition, fits):
    """log Z ``[batch]`` of weights ``[batch, n+1, n]``.

    ``fits`` ``[batch]`` is set to whether the weights of a sentence suit linear space; otherwise its results are
    invalid. The other kernels need ``tape`` ``[batch, n+1, n]`` and ``pivots`` ``[batch, n]``.
    """
    for i in range(first, len(lengths), stride):
        n = lengths[i]
        w, d = tape[i], pivots[i]
        arrange(weights[i], n, w)
        fits[i] = eliminate(w, single_root, SMALLEST, TOLERANCE, d[:n])
        log_partition[i] = 0
        for v in range(n):
            fits[i] &= w[n, v] < LARGEST
            log_partition[i] += math.log(d[v])


@kernel
def expectations(first, stride, items, lengths, single_root, weights, tape, pivots, adjoint, marginals):
    """Marginals ``[batch, n+1, n]``, 0 on entry, of the listed sentences.

    :func:`gradient` needs ``adjoint``, in the same shape.
    """
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, x, d = tape[i], adjoint[i], pivots[i]
        for v in range(n - 1, -1, -1):
            x[v, v:n] = 0
            leaving, x_leaving = w[v, v + 1 : n], x[v, v + 1 : n]
            routed = 0.0
            for h in range(v + 1, n + 1):
                share, x_arriving = w[h, v], x[h, v + 1 : n]
                onwards = 0.0
                for m in range(len(leaving)):
                    onwards += x_arriving[m] * leaving[m]
                    x_leaving[m] += share * x_arriving[m]
                x[h, v] = onwards / d[v]
                routed += share * onwards
            rest = (1 - routed) / d[v]
            for h in range(v + 1, n):
                x[h, v] += rest
            if v == n - 1 or not single_root:
                x[n, v] += rest
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                marginals[i, h, m] = x[row, m] * weights[i, h, m]


@kernel
def gradient(first, stride, items, lengths, single_root, weights, tape, pivots, adjoint, upstream, result):
    """Derivative ``[batch, n+1, n]`` of the marginals in the direction ``upstream``, of the listed sentences."""
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, x, d = tape[i], adjoint[i], pivots[i]
        # Tangents of the tape (weights and shares), of adjoints and of pivots.
        w_dot, x_dot, d_dot = np.empty((n + 1, n)), np.zeros((n + 1, n)), np.empty(n)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                w_dot[row, m] = weights[i, h, m] * upstream[i, h, m]
        for v in range(n):
            pivot_dot = 0.0
            for h in range(v + 1, n):
                pivot_dot += w_dot[h, v]
            if v == n - 1 or not single_root:
                pivot_dot += w_dot[n, v]
            d_dot[v] = pivot_dot
            leaving, leaving_dot = w[v, v + 1 : n], w_dot[v, v + 1 : n]
            for h in range(v + 1, n + 1):
                share = w[h, v]
                share_dot = (w_dot[h, v] - share * pivot_dot) / d[v]
                w_dot[h, v] = share_dot
                arriving_dot = w_dot[h, v + 1 : n]
                for m in range(len(leaving)):
                    arriving_dot[m] += share * leaving_dot[m] + share_dot * leaving[m]
        for v in range(n - 1, -1, -1):
            leaving, leaving_dot, x_leaving_dot = w[v, v + 1 : n], w_dot[v, v + 1 : n], x_dot[v, v + 1 : n]
            routed, routed_dot = 0.0, 0.0
            for h in range(v + 1, n + 1):
                share, share_dot = w[h, v], w_dot[h, v]
                x_arriving, x_arriving_dot = x[h, v + 1 : n], x_dot[h, v + 1 : n]
                onwards, onwards_dot = 0.0, 0.0
                for m in range(len(leaving)):
                    onwards += x_arriving[m] * leaving[m]
                    onwards_dot += x_arriving_dot[m] * leaving[m] + x_arriving[m] * leaving_dot[m]
                    x_leaving_dot[m] += share * x_arriving_dot[m] + share_dot * x_arriving[m]
                x_dot[h, v] = (onwards_dot - onwards / d[v] * d_dot[v]) / d[v]
                routed += share * onwards
                routed_dot += share * onwards_dot + share_dot * onwards
            rest_dot = (-routed_dot - (1 - routed) / d[v] * d_dot[v]) / d[v]
            for h in range(v + 1, n):
                x_dot[h, v] += rest_dot
            if v == n - 1 or not single_root:
                x_dot[n, v] += rest_dot
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                change = x_dot[row, m] + x[row, m] * upstream[i, h, m]
                result[i, h, m] = weights[i, h, m] * change
