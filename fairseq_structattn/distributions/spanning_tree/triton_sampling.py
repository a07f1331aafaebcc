"""Samples of spanning trees on the GPU: the elimination of words, reversed at random.

The algorithm is that of :mod:`.reverse_elimination`, where it is derived. A program draws a tree, and a lane has a
word: its head so far, and the word that its arc came through last (``through``, or :data:`ORIGINAL`). Weights are those
of the tape of :mod:`.triton_blocked`, as logarithms to base 2, because each choice needs only their ratios.
"""

import triton
import triton.language as tl

from ..kernels.triton_draw import drawn
from ..kernels.triton_scaled import LOG2_E
from .triton_elimination import length_of

ORIGINAL = tl.constexpr(-1)


@triton.jit(do_not_specialize=["batch", "n"])
def restore(
    scores, lengths, mantissas, exponents, pivots, log_partition, seeds, links, heads, batch, n,
    SINGLE_ROOT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Fill ``heads`` ``[count, batch, n]`` of possible items, n < ``WORDS``, by ``seeds`` ``[count, batch]``. ``links``
    ``[count, batch, WORDS]`` is room for the heads where lanes follow them."""
    place = tl.program_id(0).to(tl.int64)
    i = place % batch
    # False for NaN.
    if not (tl.load(log_partition + i) > float("-inf")):
        return
    length, item = length_of(lengths, i, n), i * (n + 1) * n
    scores, mantissas, exponents, pivots = scores + item, mantissas + item, exponents + item, pivots + i * 2 * n
    links, seed = links + place * WORDS, tl.load(seeds + place)
    lanes = tl.arange(0, WORDS)
    head, through = lanes * 0, lanes * 0 + ORIGINAL
    draws = 0
    for done in range(length):
        v = length - 1 - done
        dependents = (through == v) & (lanes > v) & (lanes < length)
        head = tl.where(dependents, v, head)
        # The root, which is behind the words, is no head of another word than the last if it has a single child.
        allowed = (lanes > v) & ((lanes < length) | ((lanes == length) & (not SINGLE_ROOT or v == length - 1)))
        count = tl.sum(dependents.to(tl.int32), 0)
        if count > 0:
            allowed &= _end(links, head, lanes, v, length, WORDS) == length
        weights, some = _ratios(_logarithm(mantissas, exponents, lanes * n + v, allowed))
        chosen = tl.where(some, drawn(weights, tl.rand(seed, draws), lanes, WORDS), length)
        origin = _origin(scores, mantissas, exponents, pivots, chosen, v, v, length, n, tl.rand(seed, draws + 1), lanes)
        head, through = tl.where(lanes == v, chosen, head), tl.where(lanes == v, origin, through)
        draws += 2
        for _ in range(count):
            m = tl.min(tl.where(dependents, lanes, WORDS), 0)
            origin = _origin(scores, mantissas, exponents, pivots, v, m, v, length, n, tl.rand(seed, draws), lanes)
            through, dependents = tl.where(lanes == m, origin, through), dependents & (lanes != m)
            draws += 1
    number = tl.where(head == length, 0, head + 1)
    tl.store(heads + place * n + lanes, number.to(tl.int64), mask=lanes < length)


@triton.jit
def _end(links, head, lanes, v, length, WORDS: tl.constexpr):
    """Where the heads of the words after v lead to: v, or the root. Each round follows twice as many."""
    end = tl.where((lanes > v) & (lanes < length), head, lanes)
    reached = 1
    while reached < length:
        tl.store(links + lanes, end)
        tl.debug_barrier()
        end = tl.load(links + end)
        tl.debug_barrier()
        reached *= 2
    return end


@triton.jit
def _origin(scores, mantissas, exponents, pivots, h, m, v, length, n, share, lanes):
    """The word before v that the arc from h to m came through last: lane v stands for the original arc."""
    ways = lanes < v
    share_of_h = _logarithm(mantissas, exponents, h * n + lanes, ways) - _logarithm(pivots, pivots + n, lanes, ways)
    through = share_of_h + _logarithm(mantissas, exponents, lanes * n + m, ways)
    original = tl.load(scores + tl.where(h == length, 0, h + 1) * n + m) * LOG2_E
    through = tl.where(ways, through, tl.where(lanes == v, original, float("-inf")))
    weights, some = _ratios(through)
    origin = drawn(weights, share, lanes, v + 1)
    return tl.where(some & (origin < v), origin, ORIGINAL)


@triton.jit
def _logarithm(mantissas, exponents, at, mask):
    """To base 2; −∞ for 0, and beyond the mask."""
    mantissa = tl.load(mantissas + at, mask=mask, other=0.0)
    exponent = tl.load(exponents + at, mask=mask, other=0.0)
    return tl.where(mantissa > 0, tl.log2(mantissa) + exponent, float("-inf"))


@triton.jit
def _ratios(logarithms):
    """Weights in proportion to the largest, and whether there is one."""
    largest = tl.max(logarithms, 0)
    some = largest > float("-inf")
    return tl.where(some, tl.exp2(logarithms - largest), 0.0), some
