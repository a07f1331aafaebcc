"""The best spanning tree, by the algorithm of Chu & Liu (Scientia Sinica 1965) and Edmonds (J. Res. NBS 1967).

Every word takes its best head. A resulting cycle is contracted to one node, whose incoming arcs score their gain over
the arc of the cycle that they replace. A path of best heads is followed until it reaches the root or a node already
attached to it (Gabow et al., Combinatorica 1986). This takes at most O(n²) for each contraction.

For a single root, the weight of an arc is a pair: first −1 for an arc from the root and 0 for any other, then the
score. Pairs are added by component and compared lexicographically, so the best tree has as few arcs from the root as
possible, and the best score among such trees. The algorithm only adds, subtracts and compares, so it is exact with
pairs, without any large constant. The arcs of a cycle do not come from the root, so the first component never changes.
In effect, the root is taken only if no other head is left. (The problem: Zmigrod et al., EMNLP 2020.)

The module is compiled if numba is installed.
"""

import numpy as np
import torch
from torch import Tensor

from ..arcs import NO_HEAD
from ..kernels.numba_compile import kernel_if_available, over_batch, subroutine_if_available
from ..operations import without_gradient

NEW, ON_PATH, DONE, CONTRACTED = range(4)


@without_gradient(
    "spanning_argmax", "Tensor scores, Tensor lengths, bool single_root", lambda scores, *_: scores.shape[::2]
)
def argmax(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Heads ``[batch, n]`` of a best tree; :data:`NO_HEAD` in padding and if no tree is possible. Among tied heads, a
    word is preferred to the root, and the leftmost word to the others.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc.
        lengths: integers ``[batch]``.
        single_root: whether exactly one word is attached to the root.
    """
    batch, n = scores.shape[0], scores.shape[-1]
    heads = torch.full((batch, n), NO_HEAD, device="cpu")
    wide = scores.detach().cpu().double().contiguous().numpy()
    over_batch(_best_trees, batch, wide, lengths.cpu().contiguous().numpy(), single_root, heads.numpy())
    return heads.to(scores.device)


@subroutine_if_available
def _best_head(weights, state, node, single_root):
    best, head = -np.inf, -1
    for h in range(1, len(state)):
        if state[h] != CONTRACTED and h != node and weights[h, node] > best:
            best, head = weights[h, node], h
    root_may_serve = head == -1 or not single_root
    return 0 if root_may_serve and weights[0, node] > best else head


@subroutine_if_available
def _contract(weights, leaves, enters, state, chosen, cycle):
    """Let ``cycle[0]`` stand for all nodes of the cycle. The best of parallel arcs is kept."""
    node = cycle[0]
    for member in cycle[1:]:
        state[member] = CONTRACTED
    for member in cycle:
        for h in range(len(state)):
            if state[h] != CONTRACTED and h != node:
                weights[h, member] -= chosen[member]
    for member in cycle[1:]:
        for other in range(len(state)):
            if state[other] == CONTRACTED or other == node:
                continue
            if weights[other, member] > weights[other, node]:
                weights[other, node] = weights[other, member]
                leaves[other, node], enters[other, node] = leaves[other, member], enters[other, member]
            if weights[member, other] > weights[node, other]:
                weights[node, other] = weights[member, other]
                leaves[node, other], enters[node, other] = leaves[member, other], enters[member, other]


@subroutine_if_available
def _best_tree(weights, single_root, heads):
    """Write the heads of words 1..n to ``heads[0]``…, given ``weights[h, m]`` ``[n+1, n+1]``, which are overwritten.

    Returns whether a tree exists.
    """
    size = len(weights)
    # The arc between words that each arc between nodes stands for.
    leaves, enters = np.empty((size, size), np.int64), np.empty((size, size), np.int64)
    for h in range(size):
        leaves[h, :] = h
        enters[:, h] = h
    state, chosen, path = np.full(size, NEW), np.zeros(size), np.empty(size, np.int64)
    # Numbers of words and contracted cycles, and the cycle that each was contracted into.
    identity, within = np.arange(size), np.full(2 * size, -1)
    arc_head, arc_word, known = np.zeros(2 * size, np.int64), np.zeros(2 * size, np.int64), size
    for start in range(1, size):
        if state[start] != NEW:
            continue
        path[0], depth = start, 1
        state[start] = ON_PATH
        while depth > 0:
            node = path[depth - 1]
            head = _best_head(weights, state, node, single_root)
            if head == -1:
                return False
            chosen[node] = weights[head, node]
            arc_head[identity[node]], arc_word[identity[node]] = leaves[head, node], enters[head, node]
            if head == 0 or state[head] == DONE:
                for member in path[:depth]:
                    state[member] = DONE
                depth = 0
            elif state[head] == NEW:
                state[head] = ON_PATH
                path[depth] = head
                depth += 1
            else:
                first = depth - 1
                while path[first] != head:
                    first -= 1
                for member in path[first:depth]:
                    within[identity[member]] = known
                _contract(weights, leaves, enters, state, chosen, path[first:depth])
                identity[head] = known
                known += 1
                depth = first + 1
    # The arc into a cycle replaces the arc into the member that it enters. Outer cycles come first.
    for cycle in range(known - 1, size - 1, -1):
        member = arc_word[cycle]
        while within[member] != cycle:
            member = within[member]
        arc_head[member], arc_word[member] = arc_head[cycle], arc_word[cycle]
    roots = 0
    for word in range(1, size):
        roots += arc_head[word] == 0
    if single_root and roots != 1:
        return False
    for m in range(1, size):
        heads[m - 1] = arc_head[m]
    return True


@kernel_if_available
def _best_trees(first, stride, scores, lengths, single_root, heads):
    for i in range(first, len(lengths), stride):
        n = lengths[i]
        weights = np.full((n + 1, n + 1), -np.inf)
        for h in range(n + 1):
            for m in range(n):
                weights[h, m + 1] = scores[i, h, m]
        _best_tree(weights, single_root, heads[i])
