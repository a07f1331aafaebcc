"""Spans of binary trees, and the integers that describe a tree.

Spans are tensors ``[*, n, n]``: the span from word i to word j, i ≤ j, is at ``[..., i, j]``. A tree is described by an
integer for each word j: the first word of the longest of its spans that end with j.
"""

from typing import Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import integers


def within(lengths: Tensor, words: int) -> Tensor:
    """Boolean mask of the spans of a sentence, ``[*batch, n, n]``."""
    word = torch.arange(words, device=lengths.device)
    return (word.unsqueeze(-1) <= word) & (word < lengths[..., None, None])


def to_integers(spans: Tensor) -> Tensor:
    """For spans of trees, given as indicators, the integers ``[*, n]``; ``NOTHING`` for words in which no span ends."""
    return integers.of_choices(spans, -2)


def of_integers(first: Tensor) -> Tensor:
    """Indicators ``[*, n, n]``, as booleans, of the trees with the integers ``[*, n]``. Other integers give spans that
    form no tree."""
    n = first.shape[-1]
    spans = torch.zeros(first.shape + (n,), dtype=torch.bool, device=first.device)
    begin = torch.arange(n, device=first.device).expand(first.shape)
    going = (first >= 0) & (first <= begin)
    # A span that is no longer than the longest one that ends with the same word is a right child: the next longer span
    # begins where the longest span that ends before it begins.
    for _ in range(n):
        spans.scatter_(-1, begin.unsqueeze(-1), going.unsqueeze(-1) | spans.gather(-1, begin.unsqueeze(-1)))
        going = going & (begin > first)
        before = F.pad(first, (1, 0))[..., :n].gather(-1, begin)
        begin = torch.where(going & (before >= 0) & (before < begin), before, begin)
    return spans.transpose(-1, -2)


def are_trees(spans: Tensor, lengths: Tensor) -> Tensor:
    """Whether spans, given as booleans that are false in padding, are those of a binary tree, ``[*]``."""
    n = spans.shape[-1]
    if n == 0:
        return torch.ones(spans.shape[:-2], dtype=torch.bool, device=spans.device)
    # A tree of n words has 2n − 1 spans. Spans that are those of their integers can be divided into two of them.
    complete = spans.sum((-2, -1)) == (2 * lengths - 1).clamp(min=0)
    divided = (of_integers(to_integers(spans)) == spans).flatten(-2).all(-1)
    last = (lengths - 1).clamp(min=0).expand(spans.shape[:-2])
    whole = spans[..., 0, :].gather(-1, last.unsqueeze(-1)).squeeze(-1) | (lengths == 0)
    return complete & divided & whole


def best_trees(scores: Tensor, lengths: Tensor, count: int) -> Tuple[Tensor, Tensor]:
    """The ``count`` best trees of scores ``[batch, n, n]``, −inf where there is no span, as integers ``[count, batch,
    n]``, and whether each exists, ``[count, batch]``.

    The k best derivations of each span are the best of those of all its divisions (Huang & Chiang, "Better k-best
    Parsing", IWPT 2005, algorithm 0). O(n³ k²) time, O(n² k) memory.
    """
    batch, n = scores.shape[:2]
    best = [_candidates(scores.diagonal(0, 1, 2).unsqueeze(-1), count)[0]]
    chosen: list = [None]
    for width in range(1, n):
        spans = n - width
        pairs = [best[k][:, :spans, :, None] + best[width - 1 - k][:, k + 1 :, None, :] for k in range(width)]
        totals = torch.stack(pairs, 2) + scores.diagonal(width, 1, 2)[..., None, None, None]
        values, indices = _candidates(totals.flatten(2), count)
        best.append(values)
        chosen.append(indices)
    found = torch.full((count, batch, n), integers.NOTHING, device=scores.device)
    exists = torch.zeros(count, batch, dtype=torch.bool, device=scores.device)
    for item, length in enumerate(lengths.tolist()):
        for rank in range(count):
            if length == 0:
                exists[rank, item] = rank == 0
            elif best[length - 1][item, 0, rank] > -float("inf"):
                exists[rank, item] = True
                _read(chosen, item, length - 1, 0, rank, count, found[rank, item])
    return found, exists


def _candidates(totals: Tensor, count: int) -> Tuple[Tensor, Tensor]:
    """The best totals ``[batch, spans, count]`` of ``[batch, spans, candidates]``, and their indices."""
    values, indices = totals.topk(min(count, totals.shape[-1]), -1)
    missing = (0, count - values.shape[-1])
    return F.pad(values, missing, value=-float("inf")), F.pad(indices, missing)


def _read(chosen: list, item: int, width: int, begin: int, rank: int, count: int, first: Tensor) -> None:
    """Write the integers of the words of a span's derivation with the given rank."""
    waiting = [(width, begin, rank)]
    while waiting:
        width, begin, rank = waiting.pop()
        end = begin + width
        first[end] = begin if first[end] == integers.NOTHING else min(begin, int(first[end]))
        if width > 0:
            choice = int(chosen[width][item, begin, rank])
            division, left, right = choice // count**2, choice // count % count, choice % count
            waiting += [(division, begin, left), (width - 1 - division, begin + division + 1, right)]


def containing(values: Tensor) -> Tensor:
    """For values of spans ``[*, n, n]``, 0 below the diagonal, the sum over the spans that contain both words a and b,
    ``[*, n, n]``."""
    # The spans that contain the words a ≤ b begin at a or before, and end at b or after.
    both = values.cumsum(-2).flip(-1).cumsum(-1).flip(-1).triu()
    return both + both.triu(1).transpose(-1, -2)


def shares_of_words(marginals: Tensor) -> Tensor:
    """For probabilities of spans ``[*, n, n]``, weights ``[*, n, n]`` of words for words: the expected sum, over the
    spans of two words or more that contain the word m, of 1 / length for each word in the span, divided by the expected
    number of such spans. A row m sums to 1, or is 0 if no such span contains m."""
    n = marginals.shape[-1]
    word = torch.arange(n, device=marginals.device)
    sizes = (word - word.unsqueeze(-1) + 1).clamp(min=1)
    shared = containing((marginals / sizes).triu(1))
    return shared / shared.sum(-1, keepdim=True).clamp(min=torch.finfo(shared.dtype).tiny)
