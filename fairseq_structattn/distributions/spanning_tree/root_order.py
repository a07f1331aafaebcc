"""The word that is eliminated last if trees have a single root.

The root counts as a head of the last word only, so every other word needs a head among the words that remain. It has
one if the last word can be the root's child, because all other words are then reachable from it. If no arc is
forbidden, any word will do, and the last word of the sentence stays last.

An arc that scores far below the best arc of its word counts as forbidden at first. A pivot of such arcs alone, in a
sentence that has trees without them, would lose all digits when large numbers cancel in the end.
"""

from typing import Optional

import torch
from torch import Tensor

from ..operations import has_values
from ..semirings import NEGATIVE_INFINITY

# How many nats are far below.
FAR = 1e5


def root_child_last(scores: Tensor, lengths: Tensor) -> Optional[Tensor]:
    """The order ``[batch, n]`` of words, numbered from 0, that exchanges the last word of each sentence with one that
    can be the root's child. The order is its own inverse. ``None`` means that all sentences stay in order.

    A sentence without such a word has no tree with a single root, and stays in order.

    Args:
        scores: ``[batch, n+1, n]``, n > 0, −inf where there is no arc.
        lengths: integers ``[batch]``.
    """
    scores = scores.detach()
    # −inf − (−inf) is NaN, which compares as not above.
    near = scores - scores.amax(-2, keepdim=True) > -FAR
    # Reading a value from an accelerator would synchronise with it.
    if scores.device.type == "cpu" and has_values(scores, lengths) and near.sum() == (lengths * lengths).sum():
        return None
    return _order(near, scores > NEGATIVE_INFINITY, lengths)


def reorder(arcs: Tensor, order: Optional[Tensor]) -> Tensor:
    """``arcs`` ``[batch, n+1, n]`` with words in the given order, both as heads and as dependents."""
    if order is None:
        return arcs
    heads = torch.nn.functional.pad(order + 1, (1, 0))
    dependents = order.unsqueeze(-2).expand_as(arcs)
    return arcs.gather(-2, heads.unsqueeze(-1).expand_as(arcs)).gather(-1, dependents)


def _order(near: Tensor, allowed: Tensor, lengths: Tensor) -> Tensor:
    n = near.shape[-1]
    numbers = torch.arange(n, device=near.device)
    real = numbers < lengths.unsqueeze(-1)
    candidates = _root_children(near, real)
    candidates = torch.where(candidates.any(-1, keepdim=True), candidates, _root_children(allowed, real))
    last = (lengths - 1).clamp(min=0)
    child = torch.where(candidates.any(-1), (candidates * (numbers + 1)).argmax(-1), last).unsqueeze(-1)
    last = last.unsqueeze(-1)
    return numbers.expand_as(real).scatter(-1, child, last).scatter(-1, last, child)


def _root_children(arcs: Tensor, real: Tensor) -> Tensor:
    """Mask ``[batch, n]`` of words that have an arc from the root and from which all other words are reachable."""
    return (_reachable(arcs[:, 1:]) | ~real.unsqueeze(-2)).all(-1) & arcs[:, 0]


def _reachable(arcs: Tensor) -> Tensor:
    """Transitive and reflexive closure of ``[batch, n, n]``, boolean."""
    n = arcs.shape[-1]
    reached = (arcs | torch.eye(n, dtype=torch.bool, device=arcs.device)).float()
    for _ in range(n.bit_length()):
        reached = (reached @ reached).clamp(max=1)
    return reached > 0
