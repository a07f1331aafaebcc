"""Which word is eliminated last, where the tree has a single root.

The root counts as a head of the last word only, so the others need a head among those that remain. That is certain if
the last word could be the root's child: every other word is then reached from it. Where no arc is forbidden any word
will do, and the last one of the sentence stays where it is.

An arc that scores far below the best one of its word counts as forbidden at first: a pivot of such arcs alone, in a
sentence that can do without them, would lose all digits when the large numbers cancel in the end.
"""

from typing import Optional

import torch
from torch import Tensor

from ..operations import has_values
from ..semirings import NEGATIVE_INFINITY

# Far below, in nats.
FAR = 1e5


def root_child_last(scores: Tensor, lengths: Tensor) -> Optional[Tensor]:
    """The order ``[batch, n]`` of words, numbered from 0, that exchanges the last word of each sentence with one that
    can be the root's child; it is its own inverse. ``None`` where all may stay in order.

    A sentence without such a word has no tree with a single root, and stays in order.

    Args:
        scores: ``[batch, n+1, n]``, n > 0, −inf where there is no arc.
        lengths: integers ``[batch]``.
    """
    scores = scores.detach()
    # −inf less −inf is no number, which is not above anything.
    near = scores - scores.amax(-2, keepdim=True) > -FAR
    # To ask an accelerator would be to wait for it.
    if scores.device.type == "cpu" and has_values(scores, lengths) and near.sum() == (lengths * lengths).sum():
        return None
    return _order(near, scores > NEGATIVE_INFINITY, lengths)


def reorder(arcs: Tensor, order: Optional[Tensor]) -> Tensor:
    """``[batch, n+1, n]`` with words in the given order, both as heads and as dependents."""
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
    """Words ``[batch, n]`` that have an arc from the root, and from which arcs lead to all others."""
    return (_reachable(arcs[:, 1:]) | ~real.unsqueeze(-2)).all(-1) & arcs[:, 0]


def _reachable(arcs: Tensor) -> Tensor:
    """Transitive and reflexive closure of ``[batch, n, n]``, boolean."""
    n = arcs.shape[-1]
    reached = (arcs | torch.eye(n, dtype=torch.bool, device=arcs.device)).float()
    for _ in range(n.bit_length()):
        reached = (reached @ reached).clamp(max=1)
    return reached > 0
