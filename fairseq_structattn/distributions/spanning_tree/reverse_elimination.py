"""Exact samples of spanning trees: the elimination of words, reversed at random.

Elimination replaces the word v by arcs through v among the words that remain (:class:`.SpanningTree`):

    w'(h→m) = w(h→m) + q(h) w(v→m),    q(h) = w(h→v) / d_v.

Let T' be a tree of the words that remain, drawn in proportion to the weights w'. Each of its arcs h→m came through v
with probability q(h) w(v→m) / w'(h→m). Let S be the dependents of such arcs, and R the words, with the root, that are
still connected to the root without these arcs. The trees T' of the same S and R that differ only in the heads of S have
the total weight

    Π_S w(v→m) · Σ_{h∈R} q(h) · (Σ_h q(h))^(|S|-1),    Σ_h q(h) = 1,

because rooted trees over the parts that S heads are counted like those of Cayley's formula. So a tree T that gives S to
v, and v a head h in R with probability in proportion to q(h), has its own probability, in proportion to the weights w.
Starting from the root alone, the words are restored in reverse order. All terms are positive, however large the scores:
O(n³) once, and about O(n²) for each sample.

With a single root, q(root) is not part of the sum. The same count holds with the root as the head of v if and only if
no word is left in R.

An arc is added up from the original arc and from the ways through the words eliminated before. Its share of all of them
is drawn at once when the arc is chosen, as the word that it came through last.

The module is compiled if numba is installed.
"""

import math
from typing import Optional

import numpy as np
import torch
from torch import Tensor

from ..arcs import NO_HEAD
from ..kernels.numba_compile import kernel_if_available, over_batch, subroutine_if_available
from ..operations import without_gradient
from ..semirings import NEGATIVE_INFINITY
from .bounded_elimination import arrange, eliminate
from .root_order import reorder, root_child_last

# Largest relative error of a pivot d; beyond it, the weights of a sentence are eliminated in log space.
TOLERANCE = 1e-13
# Weights that underflow are below this.
SMALLEST = 1e-300
# Heads drawn from all words that remain, before the drawing is restricted to those connected to the root.
ATTEMPTS = 4

LEFT_13, RIGHT_7, LEFT_17, RIGHT_11 = np.uint64(13), np.uint64(7), np.uint64(17), np.uint64(11)
UNKNOWN, CONNECTED, SEPARATE = range(3)
NONE = -1


@without_gradient(
    "spanning_sample",
    "Tensor scores, Tensor lengths, bool single_root, int count",
    lambda scores, lengths, single_root, count, *_: (count,) + scores.shape[::2],
)
def sample(
    scores: Tensor,
    lengths: Tensor,
    single_root: bool,
    count: int,
    generator: Optional[torch.Generator] = None,
) -> Tensor:
    """Heads ``[count, batch, n]`` of samples; :data:`NO_HEAD` in padding and if no tree is possible.

    One seed for each sentence is drawn from ``generator``, by default PyTorch's generator for the CPU. So
    ``torch.manual_seed`` determines the samples, and the number of threads does not matter.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc.
        lengths: integers ``[batch]``.
        single_root: whether exactly one word is attached to the root.
        count: number of samples of each sentence.
        generator: of any device; ``None`` (default): PyTorch's default generator.
    """
    batch, n = scores.shape[0], scores.shape[-1]
    heads = torch.full((count, batch, n), NO_HEAD, device="cpu")
    device = "cpu" if generator is None else generator.device
    seeds = torch.randint(1, torch.iinfo(torch.int64).max, (batch,), device=device, generator=generator)
    if heads.numel() == 0:
        return heads.to(scores.device)
    words, wide = lengths.cpu(), scores.detach().cpu().double()
    order = root_child_last(wide, words) if single_root else None
    wide = reorder(wide, order).contiguous()
    best = wide.amax(-2, keepdim=True)
    log_weights = wide - best.masked_fill(best == NEGATIVE_INFINITY, 0)
    problem = log_weights.numpy(), log_weights.exp().numpy(), words.contiguous().numpy()
    over_batch(_trees, batch, *problem, single_root, TOLERANCE, seeds.cpu().numpy().astype(np.uint64), heads.numpy())
    return in_original_order(heads, order).to(scores.device)


def in_original_order(heads: Tensor, order: Optional[Tensor]) -> Tensor:
    """Heads ``[count, batch, n]``, numbered from 1 with the root as 0, of words that were put in an ``order``."""
    if order is None:
        return heads
    heads = heads.gather(-1, order.expand_as(heads))
    numbers = (order + 1).expand_as(heads).gather(-1, (heads - 1).clamp(min=0))
    return torch.where(heads > 0, numbers, heads)


@subroutine_if_available
def _uniform(random):
    """A number in [0, 1) of 53 bits (xorshift: Marsaglia, J. Stat. Soft. 2003); ``random[0]`` is the state, not 0."""
    bits = random[0]
    bits ^= bits << LEFT_13
    bits ^= bits >> RIGHT_7
    bits ^= bits << LEFT_17
    random[0] = bits
    return (bits >> RIGHT_11) * 2.0**-53


@subroutine_if_available
def _draw(cumulative, random):
    """An index, given the running sums of its weights, which are not all 0."""
    point = _uniform(random) * cumulative[-1]
    low, high = 0, len(cumulative) - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > point:
            high = middle
        else:
            low = middle + 1
    return low


# Elimination


@subroutine_if_available
def _eliminate_logarithms(tape, single_root, log_pivots):
    """:func:`.eliminate` of logarithms; returns whether a tree is possible."""
    n = len(log_pivots)
    for v in range(n):
        counted = n + 1 if v == n - 1 or not single_root else n
        best, mass = -np.inf, 0.0
        for h in range(v + 1, counted):
            best = max(best, tape[h, v])
        if best == -np.inf:
            return False
        for h in range(v + 1, counted):
            mass += math.exp(tape[h, v] - best)
        log_pivots[v] = best + math.log(mass)
        for h in range(v + 1, n + 1):
            tape[h, v] -= log_pivots[v]
            share = tape[h, v]
            for m in range(v + 1, n):
                through, direct = share + tape[v, m], tape[h, m]
                larger, smaller = max(through, direct), min(through, direct)
                if smaller > -np.inf:
                    larger += math.log1p(math.exp(smaller - larger))
                tape[h, m] = larger
    return True


# Reversal. A row of the columns, for each word, has the weights w(v→m) of the arcs to it from all words eliminated
# before, and then the running sums of q(h) over the heads that remain.


@subroutine_if_available
def _gather_columns(tape, in_logarithms, columns):
    n = len(columns)
    for v in range(n):
        for h in range(v):
            columns[v, h] = tape[h, v]
        total = 0.0
        for h in range(v + 1, n + 1):
            total += math.exp(tape[h, v]) if in_logarithms else tape[h, v]
            columns[v, h] = total


@subroutine_if_available
def _origin(original, shares, leaving, weight, in_logarithms, random):
    """The word that an arc came through last, :data:`NONE` if it is the original one.

    Args:
        original: weight of the original arc.
        shares: q(h) of all words that the arc may have come through.
        leaving: weights w(v→m) of these words.
        weight: of the arc, with all the ways that it may have come.
        in_logarithms: whether these are logarithms.
    """
    rest = _uniform(random)
    if in_logarithms:
        rest -= math.exp(original - weight)
    else:
        rest = rest * weight - original
    if rest < 0:
        return NONE
    way = NONE
    for v in range(len(shares) - 1, -1, -1):
        part = math.exp(shares[v] + leaving[v] - weight) if in_logarithms else shares[v] * leaving[v]
        if part > 0:
            way = v
            rest -= part
            if rest < 0:
                break
    return way


@subroutine_if_available
def _connect(heads, v, connected):
    """Mark the words after ``v`` that are connected to the root and not to ``v``."""
    n = len(heads)
    for h in range(v + 1, n):
        connected[h] = UNKNOWN
    connected[v], connected[n] = SEPARATE, CONNECTED
    for start in range(v + 1, n):
        end = start
        while connected[end] == UNKNOWN:
            end = heads[end]
        found, h = connected[end], start
        while connected[h] == UNKNOWN:
            connected[h] = found
            h = heads[h]


@subroutine_if_available
def _head(tape, columns, in_logarithms, heads, v, has_dependents, single_root, connected, cumulative, random):
    """A head of ``v`` that is connected to the root, in proportion to q(h)."""
    n = len(heads)
    counted = n if single_root else n + 1
    if v + 1 == counted:
        return n
    # The restriction to R takes time in proportion to n, and is seldom needed.
    for _ in range(ATTEMPTS):
        h = v + 1 + _draw(columns[v, v + 1 : counted], random)
        end = h
        while has_dependents and end != v and end != n:
            end = heads[end]
        if end != v:
            return h
    _connect(heads, v, connected)
    # All of these q(h) may be below the range of float64, but not beside the largest one.
    nothing = -np.inf if in_logarithms else 0.0
    largest, total = nothing, 0.0
    for h in range(v + 1, counted):
        if connected[h] == CONNECTED:
            largest = max(largest, tape[h, v])
    if largest == nothing:
        return n
    for h in range(v + 1, counted):
        if connected[h] == CONNECTED:
            total += math.exp(tape[h, v] - largest) if in_logarithms else tape[h, v] / largest
        cumulative[h] = total
    return v + 1 + _draw(cumulative[v + 1 : counted], random)


@subroutine_if_available
def _reverse(weights, tape, columns, pivots, in_logarithms, single_root, random, heads):
    """Draw the heads of all words; the root is n."""
    n = len(pivots)
    connected, cumulative = np.empty(n + 1, np.int64), np.empty(n + 1)
    # Lists of the words whose arc came through the same word: its first one, and the one after each.
    first, following = np.full(n, NONE), np.empty(n, np.int64)
    for v in range(n - 1, -1, -1):
        dependent = first[v]
        while dependent != NONE:
            heads[dependent] = v
            dependent = following[dependent]
        dependent = first[v]
        head = _head(
            tape, columns, in_logarithms, heads, v, dependent != NONE, single_root, connected, cumulative, random
        )
        heads[v] = head
        original = weights[head + 1 if head < n else 0, v]
        weight = tape[head, v] + pivots[v] if in_logarithms else tape[head, v] * pivots[v]
        origin = _origin(original, tape[head, :v], columns[v, :v], weight, in_logarithms, random)
        if origin != NONE:
            first[origin], following[v] = v, first[origin]
        while dependent != NONE:
            after = following[dependent]
            original, weight = weights[v + 1, dependent], tape[v, dependent]
            origin = _origin(original, tape[v, :v], columns[dependent, :v], weight, in_logarithms, random)
            if origin != NONE:
                first[origin], following[dependent] = dependent, first[origin]
            dependent = after


@kernel_if_available
def _trees(first, stride, log_weights, weights, lengths, single_root, tolerance, seeds, heads):
    random = np.empty(1, np.uint64)
    for i in range(first, len(lengths), stride):
        n = lengths[i]
        tape, columns, pivots = np.empty((n + 1, n)), np.empty((n, n + 1)), np.empty(n)
        tree = np.empty(n, np.int64)
        arrange(weights[i], n, tape)
        in_logarithms = not eliminate(tape, single_root, SMALLEST, tolerance, pivots)
        if in_logarithms:
            arrange(log_weights[i], n, tape)
            if not _eliminate_logarithms(tape, single_root, pivots):
                continue
        _gather_columns(tape, in_logarithms, columns)
        given = log_weights[i] if in_logarithms else weights[i]
        random[0] = seeds[i]
        for s in range(len(heads)):
            _reverse(given, tape, columns, pivots, in_logarithms, single_root, random, tree)
            for m in range(n):
                heads[s, i, m] = 0 if tree[m] == n else tree[m] + 1
