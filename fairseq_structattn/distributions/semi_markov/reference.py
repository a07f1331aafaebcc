"""Semi-Markov segmentations in plain PyTorch: the specification that the compiled implementation is tested against.

It is one recursion over a semiring, whose gradients are marginals, the best segmentation or a sample. It runs on any
device and dtype, takes −inf anywhere and can be differentiated any number of times.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..operations import usable, value_and_marginals
from ..semirings import LogSemiring, MaxSemiring, SamplingSemiring, Semiring
from . import parts


def expectations(segments: Tensor, pairwise: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """log Z ``[*batch]``, marginals of segments ``[*batch, n, L, K]`` and of edges ``[*batch, n-1, K, K]``.

    Arguments as for :func:`total`, but ``pairwise`` may be shared, ``[K, K]``.
    """
    return _total_and_gradients(segments, pairwise, lengths)


def argmax(segments: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """A best segmentation as integers ``[*batch, n]``, see :func:`.parts.to_integers`."""
    return parts.to_integers(_total_and_gradients(segments.detach(), pairwise.detach(), lengths, MaxSemiring)[1])


def sample(
    segments: Tensor, pairwise: Tensor, lengths: Tensor, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Exact samples as integers ``[count, *batch, n]``, see :func:`.parts.to_integers`."""
    copies = segments.detach().expand(count, *segments.shape), pairwise.detach(), lengths.expand(count, *lengths.shape)
    return parts.to_integers(_total_and_gradients(*copies, SamplingSemiring(generator))[1])


def total(segments: Tensor, edges: Tensor, lengths: Tensor, semiring: Semiring = LogSemiring) -> Tensor:
    """Semiring sum over all segmentations, ``[*batch]``: log Z in the log semiring. An empty sequence scores 0.

    The recursion of Sarawagi & Cohen (NIPS 2004), equation 3, where the sum over the label before a segment is shared
    by all segments that begin at the same position: O(n (L K + K²)).

    Args:
        segments: ``[*batch, n, L, K]``, −inf for segments that end after the sequence.
        edges: ``[*batch, n-1, K, K]``, score of a segment with label a that ends at i and one with label b that begins
            at i+1; finite in padding.
        lengths: integers ``[*batch]``.
    """
    n, longest, labels = segments.shape[-3:]
    # Sums over the segmentations of the positions before i, by the label of the segment that begins there, for all i.
    entered = [segments.new_zeros(segments.shape[:-3] + (labels,))]
    by_length = [segments.new_zeros(segments.shape[:-3])]
    # unbind instead of indexing, whose gradient would be a tensor of the full size for every position.
    starts, pairs = [start.unbind(-2) for start in segments.unbind(-3)], edges.unbind(-3)
    for end in range(1, n + 1):
        terms = [entered[end - size] + starts[end - size][size - 1] for size in range(1, min(longest, end) + 1)]
        ended = semiring.sum(torch.stack(terms), 0)
        by_length.append(semiring.sum(ended, -1))
        if end < n:
            entered.append(semiring.sum(ended.unsqueeze(-1) + pairs[end - 1], -2))
    return torch.stack(by_length, -1).gather(-1, lengths.unsqueeze(-1)).squeeze(-1)


def _total_and_gradients(
    segments: Tensor, pairwise: Tensor, lengths: Tensor, semiring: Semiring = LogSemiring
) -> Tuple[Tensor, Tensor, Tensor]:
    # torch.autograd.grad would not find a view that was made while gradients were disabled.
    with torch.enable_grad():
        n, _, labels = segments.shape[-3:]
        edges = pairwise.expand(segments.shape[:-3] + (max(n - 1, 0), labels, labels))
    value, (grad_segments, grad_edges) = value_and_marginals(
        lambda scores, pairs: total(scores, pairs, usable(lengths), semiring), segments, edges
    )
    return value, grad_segments, grad_edges
