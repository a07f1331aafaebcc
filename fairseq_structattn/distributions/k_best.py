"""The k best structures, by an algorithm for the best one under constraints.

A structure is a choice of a value for each of n positions: a state, a head. Once the best structure of a set is known,
the others are divided, by the first position that differs from it, into n sets whose best ones are found in the same
way; the best of all that have not been taken comes next (Lawler, Management Science 1972; for trees, with the
algorithm of Chu, Liu and Edmonds, Camerini et al., Networks 1980). That is exact for whatever has an exact ``argmax``,
which runs k times, for n sets of each item together.
"""

import heapq
import itertools
from typing import List, NamedTuple, Tuple

import torch
from torch import Tensor

from .integers import NOTHING
from .semirings import NEGATIVE_INFINITY


class TopK(NamedTuple):
    """The k most likely structures, the likeliest first.

    Attributes:
        structures: parts 0 and 1, ``[k, *batch, *event]``; 0 beyond the last structure that is possible.
        log_probs: ``[k, *batch]``, differentiable; −inf beyond the last structure that is possible.
    """

    structures: Tensor
    log_probs: Tensor


class _Candidate(NamedTuple):
    """The best structure of a set, in the order of a heap.

    Attributes:
        cost: −log p.
        number: of equally likely ones, what was found first comes first.
        values: ``[n]``
        allowed: which values each position may have in the set, ``[n, values]``.
    """

    cost: float
    number: int
    values: Tensor
    allowed: Tensor


@torch.no_grad()
def best_values(distribution, k: int) -> Tuple[Tensor, Tensor]:
    """Structures as integers ``[k, *batch, n]``, and whether there is one, ``[k, *batch]``."""
    shape, real = distribution.batch_shape, distribution.position_mask
    items, n = shape.numel(), distribution.max_length
    count = distribution._num_values()
    heaps: List[List[_Candidate]] = [[] for _ in range(items)]
    numbers = itertools.count()

    def add(values: Tensor, allowed: Tensor, nonempty: Tensor) -> None:
        """Sets ``[sets, items, n, count]`` with their best structures ``[sets, *batch, n]``."""
        complete = nonempty & ((values != NOTHING) | ~real).all(-1)
        surprisals = distribution._surprisal(distribution.as_indicators(values))
        usable = complete & (surprisals < float("inf"))
        sets = len(allowed)
        values, surprisals = values.reshape(sets, items, n).cpu(), surprisals.reshape(sets, items).tolist()
        for which, item in usable.reshape(sets, items).nonzero().tolist():
            new = _Candidate(surprisals[which][item], next(numbers), values[which, item], allowed[which, item])
            heapq.heappush(heaps[item], new)

    def solve(allowed: Tensor) -> Tensor:
        restricted = distribution._restricted(allowed.reshape(allowed.shape[:1] + shape + (n, count)).to(real.device))
        return restricted.as_integers(restricted._argmax())

    every = torch.ones(1, items, n, count, dtype=torch.bool, device="cpu")
    add(solve(every), every, torch.ones((1,) + shape, dtype=torch.bool, device=real.device))
    found = torch.full((k, items, n), NOTHING, device="cpu")
    exists = torch.zeros(k, items, dtype=torch.bool, device="cpu")
    for rank in range(k):
        allowed = torch.zeros(items, n, count, dtype=torch.bool, device="cpu")
        for item, heap in enumerate(heaps):
            if heap:
                _, _, found[rank, item], allowed[item] = heapq.heappop(heap)
                exists[rank, item] = True
        if rank + 1 == k or n == 0 or not exists[rank].any():
            break
        sets = _divide(allowed, found[rank])
        # What differs from a structure in padding alone is the same structure.
        nonempty = real.movedim(-1, 0) & exists[rank].reshape(shape).to(real.device)
        add(solve(sets), sets, nonempty)
    return found.reshape((k,) + shape + (n,)).to(real.device), exists.reshape((k,) + shape).to(real.device)


def _divide(allowed: Tensor, values: Tensor) -> Tensor:
    """What is allowed ``[items, n, count]`` but for one structure ``[items, n]``, as n disjoint sets ``[n, items, n,
    count]``: the i-th differs from it at i, and not before."""
    n, count = allowed.shape[-2:]
    same = values.unsqueeze(-1) == torch.arange(count, device="cpu")
    first, position = torch.arange(n, device="cpu")[:, None, None, None], torch.arange(n, device="cpu")[:, None]
    return torch.where(position < first, allowed & same, torch.where(position == first, allowed & ~same, allowed))


def best_choices(logits: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    """The same for one choice, by its scores ``[*batch, values]``: ``[k, *batch]`` both."""
    scores, values = logits.detach().topk(min(k, logits.shape[-1]), -1)
    missing = (0, k - scores.shape[-1])
    scores = torch.nn.functional.pad(scores, missing, value=NEGATIVE_INFINITY)
    values = torch.nn.functional.pad(values, missing, value=NOTHING)
    exists = scores > NEGATIVE_INFINITY
    return values.masked_fill(~exists, NOTHING).movedim(-1, 0), exists.movedim(-1, 0)
