"""Spanning trees in plain PyTorch: the specification that the fast implementation is tested against.

It eliminates words in log space, and the gradient of log Z is the marginals. It runs on any device and dtype, takes
scores of any size, including −inf, and can be differentiated any number of times.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..operations import value_and_marginals
from ..semirings import NEGATIVE_INFINITY, LogSemiring
from .root_order import reorder, root_child_last


def log_partition(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """log Z, ``[batch]``.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc, which includes padding and arcs from a word to itself.
        lengths: integers ``[batch]``.
        single_root: whether exactly one word is attached to the root.
    """
    n = scores.shape[-1]
    if n == 0:
        total = scores.sum((-2, -1))
        return total + NEGATIVE_INFINITY if single_root else total
    if single_root:
        scores = reorder(scores, root_child_last(scores, lengths))
    best = scores.detach().amax(-2)
    best = best.masked_fill(best == NEGATIVE_INFINITY, 0)
    weights = scores - best.unsqueeze(-2)
    # A word in padding is attached to the root with score 0 and takes no dependents.
    padding = torch.arange(n, device=scores.device) >= lengths.unsqueeze(-1)
    weights = torch.cat((weights[:, :1].masked_fill(padding.unsqueeze(1), 0), weights[:, 1:]), 1)
    total = best.sum(-1)
    for v in range(n):
        without_root = single_root & (v < lengths - 1)
        pivot, weights = _eliminate_first(weights, without_root)
        total = total + pivot
    impossible = total == NEGATIVE_INFINITY
    if single_root:
        impossible = impossible | (lengths == 0)
    # The mask also stops the gradient, which words eliminated before the impossible one would receive.
    return total.masked_fill(impossible, NEGATIVE_INFINITY)


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``. Arguments as for :func:`log_partition`.

    The results carry a graph where gradients are enabled and the scores need them.
    """
    value, (marginals,) = value_and_marginals(lambda scores: log_partition(scores, lengths, single_root), scores)
    return value, marginals


def argmax(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Heads ``[batch, n]`` of a best tree; ``NO_HEAD`` in padding and if no tree is possible."""
    from . import chu_liu_edmonds

    return chu_liu_edmonds.argmax(scores, lengths, single_root)


def sample(
    scores: Tensor, lengths: Tensor, single_root: bool, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Heads ``[count, batch, n]`` of exact samples; ``NO_HEAD`` in padding and if no tree is possible."""
    from . import reverse_elimination

    return reverse_elimination.sample(scores, lengths, single_root, count, generator=generator)


def _eliminate_first(weights: Tensor, without_root: Tensor) -> Tuple[Tensor, Tensor]:
    """Sum out the head of the first of k words.

    Args:
        weights: ``[batch, k+1, k]``, logarithms; the root is the first head.
        without_root: ``[batch]``, whether the root is excluded from the heads of this word.

    Returns:
        log d, ``[batch]``, and weights ``[batch, k, k-1]`` among the root and the words that remain.
    """
    words = weights.shape[-1] - 1
    heads = torch.cat((weights[:, :1], weights[:, 2:]), 1)
    arriving, direct, leaving = heads[..., 0], heads[..., 1:], weights[:, 1, 1:]
    root_only = torch.arange(words + 1, device=weights.device) == 0
    counted = arriving.masked_fill(without_root.unsqueeze(-1) & root_only, NEGATIVE_INFINITY)
    pivot = LogSemiring.sum(counted, -1)
    share = arriving - pivot.masked_fill(pivot == NEGATIVE_INFINITY, 0).unsqueeze(-1)
    through = share.unsqueeze(-1) + leaving.unsqueeze(-2)
    remaining = LogSemiring.sum(torch.stack((direct, through)), 0)
    to_itself = torch.eye(words + 1, dtype=torch.bool, device=weights.device)[:, 1:]
    return pivot, remaining.masked_fill(to_itself, NEGATIVE_INFINITY)
