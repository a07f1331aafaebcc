"""Elimination of words on the GPU, by one program per sentence.

The weights between words are a tile in registers, N heads by N dependents, and those from the root a vector. So a step
needs nothing from memory and takes the latency of a few reductions; enough sentences keep each multiprocessor busy.
Order and formulas are those of :mod:`.cpu_log_elimination`. A step removes a row and a column from the tile and adds an
outer product to the rest. Each weight keeps the value that it had when the first of its two ends was eliminated; these
values are the tape.
Weights are kept as mantissas and exponents (two tiles), which is more accurate and cheaper than logarithms.

With b = a(h→m) / mantissa of w(h→m), a probability times the fraction σ is

    σ a = b · mantissa(q w(v→m)) · 2^(exponent(q w(v→m)) − exponent(w(h→m))),

so the reverse sweep needs two tiles as well, of exponents and of b. In this sweep and in the backward pass, row and
column are read from the tape in memory. The tape is complete by then, so the loads do not wait for results of the loop.
A row or column is 0 where its other end is eliminated, and changes nothing there. The diagonal is never read.

Where the best head of each word is at most :data:`RANGE` nats above the others, no exponents are needed (``PLAIN``):
weights are divided by that of the best head, and all numbers fit float32. That saves a third of the instructions, and
registers. Every kernel is launched twice, for those sentences and for the others, which ``fits`` ``[batch]`` tells
apart.

Sweeps with derivatives fill the registers, so Triton must not hoist computations out of their loops.

With a single root, the root counts as a head of the last word only, and every other word needs a head among the words
that remain. As long as a tree exists, some remaining word has such a head. So each step eliminates the word with the
largest weight from another word, and no order has to be found beforehand (:mod:`.root_order`).
"""

import math

import triton
import triton.language as tl

from ..kernels.triton_scaled import LEAST_EXPONENT, LOG_2, add, exponential, normalise

# The step at which words in padding are eliminated: never.
NEVER = tl.constexpr(-1)
# How many nats the weights on a tape may be below the best head. Their products and inverses, times gradients, remain
# within e^±87, the range of float32.
RANGE = tl.constexpr(40.0)
LEAST_WEIGHT = tl.constexpr(math.exp(-40.0))


@triton.jit(do_not_specialize=["n"])
def eliminate(
    scores, lengths, mantissas, exponents, pivots, turns, fits, log_partition, n,
    SINGLE_ROOT: tl.constexpr, N: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """log Z ``[batch]`` of scores ``[batch, n+1, n]``, n ≤ N, and what the other kernels need: the tape, ``mantissas``
    and ``exponents`` ``[batch, n+1, n]``; ``pivots`` d ``[batch, 2, n]`` in the order of elimination; ``turns``
    ``[batch, n]``, the place of each word in that order. If ``PLAIN``, ``fits`` is set, else it is read.
    """
    i = tl.program_id(0).to(tl.int64)
    if not PLAIN:
        if tl.load(fits + i) != 0:
            return
    heads, words = tl.arange(0, N), tl.arange(0, N)
    length = length_of(lengths, i, n)
    pivots += i * 2 * n
    w, e, root_w, root_e, best = _weights(scores + i * (n + 1) * n, length, n, heads, words, PLAIN)
    within = _within(scores + i * (n + 1) * n, length, n, heads, words) if PLAIN else True
    head_turn, word_turn = _turns(heads, length, n, SINGLE_ROOT), _turns(words, length, n, SINGLE_ROOT)
    possible = length >= (1 if SINGLE_ROOT else 0)
    logarithm, exponent = tl.sum(root_w * 0, 0), tl.sum(root_w * 0, 0)
    for t in range(length):
        if SINGLE_ROOT:
            v = _best_connected(w if PLAIN else e, heads, words, head_turn == n, word_turn == n)
            head_turn, word_turn = tl.where(heads == v, t, head_turn), tl.where(words == v, t, word_turn)
        to_w, from_w, root_to_w = _extract(w, root_w, head_turn == t, word_turn == t)
        to_e, from_e, root_to_e = _extract(e, root_e, head_turn == t, word_turn == t)
        to_w, to_e = keep(head_turn > t, to_w, to_e)
        from_w, from_e = keep(word_turn > t, from_w, from_e)
        counted_w, counted_e = keep(_counts_root(t, length, SINGLE_ROOT), root_to_w, root_to_e)

        pivot_w, pivot_e = _pivot(to_w, to_e, counted_w, counted_e, PLAIN)
        possible = possible & (pivot_w != 0)
        pivot_w, pivot_e = tl.where(pivot_w == 0, 1.0, pivot_w), tl.where(pivot_w == 0, 0.0, pivot_e)
        logarithm, exponent = logarithm + tl.log(pivot_w), exponent + pivot_e
        tl.store(pivots + t, pivot_w)
        tl.store(pivots + n + t, pivot_e)
        if PLAIN:
            w += (to_w / pivot_w)[:, None] * from_w[None, :]
            root_w += root_to_w / pivot_w * from_w
        else:
            share, share_e = normalise(to_w / pivot_w, to_e - pivot_e)
            root_share, root_share_e = normalise(root_to_w / pivot_w, root_to_e - pivot_e)
            from_w, from_e = normalise(from_w, from_e)
            w, e = add(w, e, share[:, None] * from_w[None, :], share_e[:, None] + from_e[None, :])
            root_w, root_e = add(root_w, root_e, root_share * from_w, root_share_e + from_e)
    if PLAIN:
        diagonal = heads[:, None] == words[None, :]
        inside = tl.min(tl.min((diagonal | (w == 0) | (w > LEAST_WEIGHT)).to(tl.int32), 1), 0)
        inside = inside * tl.min(((root_w == 0) | (root_w > LEAST_WEIGHT)).to(tl.int32), 0) * within
        fit = (inside != 0) & possible
        tl.store(fits + i, fit.to(tl.int32))
        if not fit:
            return
        logarithm += tl.sum(best, 0)
    else:
        w, e = normalise(w, e)
        root_w, root_e = normalise(root_w, root_e)
        _store(exponents + i * (n + 1) * n, e, root_e, n, heads, words)
    _store(mantissas + i * (n + 1) * n, w, root_w, n, heads, words)
    tl.store(turns + i * n + words, word_turn, mask=words < n)
    tl.store(log_partition + i, tl.where(possible, exponent * LOG_2 + logarithm, float("-inf")))


@triton.jit(do_not_specialize=["n"])
def distribute(
    scores, lengths, mantissas, exponents, pivots, turns, fits, log_partition, adjoint, marginals, n,
    SINGLE_ROOT: tl.constexpr, N: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """The reverse sweep from the last word: ``adjoint`` b, and marginals, both ``[batch, n+1, n]``."""
    i = tl.program_id(0).to(tl.int64)
    if (tl.load(fits + i) != 0) != PLAIN:
        return
    heads, words = tl.arange(0, N), tl.arange(0, N)
    length, item, head_turn, word_turn = _item(i, lengths, turns, n, heads, words)
    mantissas, exponents, pivots = mantissas + item, exponents + item, pivots + i * 2 * n
    e, root_e = _load(exponents, length, n, heads, words, LEAST_EXPONENT)
    b, root_b = tl.zeros_like(e), tl.zeros_like(root_e)
    for done in tl.range(0, length, disable_licm=True):
        t = length - 1 - done
        v = _at_turn(t, words, word_turn)
        pivot_w, share, share_e, from_w, from_e, root_share, root_share_e = _step(
            mantissas, exponents, pivots, t, v, n, heads, words, head_turn > t, word_turn > t
        )
        fraction, root_fraction = _fractions(share, share_e, root_share, root_share_e, from_w, from_e, e, root_e, PLAIN)
        part, root_part = b * fraction, root_b * root_fraction
        grad_to, grad_from, root_grad_to = tl.sum(part, 1), tl.sum(part, 0) + root_part, tl.sum(root_part, 0)
        rest = 1 - tl.sum(grad_from, 0)
        grad_to += _scaled(share, share_e, PLAIN) * rest
        root_grad_to += zero_unless(
            _counts_root(t, length, SINGLE_ROOT), _scaled(root_share, root_share_e, PLAIN) * rest
        )
        b += _outer(head_turn == t, word_turn == t, ratio(grad_to, share * pivot_w), ratio(grad_from, from_w))
        root_b += zero_unless(word_turn == t, ratio(root_grad_to, root_share * pivot_w))
    _store(adjoint + item, b, root_b, n, heads, words)
    possible = tl.load(log_partition + i) != float("-inf")
    f, root_f = _first_fractions(scores + item, e, root_e, length, n, heads, words, PLAIN)
    p, root_p = b * f, root_b * root_f
    p, root_p = zero_unless(possible, tl.where(p > 1, 1.0, p)), zero_unless(possible, tl.where(root_p > 1, 1.0, root_p))
    _store(marginals + item, p, root_p, n, heads, words)


@triton.jit(do_not_specialize=["n"])
def eliminate_tangents(
    scores, lengths, mantissas, exponents, pivots, turns, fits, grad_marginals, tangents, n,
    SINGLE_ROOT: tl.constexpr, N: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Derivatives ``[batch, n+1, n]`` of the logarithms of weights on the tape in the direction ``grad_marginals`` of
    the same shape; those of pivots are on the diagonal, where no arc is.
    """
    i = tl.program_id(0).to(tl.int64)
    if (tl.load(fits + i) != 0) != PLAIN:
        return
    heads, words = tl.arange(0, N), tl.arange(0, N)
    length, item, head_turn, word_turn = _item(i, lengths, turns, n, heads, words)
    mantissas, exponents, pivots = mantissas + item, exponents + item, pivots + i * 2 * n
    tangents += item
    e, root_e = _load(exponents, length, n, heads, words, LEAST_EXPONENT)
    # Derivatives times the mantissas.
    y, root_y = _first_fractions(scores + item, e, root_e, length, n, heads, words, PLAIN)
    g, root_g = _load(grad_marginals + item, length, n, heads, words, 0.0)
    y, root_y = tl.where(y == 0, 0.0, y * g), tl.where(root_y == 0, 0.0, root_y * root_g)
    for t in tl.range(0, length, disable_licm=True):
        v = _at_turn(t, words, word_turn)
        pivot_w, share, share_e, from_w, from_e, root_share, root_share_e = _step(
            mantissas, exponents, pivots, t, v, n, heads, words, head_turn > t, word_turn > t
        )
        to_y, from_y, root_to_y = _extract(y, root_y, head_turn == t, word_turn == t)
        to_dot, from_dot, root_to_dot = (
            ratio(to_y, share * pivot_w),
            ratio(from_y, from_w),
            ratio(root_to_y, root_share * pivot_w),
        )
        pivot_dot = tl.sum(_scaled(share, share_e, PLAIN) * to_dot, 0)
        pivot_dot += zero_unless(
            _counts_root(t, length, SINGLE_ROOT), _scaled(root_share, root_share_e, PLAIN) * root_to_dot
        )
        tl.store(tangents + v + (heads + 1) * n, to_dot, mask=head_turn > t)
        tl.store(tangents + (v + 1) * n + words, from_dot, mask=word_turn > t)
        tl.store(tangents + v, root_to_dot)
        tl.store(tangents + (v + 1) * n + v, pivot_dot)
        fraction, root_fraction = _fractions(share, share_e, root_share, root_share_e, from_w, from_e, e, root_e, PLAIN)
        y += fraction * ((to_dot - pivot_dot)[:, None] + from_dot[None, :])
        root_y += root_fraction * (root_to_dot - pivot_dot + from_dot)


@triton.jit(do_not_specialize=["n"])
def distribute_tangents(
    scores, lengths, mantissas, exponents, pivots, turns, fits, log_partition, adjoint, grad_log_partition,
    grad_marginals, tangents, grad_scores, n, SINGLE_ROOT: tl.constexpr, N: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Gradient ``[batch, n+1, n]``: the derivative of the marginals in the direction ``grad_marginals``, and
    ``grad_log_partition`` ``[batch]`` times the marginals. ``tangents`` are from :func:`eliminate_tangents`.
    """
    i = tl.program_id(0).to(tl.int64)
    if (tl.load(fits + i) != 0) != PLAIN:
        return
    heads, words = tl.arange(0, N), tl.arange(0, N)
    length, item, head_turn, word_turn = _item(i, lengths, turns, n, heads, words)
    mantissas, exponents, pivots = mantissas + item, exponents + item, pivots + i * 2 * n
    adjoint, tangents = adjoint + item, tangents + item
    e, root_e = _load(exponents, length, n, heads, words, LEAST_EXPONENT)
    b, root_b = _load(adjoint, length, n, heads, words, 0.0)
    # The derivative of a divided by the mantissa of w, minus b times the derivative of log w.
    c, root_c = tl.zeros_like(b), tl.zeros_like(root_b)
    for done in tl.range(0, length, disable_licm=True):
        t = length - 1 - done
        v = _at_turn(t, words, word_turn)
        pivot_w, share, share_e, from_w, from_e, root_share, root_share_e = _step(
            mantissas, exponents, pivots, t, v, n, heads, words, head_turn > t, word_turn > t
        )
        to_b, from_b, root_to_b = _read(adjoint, v, n, heads, words, head_turn > t, word_turn > t, 0.0)
        to_dot, from_dot, root_to_dot = _read(tangents, v, n, heads, words, head_turn > t, word_turn > t, 0.0)
        pivot_dot = tl.load(tangents + (v + 1) * n + v)
        fraction, root_fraction = _fractions(share, share_e, root_share, root_share_e, from_w, from_e, e, root_e, PLAIN)
        part = fraction * (c + b * ((to_dot - pivot_dot)[:, None] + from_dot[None, :]))
        root_part = root_fraction * (root_c + root_b * (root_to_dot - pivot_dot + from_dot))
        grad_to, grad_from, root_grad_to = tl.sum(part, 1), tl.sum(part, 0) + root_part, tl.sum(root_part, 0)
        rest, rest_dot = 1 - tl.sum(from_b * from_w, 0), -tl.sum(grad_from, 0)
        grad_to += _scaled(share, share_e, PLAIN) * ((to_dot - pivot_dot) * rest + rest_dot)
        root_grad_share = _scaled(root_share, root_share_e, PLAIN) * ((root_to_dot - pivot_dot) * rest + rest_dot)
        root_grad_to += zero_unless(_counts_root(t, length, SINGLE_ROOT), root_grad_share)
        to_c, from_c = ratio(grad_to, share * pivot_w) - to_b * to_dot, ratio(grad_from, from_w) - from_b * from_dot
        c += _outer(head_turn == t, word_turn == t, to_c, from_c)
        root_c += zero_unless(word_turn == t, ratio(root_grad_to, root_share * pivot_w) - root_to_b * root_to_dot)
    possible = tl.load(log_partition + i) != float("-inf")
    scale = tl.load(grad_log_partition + i)
    f, root_f = _first_fractions(scores + item, e, root_e, length, n, heads, words, PLAIN)
    g, root_g = _load(grad_marginals + item, length, n, heads, words, 0.0)
    d, root_d = f * (c + b * (g + scale)), root_f * (root_c + root_b * (root_g + scale))
    d, root_d = tl.where(f == 0, 0.0, d), tl.where(root_f == 0, 0.0, root_d)
    _store(grad_scores + item, zero_unless(possible, d), zero_unless(possible, root_d), n, heads, words)


# Parts of the kernels


@triton.jit
def _weights(scores, length, n, heads, words, PLAIN: tl.constexpr):
    """Weights, and the scores by which they are divided if ``PLAIN``; they have no exponents then."""
    score, root_score = _load(scores, length, n, heads, words, float("-inf"))
    if PLAIN:
        best = tl.maximum(tl.max(score, 0), root_score)
        best = tl.where(best == float("-inf"), 0.0, best)
        w, root_w = tl.exp(score - best[None, :]), tl.exp(root_score - best)
        return w, w, root_w, root_w, best
    else:
        w, e = exponential(score)
        root_w, root_e = exponential(root_score)
        return w, e, root_w, root_e, root_w


@triton.jit
def _within(scores, length, n, heads, words):
    """Whether all scores are −∞ or at most ``RANGE`` below the best of their word, as 0 or 1; 0 for NaN."""
    score, root_score = _load(scores, length, n, heads, words, float("-inf"))
    best = tl.maximum(tl.max(score, 0), root_score)
    near = (score == float("-inf")) | (score > best[None, :] - RANGE)
    root_near = (root_score == float("-inf")) | (root_score > best - RANGE)
    return tl.min(tl.min(near.to(tl.int32), 1), 0) * tl.min(root_near.to(tl.int32), 0)


@triton.jit
def _pivot(to_w, to_e, counted_w, counted_e, PLAIN: tl.constexpr):
    """d, the sum of the weights of all heads."""
    if PLAIN:
        total = tl.sum(to_w, 0) + counted_w
        return total, total * 0
    else:
        pivot_e = tl.maximum(tl.max(to_e, 0), counted_e)
        return tl.sum(to_w * tl.exp2(to_e - pivot_e), 0) + counted_w * tl.exp2(counted_e - pivot_e), pivot_e


@triton.jit
def _scaled(share, share_e, PLAIN: tl.constexpr):
    if PLAIN:
        return share
    else:
        return share * tl.exp2(share_e)


@triton.jit
def _fractions(share, share_e, root_share, root_share_e, from_w, from_e, e, root_e, PLAIN: tl.constexpr):
    """What came through the word, of the weights with exponents ``e``, times their mantissas."""
    fraction, root_fraction = share[:, None] * from_w[None, :], root_share * from_w
    if PLAIN:
        return fraction, root_fraction
    else:
        scale = tl.exp2(share_e[:, None] + from_e[None, :] - e)
        return fraction * scale, root_fraction * tl.exp2(root_share_e + from_e - root_e)


@triton.jit
def _first_fractions(scores, e, root_e, length, n, heads, words, PLAIN: tl.constexpr):
    """The fraction of weights with exponents ``e`` that is the original weight, times their mantissas."""
    w, first_e, root_w, root_first_e, best = _weights(scores, length, n, heads, words, PLAIN)
    if PLAIN:
        return w, root_w
    else:
        return w * tl.exp2(first_e - e), root_w * tl.exp2(root_first_e - root_e)


@triton.jit
def _item(i, lengths, turns, n, heads, words):
    """Length, offset of the matrices, and order of elimination of a sentence."""
    head_turn = tl.load(turns + i * n + heads, mask=heads < n, other=NEVER)
    word_turn = tl.load(turns + i * n + words, mask=words < n, other=NEVER)
    return length_of(lengths, i, n), i * (n + 1) * n, head_turn, word_turn


@triton.jit
def length_of(lengths, i, n):
    # The host does not check lengths on a device, so they are clamped here.
    return tl.minimum(tl.maximum(tl.load(lengths + i), 0), n).to(tl.int32)


@triton.jit
def _turns(numbers, length, n, SINGLE_ROOT: tl.constexpr):
    """The step at which each word is eliminated; with a single root initially n, which means not yet eliminated."""
    return tl.where(numbers < length, n if SINGLE_ROOT else numbers, NEVER)


@triton.jit
def _best_connected(e, heads, words, head_remains, word_remains):
    """The remaining word with the largest weight from another remaining word."""
    others = head_remains[:, None] & (heads[:, None] != words[None, :])
    best = tl.max(tl.where(others, e, LEAST_EXPONENT), 0)
    return tl.argmax(tl.where(word_remains, best, 2 * LEAST_EXPONENT), 0)


@triton.jit
def _at_turn(t, words, word_turn):
    """The word that is eliminated at step t.

    It is looked up even if it is word t, because the compiler would otherwise carry all addresses in registers.
    """
    return tl.sum(tl.where(word_turn == t, words, 0), 0)


@triton.jit
def _counts_root(t, length, SINGLE_ROOT: tl.constexpr):
    return t == length - 1 if SINGLE_ROOT else t >= 0


@triton.jit
def _extract(tile, root, head_is_it, word_is_it):
    """The entries of a tile for one word: as dependent of each head, as head of each word, as dependent of the root."""
    to = tl.sum(zero_unless(word_is_it[None, :], tile), 1)
    return to, tl.sum(zero_unless(head_is_it[:, None], tile), 0), tl.sum(zero_unless(word_is_it, root), 0)


@triton.jit
def _read(matrix, v, n, heads, words, head_waits, word_waits, other):
    """The same entries, read from memory ``[n+1, n]``, with ``other`` for words already eliminated."""
    to = tl.load(matrix + v + (heads + 1) * n, mask=head_waits, other=other)
    return to, tl.load((matrix + (v + 1) * n) + words, mask=word_waits, other=other), tl.load(matrix + v)


@triton.jit
def keep(condition, w, e):
    return tl.where(condition, w, 0.0), tl.where(condition, e, LEAST_EXPONENT)


@triton.jit
def _step(mantissas, exponents, pivots, t, v, n, heads, words, head_waits, word_waits):
    """The numbers of a step: the mantissa of d; q(h), w(v→m) and the q of the root, 0 for words already eliminated.

    The mantissa of w(h→v) on the tape is that of q(h) times that of d.
    """
    to_w, from_w, root_to_w = _read(mantissas, v, n, heads, words, head_waits, word_waits, 0.0)
    to_e, from_e, root_to_e = _read(exponents, v, n, heads, words, head_waits, word_waits, LEAST_EXPONENT)
    pivot_w, pivot_e = tl.load(pivots + t), tl.load(pivots + n + t)
    share, share_e = share_of(to_w, to_e, pivot_w, pivot_e)
    root_share, root_share_e = share_of(root_to_w, root_to_e, pivot_w, pivot_e)
    return pivot_w, share, share_e, from_w, from_e, root_share, root_share_e


@triton.jit
def share_of(w, e, pivot_w, pivot_e):
    """w / d; where w is 0, it has the least exponent, however small d is."""
    return w / pivot_w, tl.where(w == 0, LEAST_EXPONENT, e - pivot_e)


@triton.jit
def zero_unless(condition, value):
    return tl.where(condition, value, 0.0)


@triton.jit
def ratio(a, b):
    return tl.where(b == 0, 0.0, a / tl.where(b == 0, 1.0, b))


@triton.jit
def _outer(head_is_it, word_is_it, to, from_):
    """A tile with the column and the row of one word, 0 where they cross."""
    return zero_unless(word_is_it[None, :], to[:, None]) + zero_unless(head_is_it[:, None], from_[None, :])


@triton.jit
def _load(matrix, length, n, heads, words, other):
    """Tile and vector of the root from ``[n+1, n]``, with ``other`` in padding."""
    real = (heads < length)[:, None] & (words < length)[None, :]
    tile = tl.load(matrix + (heads[:, None] + 1) * n + words[None, :], mask=real, other=other)
    return tile, tl.load(matrix + words, mask=words < length, other=other)


@triton.jit
def _store(matrix, tile, root, n, heads, words):
    real = (heads < n)[:, None] & (words < n)[None, :]
    tl.store(matrix + (heads[:, None] + 1) * n + words[None, :], tile, mask=real)
    tl.store(matrix + words, root, mask=words < n)
