"""Elimination of words in linear space, with a bound on what underflow loses.

The tape holds, for a sentence of n words, a row for each head and a column for each word, in the order word 0, …,
word n-1, root, so that the heads that remain after step v are the rows from v+1 on. All steps happen in place. Each
entry keeps the value that it had when the first of its two ends was eliminated: to the right of the diagonal the weight
w(v→m), below it the share q(h) = w(h→v) / d_v. Step v adds q(h) w(v→m) to the weight w(h→m). The diagonal (arcs from a
word to itself) is written but never read.

The module is compiled if numba is installed.
"""

import numpy as np

from ..kernels.numba_compile import subroutine_if_available


@subroutine_if_available
def arrange(weights, n, tape):
    """Copy the weights of n words, the root first, to the tape; both may have room for more."""
    for h in range(n + 1):
        row = h - 1 if h > 0 else n
        for m in range(n):
            tape[row, m] = weights[h, m]


@subroutine_if_available
def eliminate(tape, single_root, smallest, tolerance, pivots):
    """Eliminate all words, given weights on the tape, of which some may have underflowed.

    The errors of the weights of a word, summed up over its heads, grow as the weights themselves are passed on. To
    first order, the sum over words of errors divided by d is the relative error of the partition function, and bounds
    the probability of all trees that are lost. As it is also the sum over arcs of their errors times X = ∂ log Z / ∂w,
    it bounds X by n · ``tolerance`` / ``smallest``.

    Args:
        tape: ``[n+1, n]``, or larger.
        single_root: whether exactly one word is attached to the root.
        smallest: error of each weight, more than what underflows.
        tolerance: of the relative error of each d.
        pivots: ``[n]``, set to d.

    Returns:
        Whether all relative errors are within the tolerance; if not, the results are invalid.
    """
    n = len(pivots)
    lost = (n + 1) * (n + 1) * smallest
    errors, root_errors = np.full(n, lost), np.full(n, lost)
    for v in range(n):
        pivot = pivots[v] = pivot_of(tape, v, n, single_root)
        if not error_of(v, n, single_root, errors, root_errors) <= tolerance * pivot:
            return False
        leaving = tape[v, v + 1 : n]
        for h in range(v + 1, n + 1):
            share = tape[h, v] / pivot
            tape[h, v] = share
            arriving = tape[h, v + 1 : n]
            for m in range(len(leaving)):
                arriving[m] += share * leaving[m]
        pass_errors(tape, pivot, v, n, v + 1, n, single_root, errors, root_errors)
    return not single_root or np.all(np.isfinite(root_errors))


@subroutine_if_available
def pivot_of(tape, v, n, single_root):
    """d of the word ``v``: the weights of all arcs to it from heads that remain."""
    pivot = 0.0
    for h in range(v + 1, n):
        pivot += tape[h, v]
    return pivot + tape[n, v] if v == n - 1 or not single_root else pivot


@subroutine_if_available
def error_of(v, n, single_root, errors, root_errors):
    """The error of d of the word ``v``."""
    return root_errors[v] if v == n - 1 and single_root else errors[v]


@subroutine_if_available
def pass_errors(tape, pivot, v, n, start, end, single_root, errors, root_errors):
    """Add to the errors of the words start..end-1 of n what the elimination of ``v`` passes on to them."""
    relative, share = errors[v] / pivot, tape[n, v]
    for m in range(start, end):
        if single_root:
            root_errors[m] += (root_errors[v] / pivot + share * relative) * tape[v, m] + share * errors[m]
        errors[m] += 2 * relative * tape[v, m]
