"""Exact samples of spanning trees.

Wilson's algorithm (STOC 1996): from each word in turn, walk from head to head, drawing heads in proportion to their
weights, until the walk reaches the tree built so far. A word keeps the head by which the walk left it last. The loops
of the walks are independent of the tree that remains without them. So a walk that takes too long, as among words that
prefer each other to all other heads, may be abandoned without changing the distribution of the other trees.

An abandoned sample is drawn by a loop-erased walk, in O(n⁴). The head by which a walk leaves v for the last time has a
probability proportional to its weight times the probability of reaching the tree from it before the path so far.
These probabilities solve a linear system, which is solved in log space by elimination, as for log Z.

For a single root, the root's child is drawn first, from the marginals, and then a tree rooted in this word.

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

# Limit of the steps of a walk in a sentence of n words, in units of n³: about the cost of the loop-erased walk.
PATIENCE = 1.0

LEFT_13, RIGHT_7, LEFT_17, RIGHT_11 = np.uint64(13), np.uint64(7), np.uint64(17), np.uint64(11)


@without_gradient(
    "spanning_sample",
    "Tensor scores, Tensor lengths, bool single_root, int count, Tensor log_partition, Tensor marginals",
    lambda scores, lengths, single_root, count, *_: (count,) + scores.shape[::2],
)
def sample(
    scores: Tensor,
    lengths: Tensor,
    single_root: bool,
    count: int,
    log_partition: Tensor,
    marginals: Tensor,
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
        log_partition: ``[batch]``.
        marginals: ``[batch, n+1, n]``.
        generator: of any device; ``None`` (default): PyTorch's default generator.
    """
    batch, n = scores.shape[0], scores.shape[-1]
    heads = torch.full((count, batch, n), NO_HEAD, device="cpu")
    device = "cpu" if generator is None else generator.device
    seeds = torch.randint(1, torch.iinfo(torch.int64).max, (batch,), device=device, generator=generator)
    words = torch.where(log_partition > NEGATIVE_INFINITY, lengths, lengths.new_zeros(()))
    on_root = marginals[:, 0].clamp(min=0).cumsum(-1)
    problem = [tensor.detach().cpu().contiguous().numpy() for tensor in (scores.double(), on_root.double(), words)]
    over_batch(_trees, batch, *problem, single_root, PATIENCE, seeds.cpu().numpy().astype(np.uint64), heads.numpy())
    return heads.to(scores.device)


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
    """An index, given the running sums of its weights."""
    point = _uniform(random) * cumulative[-1]
    low, high = 0, len(cumulative) - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] > point:
            high = middle
        else:
            low = middle + 1
    return low


@subroutine_if_available
def _accumulate(log_weights, cumulative):
    best, total = -np.inf, 0.0
    for k in range(len(log_weights)):
        best = max(best, log_weights[k])
    for k in range(len(log_weights)):
        if log_weights[k] > -np.inf:
            total += math.exp(log_weights[k] - best)
        cumulative[k] = total


@subroutine_if_available
def _log_add(a, b):
    larger, smaller = max(a, b), min(a, b)
    return larger + math.log1p(math.exp(smaller - larger)) if smaller > -np.inf else larger


@subroutine_if_available
def _walk(cumulative, in_tree, steps, random, heads):
    """Wilson's algorithm; returns ``False`` if it does not end within ``steps``."""
    for start in range(1, len(in_tree)):
        word = start
        while not in_tree[word]:
            if steps <= 0:
                return False
            steps -= 1
            heads[word] = _draw(cumulative[word - 1], random)
            word = heads[word]
        word = start
        while not in_tree[word]:
            in_tree[word] = True
            word = heads[word]
    return True


@subroutine_if_available
def _escape(log_weights, in_tree, on_path, escape):
    """Write the log-probability that a walk from each node reaches the tree before the path."""
    free, k = np.empty(len(in_tree), np.int64), 0
    for h in range(1, len(in_tree)):
        if not in_tree[h] and not on_path[h]:
            free[k] = h
            k += 1
    # Heads in the order: free words, then the tree, then the path.
    moves = np.full((k + 2, k), -np.inf)
    for m in range(k):
        for h in range(k):
            moves[h, m] = log_weights[free[h], free[m] - 1]
        for h in range(len(in_tree)):
            if in_tree[h]:
                moves[k, m] = _log_add(moves[k, m], log_weights[h, free[m] - 1])
            elif on_path[h]:
                moves[k + 1, m] = _log_add(moves[k + 1, m], log_weights[h, free[m] - 1])
    for u in range(k):
        pivot = -np.inf
        for h in range(u + 1, k + 2):
            pivot = _log_add(pivot, moves[h, u])
        for h in range(u + 1, k + 2):
            moves[h, u] -= pivot
            for m in range(u + 1, k):
                moves[h, m] = _log_add(moves[h, m], moves[h, u] + moves[u, m])
    for h in range(len(in_tree)):
        escape[h] = 0 if in_tree[h] else -np.inf
    for u in range(k - 1, -1, -1):
        reached = moves[k, u]
        for h in range(u + 1, k):
            reached = _log_add(reached, moves[h, u] + escape[free[h]])
        escape[free[u]] = reached


@subroutine_if_available
def _walk_without_loops(log_weights, in_tree, random, heads):
    size = len(in_tree)
    escape, cumulative, on_path = np.empty(size), np.empty(size), np.zeros(size, np.bool_)
    for start in range(1, size):
        word = start
        while not in_tree[word]:
            on_path[word] = True
            _escape(log_weights, in_tree, on_path, escape)
            for h in range(size):
                escape[h] += log_weights[h, word - 1]
            _accumulate(escape, cumulative)
            heads[word] = _draw(cumulative, random)
            word = heads[word]
        for h in range(size):
            in_tree[h] = in_tree[h] or on_path[h]
            on_path[h] = False


@kernel_if_available
def _trees(first, stride, scores, on_root, words, single_root, patience, seeds, heads):
    random = np.empty(1, np.uint64)
    for i in range(first, len(words), stride):
        n = words[i]
        if n == 0:
            continue
        random[0] = seeds[i]
        log_weights = scores[i, : n + 1, :n].copy()
        if single_root:
            log_weights[0] = -np.inf
        cumulative = np.empty((n, n + 1))
        for m in range(n):
            _accumulate(log_weights[:, m], cumulative[m])
        tree = np.empty(n + 1, np.int64)
        for s in range(len(heads)):
            start = 0
            if single_root:
                start = _draw(on_root[i, :n], random) + 1
                tree[start] = 0
            in_tree = np.zeros(n + 1, np.bool_)
            in_tree[start] = True
            if not _walk(cumulative, in_tree, patience * n**3, random, tree):
                in_tree[:] = False
                in_tree[start] = True
                _walk_without_loops(log_weights, in_tree, random, tree)
            for m in range(n):
                heads[s, i, m] = tree[m + 1]
