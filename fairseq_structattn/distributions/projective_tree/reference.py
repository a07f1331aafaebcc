"""Projective dependency trees in plain PyTorch: the specification that the fast implementation is tested against.

It is one recursion over a semiring, whose gradient is the marginals, the best tree or a sample. It runs on any device
and dtype, takes −inf anywhere and can be differentiated any number of times.
"""

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..arcs import NO_HEAD
from ..operations import usable, value_and_marginals
from ..semirings import NEGATIVE_INFINITY, LogSemiring, MaxSemiring, SamplingSemiring, Semiring


def total(scores: Tensor, lengths: Tensor, single_root: bool, semiring: Semiring = LogSemiring) -> Tensor:
    """Semiring sum over all projective trees, ``[batch]``: log Z in the log semiring.

    The inside recursion of Eisner (COLING 1996), as in figure 6 of Kim et al. (ICLR 2017), over the nodes 0 (root) to
    n. A complete span i..j has a head at one end, whose descendants reach to the other end. An incomplete span has an
    arc between its ends, above two adjacent complete spans. All spans of one width are computed at once:
    ``right[width][:, i]`` is the complete span i..i+width with its head at the left end, ``left`` with the head at the
    right end.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc.
        lengths: integers ``[batch]``.
        single_root: count only the trees with one word under the root.
    """
    batch, nodes = scores.shape[:2]
    right, left = [scores.new_zeros(batch, nodes)], [scores.new_zeros(batch, nodes)]
    extensible = [right[0]]
    right_arcs: List[Any] = [None]
    left_arcs: List[Any] = [None]
    is_root = torch.arange(nodes, device=scores.device) == 0
    for width in range(1, nodes):
        spans = nodes - width
        halves = _sum(semiring, [extensible[k][:, :spans] + left[width - 1 - k][:, k + 1 :] for k in range(width)])
        # The root, node 0, is never a dependent.
        leftward = F.pad(scores.diagonal(-1 - width, 1, 2), (1, 0), value=NEGATIVE_INFINITY)
        right_arcs.append(halves + scores.diagonal(width - 1, 1, 2))
        left_arcs.append(halves + leftward)
        right.append(_sum(semiring, [right_arcs[k][:, :spans] + right[width - k][:, k:] for k in range(1, width + 1)]))
        left.append(_sum(semiring, [left[k][:, :spans] + left_arcs[width - k][:, k:] for k in range(width)]))
        # With a single root, a root that has a child takes no other.
        extensible.append(right[width].masked_fill(is_root[:spans], NEGATIVE_INFINITY) if single_root else right[width])
    by_length = torch.stack([spans[:, 0] for spans in right], 1)
    if single_root:
        by_length = by_length.masked_fill(is_root, NEGATIVE_INFINITY)
    return by_length.gather(1, lengths.unsqueeze(1)).squeeze(1)


def expectations(
    scores: Tensor, lengths: Tensor, single_root: bool, semiring: Semiring = LogSemiring
) -> Tuple[Tensor, Tensor]:
    """The total ``[batch]`` and its gradient ``[batch, n+1, n]``: marginals in the log semiring, a tree in the others.

    Arguments as for :func:`total`. The results carry a graph where gradients are enabled and the scores need them.
    """
    value, (gradient,) = value_and_marginals(
        lambda scores: total(scores, usable(lengths), single_root, semiring), scores
    )
    return value, gradient


def argmax(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Heads ``[batch, n]`` of a best tree, :data:`NO_HEAD` in padding and where no tree is possible."""
    return _heads(expectations(scores.detach(), lengths, single_root, MaxSemiring)[1])


def sample(
    scores: Tensor, lengths: Tensor, single_root: bool, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Heads ``[count, batch, n]`` of samples, :data:`NO_HEAD` in padding and where no tree is possible."""
    batch, _, n = scores.shape
    copies = scores.detach().expand(count, batch, n + 1, n).reshape(count * batch, n + 1, n)
    trees = expectations(copies, lengths.repeat(count), single_root, SamplingSemiring(generator))[1]
    return _heads(trees).reshape(count, batch, n)


def _sum(semiring: Semiring, terms: list) -> Tensor:
    return semiring.sum(torch.stack(terms), 0)


def _heads(arcs: Tensor) -> Tensor:
    return arcs.argmax(-2).masked_fill(arcs.sum(-2) == 0, NO_HEAD)
