"""Segments and the positions that they cover.

Segments are tensors ``[*batch, n, L, K]``: the segment of ``l + 1`` positions with label k that begins at position i is
at ``[..., i, l, k]``. Sums over windows are built up from shorter ones, never as differences of longer ones.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import integers


def within(lengths: Tensor, positions: int, longest: int) -> Tensor:
    """Boolean mask of the segments that end within their sequence, ``[*batch, n, L]``."""
    first = torch.arange(positions, device=lengths.device).unsqueeze(-1)
    return first + torch.arange(longest, device=lengths.device) < lengths[..., None, None]


def sums_of_positions(scores: Tensor, longest: int) -> Tensor:
    """For scores of positions ``[*batch, n, K]``, their sum over each segment, ``[*batch, n, L, K]``. Positions beyond
    the last count 0."""
    sums = [scores]
    for more in range(1, longest):
        sums.append(sums[-1] + _from_later(scores, more))
    return torch.stack(sums, -2)


def coverage(segments: Tensor) -> Tensor:
    """The sum of the values of all segments that cover each position, ``[*batch, n, K]``."""
    # Of the segments that begin at i, those of more than l positions cover i + l. unbind instead of indexing, whose
    # gradient would be a tensor of the full size for every length.
    longer: Any = 0
    total: Any = 0
    for of_length in reversed(segments.unbind(-2)):
        longer = longer + of_length
        total = longer + _from_earlier(total, 1) if isinstance(total, Tensor) else longer
    return total


def ends(segments: Tensor) -> Tensor:
    """The sum of the values of all segments that end with each position, ``[*batch, n, K]``."""
    longest, *shorter = reversed(segments.unbind(-2))
    for of_length in shorter:
        longest = of_length + _from_earlier(longest, 1)
    return longest


def to_integers(segments: Tensor) -> Tensor:
    """For segmentations given as indicators, an integer for each position: its label k, or K + k where a segment
    begins; ``NOTHING`` where no segment is."""
    begins = segments.sum(-2)
    return integers.of_choices(torch.cat((coverage(segments) - begins, begins), -1), -1)


def of_integers(values: Tensor, longest: int, labels: int, lengths: Tensor) -> Tensor:
    """The inverse of :func:`to_integers`: indicators, as booleans. Values in padding are ignored."""
    position = torch.arange(values.shape[-1], device=values.device)
    real = position < lengths.unsqueeze(-1)
    values = values.masked_fill(~real, integers.NOTHING)
    choices = integers.one_hot(values, 2 * labels, -1, torch.bool)
    begins = (values >= labels) & (values < 2 * labels)
    followed = _from_later(begins.unsqueeze(-1), 1).squeeze(-1)
    last = (followed | (position + 1 == lengths.unsqueeze(-1))).unsqueeze(-1)
    return allowed_segments(choices, longest) & _windows_that_end(last, longest)


def allowed_segments(allowed: Tensor, longest: int) -> Tensor:
    """Which segments have allowed integers alone, ``[*batch, n, L, K]``, given which of the integers of
    :func:`to_integers` each position may have, ``[*batch, n, 2K]``."""
    goes_on, begins = allowed.chunk(2, -1)
    segments = [begins]
    for more in range(1, longest):
        segments.append(segments[-1] & _from_later(goes_on, more))
    return torch.stack(segments, -2)


def _windows_that_end(last: Tensor, longest: int) -> Tensor:
    return torch.stack([last] + [_from_later(last, more) for more in range(1, longest)], -2)


def _from_later(values: Tensor, distance: int) -> Tensor:
    """At each position of ``[*batch, n, K]``, what stands ``distance`` positions later; 0 beyond the end."""
    beyond = min(distance, values.shape[-2])
    return F.pad(values[..., beyond:, :], (0, 0, 0, beyond))


def _from_earlier(values: Tensor, distance: int) -> Tensor:
    """At each position of ``[*batch, n, K]``, what stands ``distance`` positions earlier; 0 before the first."""
    beyond = min(distance, values.shape[-2])
    return F.pad(values[..., : values.shape[-2] - beyond, :], (0, 0, beyond, 0))
