"""The k best structures, by repeated search for the best structure under constraints.

A structure is a choice of a value (a state, a head) for each of n positions. Once the best structure of a set is known,
the others are partitioned into n subsets, by the first position at which they differ from it. The next structure is the
best of the best structures of all subsets so far (Lawler, Management Science 1972; Camerini et al., Networks 1980, for
trees with the Chu–Liu–Edmonds algorithm). The result is exact wherever ``argmax`` is exact. ``argmax`` runs k times,
each time for n subsets of each item together.
"""

import heapq
import itertools
from typing import List, NamedTuple, Tuple

import torch
from torch import Tensor

from .integers import NOTHING
from .semirings import NEGATIVE_INFINITY


class TopK(NamedTuple):
    """The k most likely structures, the most likely first.

    Attributes:
        structures: indicators of parts, ``[k, *batch, *event]``; 0 beyond the last possible structure.
        log_probs: ``[k, *batch]``, differentiable; −inf beyond the last possible structure.
    """

    structures: Tensor
    log_probs: Tensor


class _Candidate(NamedTuple):
    """The best structure of a set; a heap orders candidates by cost, then by number.

    Attributes:
        cost: −log p.
        number: the order in which candidates were found, which breaks ties.
        values: the structure as integers, ``[n]``.
        allowed: which values each position may have in the set, ``[n, values]``.
    """

    cost: float
    number: int
    values: Tensor
    allowed: Tensor


@torch.no_grad()
def best_values(distribution, k: int) -> Tuple[Tensor, Tensor]:
    """The k best structures as integers ``[k, *batch, n]``, and whether each exists, ``[k, *batch]``."""
    shape, real = distribution.batch_shape, distribution.position_mask
    items, n = shape.numel(), distribution.max_length
    count = distribution._num_values()
    heaps: List[List[_Candidate]] = [[] for _ in range(items)]
    numbers = itertools.count()

    def add(values: Tensor, allowed: Tensor, nonempty: Tensor) -> None:
        """Add sets ``[sets, items, n, count]`` with their best structures ``[sets, *batch, n]``."""
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
        # Structures that differ in padding alone are the same.
        nonempty = real.movedim(-1, 0) & exists[rank].reshape(shape).to(real.device)
        add(solve(sets), sets, nonempty)
    return found.reshape((k,) + shape + (n,)).to(real.device), exists.reshape((k,) + shape).to(real.device)


def _divide(allowed: Tensor, values: Tensor) -> Tensor:
    """The set ``allowed`` ``[items, n, count]`` without one structure ``[items, n]``, as n disjoint sets ``[n, items,
    n, count]``: members of the i-th set differ from that structure at i and not before."""
    n, count = allowed.shape[-2:]
    same = values.unsqueeze(-1) == torch.arange(count, device="cpu")
    first, position = torch.arange(n, device="cpu")[:, None, None, None], torch.arange(n, device="cpu")[:, None]
    return torch.where(position < first, allowed & same, torch.where(position == first, allowed & ~same, allowed))


def best_choices(logits: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    """:func:`best_values` of a single choice with scores ``[*batch, values]``; both results are ``[k, *batch]``."""
    scores, values = logits.detach().topk(min(k, logits.shape[-1]), -1)
    missing = (0, k - scores.shape[-1])
    scores = torch.nn.functional.pad(scores, missing, value=NEGATIVE_INFINITY)
    values = torch.nn.functional.pad(values, missing, value=NOTHING)
    exists = scores > NEGATIVE_INFINITY
    return values.masked_fill(~exists, NOTHING).movedim(-1, 0), exists.movedim(-1, 0)
