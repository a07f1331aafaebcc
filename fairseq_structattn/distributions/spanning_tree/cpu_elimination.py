"""Elimination of words in linear space, compiled for the CPU, eight words at a time.

The tape has the layout of that of :mod:`.bounded_elimination`, with rows padded by zeros to a multiple of eight words.
Let X = ∂ log Z / ∂w, which is the same before and after the addition of step v. The reverse step is

    X(v→m) = Σ_h q(h) X(h→m),    a(h) = Σ_m X(h→m) w(v→m),    X(h→v) = (a(h) + 1 − Σ_m w(v→m) X(v→m)) / d_v.

The backward pass differentiates both sweeps in the direction of the upstream gradient: O(n²) memory. The diagonal of X
stays 0.

Words v, …, v+7 are a block. Within it, steps follow each other; what they add to all words and heads outside of the
block is a product of matrices (:mod:`.cpu_products`), which takes nearly all of the time.
"""

import math

import numpy as np

from ..kernels.numba_compile import kernel, subroutine
from ..kernels.numba_math import exp
from ..kernels.numba_simd import empty_lanes, fill, load, multiply_add, store
from ..semirings import NEGATIVE_INFINITY
from .bounded_elimination import arrange, error_of, pass_errors, pivot_of
from .cpu_products import BLOCK, add_dots, add_earlier_rows, add_later_rows, add_products, add_sums

# Weights below exp(−250) count as lost. Then X stays below exp(250) wherever the elimination is accurate, which leaves
# room in float64 for products of X with weights and for the size of upstream gradients.
SMALLEST, LARGEST = math.exp(-250.0), math.exp(250.0)
# Largest relative error of a pivot d; beyond it, the elimination in log space takes a sentence.
TOLERANCE = 1e-14


@kernel
def total(first, stride, scores, best, lengths, single_root, weights, tape, pivots, log_partition, fits):
    """Log Z ``[batch]`` of scores ``[batch, n+1, n]``, from which the best score of each word, ``[batch, n]``, 0 on
    entry, was subtracted. Their exponentials are the ``weights``.

    ``fits`` ``[batch]`` is set to whether the weights of a sentence suit linear space; otherwise its results are
    invalid. The other kernels need ``tape`` ``[batch, n+1, m]`` of a width m that is a multiple of :data:`BLOCK`, and
    ``pivots`` ``[batch, n]``.
    """
    for i in range(first, len(lengths), stride):
        n = lengths[i]
        w, d = tape[i], pivots[i]
        _weigh(scores[i], n, best[i], weights[i])
        _place(weights[i], n, w)
        fits[i] = _eliminate(w, n, single_root, d)
        log_partition[i] = 0
        for v in range(n):
            fits[i] &= w[n, v] < LARGEST
            log_partition[i] += best[i, v] + math.log(d[v])


@kernel
def expectations(first, stride, items, lengths, single_root, weights, tape, pivots, adjoint, marginals):
    """Marginals ``[batch, n+1, n]``, 0 on entry, of the listed sentences.

    :func:`gradient` needs ``adjoint``, in the shape of ``tape``.
    """
    columns = _room(tape.shape[2], BLOCK)
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, x = tape[i], adjoint[i]
        for v in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
            after, end = v + BLOCK, padded(n)
            _clear(x, v, n, end)
            if after < n:
                add_sums(x, v, w, v, x, after, n + 1, after, end)
                add_later_rows(x, w, x, v, after, end)
                add_dots(x, v, x, w, v, v, n + 1, after, end, columns)
            _adjoints(w, pivots[i], x, v, n, single_root)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                # Within rounding errors. NaN is neither too small nor too large.
                p = x[row, m] * weights[i, h, m]
                p = 0.0 if p < 0 else p
                marginals[i, h, m] = 1.0 if p > 1 else p


@kernel
def gradient(first, stride, items, lengths, single_root, weights, tape, pivots, adjoint, upstream, result):
    """Derivative ``[batch, n+1, n]`` of the marginals in the direction ``upstream``, of the listed sentences."""
    width = tape.shape[2]
    columns, d_dot = _room(width, BLOCK), np.empty(width)
    # Tangents of the tape (weights and shares) and of adjoints.
    w_dot, x_dot = _room(tape.shape[1], width), _room(tape.shape[1], width)
    for position in range(first, len(items), stride):
        i = items[position]
        n = lengths[i]
        w, x, d, end = tape[i], adjoint[i], pivots[i], padded(n)
        _place(weights[i], n, w_dot)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                w_dot[row, m] *= upstream[i, h, m]
        for v in range(0, n, BLOCK):
            after = v + BLOCK
            _eliminate_tangents(w, d, w_dot, d_dot, v, n, single_root)
            if after < n:
                add_earlier_rows(w_dot, w_dot, w, v, after, end)
                add_earlier_rows(w_dot, w, w_dot, v, after, end)
                add_products(w_dot, w, v, w_dot, v, after, n + 1, after, end)
                add_products(w_dot, w_dot, v, w, v, after, n + 1, after, end)
        for v in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
            after = v + BLOCK
            _clear(x_dot, v, n, end)
            if after < n:
                add_sums(x_dot, v, w, v, x_dot, after, n + 1, after, end)
                add_sums(x_dot, v, w_dot, v, x, after, n + 1, after, end)
                add_later_rows(x_dot, w_dot, x, v, after, end)
                add_later_rows(x_dot, w, x_dot, v, after, end)
                add_dots(x_dot, v, x_dot, w, v, v, n + 1, after, end, columns)
                add_dots(x_dot, v, x, w_dot, v, v, n + 1, after, end, columns)
            _adjoint_tangents(w, d, x, w_dot, d_dot, x_dot, v, n, single_root)
        for h in range(n + 1):
            row = h - 1 if h > 0 else n
            for m in range(n):
                change = x_dot[row, m] + x[row, m] * upstream[i, h, m]
                result[i, h, m] = weights[i, h, m] * change


# Layout


@subroutine
def padded(n):
    """The least multiple of :data:`BLOCK` that is at least n."""
    return (n + BLOCK - 1) // BLOCK * BLOCK


@subroutine
def _room(rows, width):
    return empty_lanes(rows * width).reshape((rows, width))


@subroutine
def _weigh(scores, n, best, weights):
    """Subtract the best score of each word, in place of an infinite one 0, and exponentiate."""
    for m in range(n):
        best[m] = scores[0, m]
    for h in range(1, n + 1):
        for m in range(n):
            best[m] = max(best[m], scores[h, m])
    for m in range(n):
        best[m] = best[m] if best[m] > NEGATIVE_INFINITY else 0.0
    for h in range(n + 1):
        for m in range(n):
            weights[h, m] = exp(scores[h, m] - best[m])


@subroutine
def _place(weights, n, tape):
    """Copy the weights of n words to the tape, with padding."""
    arrange(weights, n, tape)
    for row in range(n + 1):
        for m in range(n, padded(n)):
            tape[row, m] = 0


@subroutine
def _clear(x, v, n, end):
    """0 in the columns of a block, from its first row on, and in its rows to the right."""
    for h in range(v, n + 1):
        store(x, h * x.shape[1] + v, fill(0.0))
    for h in range(v, min(v + BLOCK, n)):
        for m in range(v + BLOCK, end):
            x[h, m] = 0


# Elimination


@subroutine
def _eliminate(w, n, single_root, d):
    """Eliminate all words, like :func:`.eliminate`; returns whether all errors are within the tolerance."""
    lost, end = (n + 1) * (n + 1) * SMALLEST, padded(n)
    errors, root_errors = np.full(n, lost), np.full(n, lost)
    for v in range(0, n, BLOCK):
        after = v + BLOCK
        if not _eliminate_block(w, v, n, single_root, d, errors, root_errors):
            return False
        if after < n:
            add_earlier_rows(w, w, w, v, after, end)
            for word in range(v, after):
                pass_errors(w, d[word], word, n, after, n, single_root, errors, root_errors)
            add_products(w, w, v, w, v, after, n + 1, after, end)
    return not single_root or np.all(np.isfinite(root_errors))


@subroutine
def _eliminate_block(w, v, n, single_root, d, errors, root_errors):
    """Eliminate the words of a block, for all heads and for the dependents in the block."""
    width, inside, later = w.shape[1], min(v + BLOCK, n), empty_lanes(BLOCK)
    for word in range(v, inside):
        pivot = d[word] = pivot_of(w, word, n, single_root)
        if not error_of(word, n, single_root, errors, root_errors) <= TOLERANCE * pivot:
            return False
        leaving = _later(w, word, v, later)
        inverse = 1 / pivot
        for h in range(word + 1, n + 1):
            share, at = w[h, word] * inverse, h * width + v
            store(w, at, multiply_add(fill(share), leaving, load(w, at)))
            w[h, word] = share
        pass_errors(w, pivot, word, n, word + 1, inside, single_root, errors, root_errors)
    return True


@subroutine
def _later(w, word, v, room):
    """The weights of the arcs from a word to the words of its block that come later, and 0 for the others."""
    for m in range(BLOCK):
        room[m] = w[word, v + m] if v + m > word else 0.0
    return load(room, 0)


@subroutine
def _earlier(w, word, v, room):
    """The weights of the arcs to a word from the words of its block that come earlier, and 0 for the others."""
    for h in range(BLOCK):
        room[h] = w[v + h, word] if v + h < word else 0.0
    return load(room, 0)


@subroutine
def _eliminate_tangents(w, d, w_dot, d_dot, v, n, single_root):
    """The tangents of :func:`_eliminate_block`."""
    width, later = w.shape[1], empty_lanes(BLOCK)
    for word in range(v, min(v + BLOCK, n)):
        pivot_dot = d_dot[word] = pivot_of(w_dot, word, n, single_root)
        inverse = 1 / d[word]
        leaving = _later(w, word, v, later)
        leaving_dot = _later(w_dot, word, v, later)
        for h in range(word + 1, n + 1):
            share, at = w[h, word], h * width + v
            share_dot = (w_dot[h, word] - share * pivot_dot) * inverse
            arriving = multiply_add(fill(share), leaving_dot, load(w_dot, at))
            store(w_dot, at, multiply_add(fill(share_dot), leaving, arriving))
            w_dot[h, word] = share_dot


# Reverse sweep. On entry the rows of the block are complete to the right of it, and its columns hold a(h) as far as
# dependents outside of it are concerned. What an arc into the block adds is passed on at once to the words of the block
# that were eliminated earlier, whose registers are the sums of X to one word and a row of a(h).


@subroutine
def _adjoints(w, d, x, v, n, single_root):
    width, inside, room = w.shape[1], min(v + BLOCK, n), empty_lanes(BLOCK)
    for word in range(inside - 1, v - 1, -1):
        inverse, rest = 1 / d[word], 1 - _dot(w[word], x[word], word + 1, n)
        root_counts = word == n - 1 or not single_root
        arriving, sums = _earlier(w, word, v, room), fill(0.0)
        for h in range(n, word, -1):
            value, at = (x[h, word] + (rest if h < n or root_counts else 0.0)) * inverse, h * width + v
            store(x, at, multiply_add(fill(value), arriving, load(x, at)))
            sums = multiply_add(fill(value), load(w, at), sums)
            # Last, since a register that is read waits for a number of it that has just been written.
            x[h, word] = value
        for h in range(word - 1, v - 1, -1):
            store(room, 0, sums)
            value, at = room[h - v], h * width + v
            store(x, at, multiply_add(fill(value), arriving, load(x, at)))
            sums = multiply_add(fill(value), load(w, at), sums)
            x[h, word] = value
    for word in range(v, inside):
        x[word, word] = 0


@subroutine
def _adjoint_tangents(w, d, x, w_dot, d_dot, x_dot, v, n, single_root):
    """The tangents of :func:`_adjoints`."""
    width, inside, room = w.shape[1], min(v + BLOCK, n), empty_lanes(BLOCK)
    for word in range(inside - 1, v - 1, -1):
        inverse = 1 / d[word]
        routed_dot = _dot(w_dot[word], x[word], word + 1, n) + _dot(w[word], x_dot[word], word + 1, n)
        root_counts = word == n - 1 or not single_root
        arriving = _earlier(w, word, v, room)
        arriving_dot, sums = _earlier(w_dot, word, v, room), fill(0.0)
        for h in range(n, word, -1):
            value, at = x[h, word], h * width + v
            change = x_dot[h, word] - (routed_dot if h < n or root_counts else 0.0)
            value_dot = (change - value * d_dot[word]) * inverse
            onwards = multiply_add(fill(value_dot), arriving, load(x_dot, at))
            store(x_dot, at, multiply_add(fill(value), arriving_dot, onwards))
            sums = multiply_add(fill(value_dot), load(w, at), sums)
            sums = multiply_add(fill(value), load(w_dot, at), sums)
            x_dot[h, word] = value_dot
        for h in range(word - 1, v - 1, -1):
            store(room, 0, sums)
            value, value_dot, at = x[h, word], room[h - v], h * width + v
            onwards = multiply_add(fill(value_dot), arriving, load(x_dot, at))
            store(x_dot, at, multiply_add(fill(value), arriving_dot, onwards))
            sums = multiply_add(fill(value_dot), load(w, at), sums)
            sums = multiply_add(fill(value), load(w_dot, at), sums)
            x_dot[h, word] = value_dot
    for word in range(v, inside):
        x_dot[word, word] = 0


@subroutine
def _dot(one, other, first, last):
    result = 0.0
    for m in range(first, last):
        result += one[m] * other[m]
    return result
