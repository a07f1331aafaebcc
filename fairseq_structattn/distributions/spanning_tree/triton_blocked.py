"""Elimination of words on the GPU in memory, for sentences whose weights do not fit in registers. O(n²) memory.

Formulas are those of :mod:`.triton_elimination`. A program computes a sentence, and its warps share the work of a step,
block by block of ``ROWS`` heads and ``COLUMNS`` dependents. Within a step no block depends on another; one barrier, or
two in sweeps that sum over blocks, replaces a launch.

**Layout.** Words are eliminated in order. Working arrays ``[batch, n+1, n]`` have a row for each head, words 0, 1, …
and behind the last of them the root, so that all heads and dependents that remain after step v are numbered from v + 1
on, and blocks follow the matrix as it shrinks. ``scores``, ``marginals`` and their gradients have the root first.

Where the kernels read what other threads may be replacing, results would depend on the order of threads. So a step
writes neither the row nor the column that it reads, which are brought into form when read: ``mantissas`` are normalised
at the end, and tangents are kept times the mantissas, in the unit of the weight.
"""

import triton
import triton.language as tl

from ..kernels.triton_scaled import LEAST_EXPONENT, LOG_2, add, exponential, normalise
from .triton_elimination import keep, length_of, ratio, share_of, zero_unless


@triton.jit(do_not_specialize=["n"])
def eliminate(
    scores, lengths, mantissas, exponents, pivots, log_partition, n,
    SINGLE_ROOT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """log Z ``[batch]`` of scores ``[batch, n+1, n]``, n < ``HEADS``, and what the other kernels need: the tape,
    ``mantissas`` and ``exponents`` ``[batch, n+1, n]``, and the pivots ``[batch, 2, n]``.
    """
    i, length, item = _item(lengths, n)
    scores, mantissas, exponents, pivots = scores + item, mantissas + item, exponents + item, pivots + i * 2 * n
    for first in range(0, length + 1, ROWS):
        for left in range(0, length, COLUMNS):
            rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
            score = tl.load(scores + _at_score(rows, columns, length, n), mask=real, other=float("-inf"))
            w, e = exponential(score)
            tl.store(mantissas + at, w, mask=real)
            tl.store(exponents + at, e, mask=real)
    heads = tl.arange(0, HEADS)
    possible = length >= (1 if SINGLE_ROOT else 0)
    logarithm = tl.sum(tl.zeros((HEADS,), scores.dtype.element_ty), 0)
    exponent = logarithm
    for v in range(length):
        tl.debug_barrier()
        column_w, column_e = _load(mantissas, exponents, heads * n + v, (heads > v) & (heads <= length))
        column_w, column_e = normalise(column_w, column_e)
        counted_w, counted_e = keep(_counts(heads, v, length, SINGLE_ROOT), column_w, column_e)
        pivot_e = tl.max(counted_e, 0)
        pivot_w = tl.sum(counted_w * tl.exp2(counted_e - pivot_e), 0)
        possible = possible & (pivot_w != 0)
        pivot_w, pivot_e = tl.where(pivot_w == 0, 1.0, pivot_w), tl.where(pivot_w == 0, 0.0, pivot_e)
        pivot_w, pivot_e = normalise(pivot_w, pivot_e)
        logarithm, exponent = logarithm + tl.log(pivot_w), exponent + pivot_e
        tl.store(pivots + v, pivot_w)
        tl.store(pivots + n + v, pivot_e)
        for first in range(v + 1, length + 1, ROWS):
            rows = first + tl.arange(0, ROWS)
            to_w, to_e = _load(mantissas, exponents, rows * n + v, rows <= length)
            to_w, to_e = normalise(to_w, to_e)
            share, share_e = share_of(to_w, to_e, pivot_w, pivot_e)
            for left in range(v + 1, length, COLUMNS):
                rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
                from_w, from_e = _load(mantissas, exponents, v * n + columns, columns < length)
                from_w, from_e = normalise(from_w, from_e)
                w, e = _load(mantissas, exponents, at, real)
                w, e = add(w, e, share[:, None] * from_w[None, :], share_e[:, None] + from_e[None, :])
                tl.store(mantissas + at, w, mask=real)
                tl.store(exponents + at, e, mask=real)
    tl.debug_barrier()
    for first in range(0, length + 1, ROWS):
        for left in range(0, length, COLUMNS):
            rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
            w, e = _load(mantissas, exponents, at, real)
            w, e = normalise(w, e)
            tl.store(mantissas + at, w, mask=real)
            tl.store(exponents + at, e, mask=real)
    tl.store(log_partition + i, tl.where(possible, exponent * LOG_2 + logarithm, float("-inf")))


@triton.jit(do_not_specialize=["n"])
def distribute(
    scores, lengths, mantissas, exponents, pivots, log_partition, adjoint, sums, marginals, n,
    SINGLE_ROOT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The reverse sweep: ``adjoint`` b and marginals, ``[batch, n+1, n]``, both 0 on entry.

    ``sums`` ``[batch, ⌈n / COLUMNS⌉, n+1]`` holds the sums over the dependents of each column of blocks.
    """
    i, length, item = _item(lengths, n)
    mantissas, exponents, pivots = mantissas + item, exponents + item, pivots + i * 2 * n
    scores, adjoint, marginals = scores + item, adjoint + item, marginals + item
    sums += i * tl.cdiv(n, COLUMNS) * (n + 1)
    heads = tl.arange(0, HEADS)
    for done in range(length):
        v = length - 1 - done
        tl.debug_barrier()
        pivot_w, pivot_e = tl.load(pivots + v), tl.load(pivots + n + v)
        routed = tl.sum(tl.zeros((HEADS,), scores.dtype.element_ty), 0)
        for left in range(v + 1, length, COLUMNS):
            words = left + tl.arange(0, COLUMNS)
            from_w, from_e = _load(mantissas, exponents, v * n + words, words < length)
            grad_from = tl.zeros((COLUMNS,), scores.dtype.element_ty)
            for first in range(v + 1, length + 1, ROWS):
                rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
                share, share_e = _shares(mantissas, exponents, v, n, rows, rows <= length, pivot_w, pivot_e)
                e = tl.load(exponents + at, mask=real, other=LEAST_EXPONENT)
                part = tl.load(adjoint + at, mask=real, other=0.0) * _fractions(share, share_e, from_w, from_e, e)
                grad_from += tl.sum(part, 0)
                tl.store(sums + (left - v - 1) // COLUMNS * (n + 1) + rows, tl.sum(part, 1), mask=rows <= length)
            tl.store(adjoint + v * n + words, ratio(grad_from, from_w), mask=words < length)
            routed += tl.sum(grad_from, 0)
        tl.debug_barrier()
        waiting = (heads > v) & (heads <= length)
        shares, shares_e = _shares(mantissas, exponents, v, n, heads, waiting, pivot_w, pivot_e)
        grad_to = _total(sums, heads, waiting, length - v - 1, n, COLUMNS)
        grad_to += zero_unless(_counts(heads, v, length, SINGLE_ROOT), shares * tl.exp2(shares_e) * (1 - routed))
        tl.store(adjoint + heads * n + v, ratio(grad_to, shares * pivot_w), mask=waiting)
    tl.debug_barrier()
    possible = tl.load(log_partition + i) != float("-inf")
    for first in range(0, length + 1, ROWS):
        for left in range(0, length, COLUMNS):
            rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
            of_score = _at_score(rows, columns, length, n)
            p = tl.load(adjoint + at, mask=real, other=0.0) * _first_fractions(scores, of_score, exponents, at, real)
            tl.store(marginals + of_score, zero_unless(possible, tl.where(p > 1, 1.0, p)), mask=real)


@triton.jit(do_not_specialize=["n"])
def eliminate_tangents(
    scores, lengths, mantissas, exponents, pivots, grad_marginals, tangents, pivot_tangents, n,
    SINGLE_ROOT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Derivatives of weights on the tape in the direction ``grad_marginals`` ``[batch, n+1, n]``: ``tangents``, of the
    same shape, those of their logarithms times the mantissas; ``pivot_tangents`` ``[batch, n]`` those of log d.
    """
    i, length, item = _item(lengths, n)
    mantissas, exponents, pivots = mantissas + item, exponents + item, pivots + i * 2 * n
    scores, grad_marginals, tangents, pivot_tangents = (
        scores + item, grad_marginals + item, tangents + item, pivot_tangents + i * n
    )  # fmt: skip
    for first in range(0, length + 1, ROWS):
        for left in range(0, length, COLUMNS):
            rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
            of_score = _at_score(rows, columns, length, n)
            y = _first_fractions(scores, of_score, exponents, at, real)
            g = tl.load(grad_marginals + of_score, mask=real, other=0.0)
            tl.store(tangents + at, tl.where(y == 0, 0.0, y * g), mask=real)
    heads = tl.arange(0, HEADS)
    for v in range(length):
        tl.debug_barrier()
        pivot_w, pivot_e = tl.load(pivots + v), tl.load(pivots + n + v)
        waiting = (heads > v) & (heads <= length)
        shares, shares_e = _shares(mantissas, exponents, v, n, heads, waiting, pivot_w, pivot_e)
        to_dot = _tangents(tangents, mantissas, heads * n + v, waiting)
        counted = _counts(heads, v, length, SINGLE_ROOT)
        pivot_dot = tl.sum(zero_unless(counted, shares * tl.exp2(shares_e) * to_dot), 0)
        tl.store(pivot_tangents + v, pivot_dot)
        for first in range(v + 1, length + 1, ROWS):
            rows = first + tl.arange(0, ROWS)
            share, share_e = _shares(mantissas, exponents, v, n, rows, rows <= length, pivot_w, pivot_e)
            share_dot = _tangents(tangents, mantissas, rows * n + v, rows <= length) - pivot_dot
            for left in range(v + 1, length, COLUMNS):
                rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
                from_w, from_e = _load(mantissas, exponents, v * n + columns, columns < length)
                from_dot = _tangents(tangents, mantissas, v * n + columns, columns < length)
                e = tl.load(exponents + at, mask=real, other=LEAST_EXPONENT)
                change = _fractions(share, share_e, from_w, from_e, e) * (share_dot[:, None] + from_dot[None, :])
                tl.store(tangents + at, tl.load(tangents + at, mask=real, other=0.0) + change, mask=real)


@triton.jit(do_not_specialize=["n"])
def distribute_tangents(
    scores, lengths, mantissas, exponents, pivots, log_partition, adjoint, grad_log_partition, grad_marginals, tangents,
    pivot_tangents, changes, sums, grad_scores, n,
    SINGLE_ROOT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient ``[batch, n+1, n]``, 0 on entry: the derivative of the marginals in the direction ``grad_marginals``,
    and ``grad_log_partition`` ``[batch]`` times the marginals. ``changes`` c, 0 on entry, and ``sums`` are working
    arrays.
    """
    i, length, item = _item(lengths, n)
    mantissas, exponents, pivots = mantissas + item, exponents + item, pivots + i * 2 * n
    scores, adjoint, grad_marginals, tangents, changes, grad_scores = (
        scores + item, adjoint + item, grad_marginals + item, tangents + item, changes + item, grad_scores + item
    )  # fmt: skip
    pivot_tangents, sums = pivot_tangents + i * n, sums + i * tl.cdiv(n, COLUMNS) * (n + 1)
    heads = tl.arange(0, HEADS)
    for done in range(length):
        v = length - 1 - done
        tl.debug_barrier()
        pivot_w, pivot_e, pivot_dot = tl.load(pivots + v), tl.load(pivots + n + v), tl.load(pivot_tangents + v)
        routed = tl.sum(tl.zeros((HEADS,), scores.dtype.element_ty), 0)
        routed_dot = routed
        for left in range(v + 1, length, COLUMNS):
            words = left + tl.arange(0, COLUMNS)
            from_w, from_e = _load(mantissas, exponents, v * n + words, words < length)
            from_dot = _tangents(tangents, mantissas, v * n + words, words < length)
            grad_from = tl.zeros((COLUMNS,), scores.dtype.element_ty)
            for first in range(v + 1, length + 1, ROWS):
                rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
                share, share_e = _shares(mantissas, exponents, v, n, rows, rows <= length, pivot_w, pivot_e)
                share_dot = _tangents(tangents, mantissas, rows * n + v, rows <= length) - pivot_dot
                e = tl.load(exponents + at, mask=real, other=LEAST_EXPONENT)
                b, c = tl.load(adjoint + at, mask=real, other=0.0), tl.load(changes + at, mask=real, other=0.0)
                part = c + b * (share_dot[:, None] + from_dot[None, :])
                part *= _fractions(share, share_e, from_w, from_e, e)
                grad_from += tl.sum(part, 0)
                tl.store(sums + (left - v - 1) // COLUMNS * (n + 1) + rows, tl.sum(part, 1), mask=rows <= length)
            from_b = tl.load(adjoint + v * n + words, mask=words < length, other=0.0)
            tl.store(changes + v * n + words, ratio(grad_from, from_w) - from_b * from_dot, mask=words < length)
            routed, routed_dot = routed + tl.sum(from_b * from_w, 0), routed_dot + tl.sum(grad_from, 0)
        tl.debug_barrier()
        waiting = (heads > v) & (heads <= length)
        shares, shares_e = _shares(mantissas, exponents, v, n, heads, waiting, pivot_w, pivot_e)
        to_dot = _tangents(tangents, mantissas, heads * n + v, waiting)
        to_b = tl.load(adjoint + heads * n + v, mask=waiting, other=0.0)
        grad_to = _total(sums, heads, waiting, length - v - 1, n, COLUMNS)
        grad_share = shares * tl.exp2(shares_e) * ((to_dot - pivot_dot) * (1 - routed) - routed_dot)
        grad_to += zero_unless(_counts(heads, v, length, SINGLE_ROOT), grad_share)
        tl.store(changes + heads * n + v, ratio(grad_to, shares * pivot_w) - to_b * to_dot, mask=waiting)
    tl.debug_barrier()
    possible = tl.load(log_partition + i) != float("-inf")
    scale = tl.load(grad_log_partition + i)
    for first in range(0, length + 1, ROWS):
        for left in range(0, length, COLUMNS):
            rows, columns, at, real = _block(first, left, length, n, ROWS, COLUMNS)
            of_score = _at_score(rows, columns, length, n)
            f = _first_fractions(scores, of_score, exponents, at, real)
            b, c = tl.load(adjoint + at, mask=real, other=0.0), tl.load(changes + at, mask=real, other=0.0)
            g = tl.load(grad_marginals + of_score, mask=real, other=0.0)
            d = tl.where(f == 0, 0.0, f * (c + b * (g + scale)))
            tl.store(grad_scores + of_score, zero_unless(possible, d), mask=real)


# Parts of the kernels


@triton.jit
def _item(lengths, n):
    """Number, length and offset of the matrices of a program's sentence."""
    i = tl.program_id(0).to(tl.int64)
    return i, length_of(lengths, i, n), i * (n + 1) * n


@triton.jit
def _block(first, left, length, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Heads and dependents of a block, its indices in working arrays, and which of these exist."""
    rows, columns = first + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
    at = rows[:, None] * n + columns[None, :]
    return rows, columns, at, (rows <= length)[:, None] & (columns < length)[None, :]


@triton.jit
def _at_score(rows, columns, length, n):
    """Indices of a block in arrays that have the root first."""
    return tl.where(rows < length, rows + 1, 0)[:, None] * n + columns[None, :]


@triton.jit
def _counts(heads, v, length, SINGLE_ROOT: tl.constexpr):
    """Whether a head counts in the pivot of word v: with a single root, the root counts in the last one only."""
    return (heads < length) | (v == length - 1) if SINGLE_ROOT else heads <= length


@triton.jit
def _load(mantissas, exponents, at, mask):
    return tl.load(mantissas + at, mask=mask, other=0.0), tl.load(exponents + at, mask=mask, other=LEAST_EXPONENT)


@triton.jit
def _shares(mantissas, exponents, v, n, rows, mask, pivot_w, pivot_e):
    """q of the heads ``rows`` of word v."""
    to_w, to_e = _load(mantissas, exponents, rows * n + v, mask)
    return share_of(to_w, to_e, pivot_w, pivot_e)


@triton.jit
def _fractions(share, share_e, from_w, from_e, e):
    """What came through the word, of the weights with exponents ``e``, times their mantissas."""
    return share[:, None] * from_w[None, :] * tl.exp2(share_e[:, None] + from_e[None, :] - e)


@triton.jit
def _first_fractions(scores, of_score, exponents, at, mask):
    """The fraction of weights on the tape that is the original weight, times their mantissas."""
    w, first_e = exponential(tl.load(scores + of_score, mask=mask, other=float("-inf")))
    return w * tl.exp2(first_e - tl.load(exponents + at, mask=mask, other=LEAST_EXPONENT))


@triton.jit
def _tangents(tangents, mantissas, at, mask):
    """Derivatives of the logarithms of weights."""
    return ratio(tl.load(tangents + at, mask=mask, other=0.0), tl.load(mantissas + at, mask=mask, other=0.0))


@triton.jit
def _total(sums, heads, mask, columns, n, COLUMNS: tl.constexpr):
    """The sums over ``columns`` dependents, from those over the columns of blocks."""
    total = tl.zeros(heads.shape, sums.dtype.element_ty)
    for number in range(tl.cdiv(columns, COLUMNS)):
        total += tl.load(sums + number * (n + 1) + heads, mask=mask, other=0.0)
    return total
