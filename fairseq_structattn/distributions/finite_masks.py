"""Masks written as large finite numbers: scores are reduced to a moderate size without changing the distribution.

A sum of −3.4e38 and 0.5 is −3.4e38: where every structure has to use a mask, its other scores would be lost, in float64
too. So two things are done before a recursion adds scores:

* The best score of each choice (the heads of a word, the states of a position, the pairs of an edge) is subtracted from
  the scores of that choice. Every structure makes each choice once, so all structures lose the same constant.
* A remaining score beyond 2²⁰ and beyond any sum of the smaller ones is a mask. It is split into a whole number of
  steps (of 1/1024 of a mask, say) and a rest, and the steps are shrunk. Sums of whole steps keep their order. As long
  as a mask outweighs the sum of all other scores, the same structures are likely, in the same proportions: shrinking
  changes the scores of all structures with nonzero probability by the same constant.

Where masks differ very much in size (1e9 and 1e18), the smaller ones count as ordinary scores beside the larger.

NaN and +∞ are detected here too: they make the result undefined, and must not reach the other items of a batch.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .operations import has_values
from .semirings import NEGATIVE_INFINITY

INFINITY = float("inf")
# Up to this size float64 keeps ten decimal places, of a score and of sums of many.
LARGEST_ORDINARY = 2.0**20
# Finite scores are clipped here, so that sums of 2²² of them are finite.
LARGEST_FINITE = 2.0**1000
# Up to this size float64 keeps four decimal places.
LARGEST_RESOLVED = 2.0**40
# A step is 1/STEPS of the smallest mask, or 1/MOST_STEPS of the largest if that is too fine or masks vary freely.
STEPS, MOST_STEPS = 2**10, 2**24
# A structure with one more mask loses at least this many nats: e^−1000 underflows even in float64.
NEGLIGIBLE = 1024.0
# Expected numbers of steps that differ by less than this count as equal, as do relative differences below it.
ROUNDING = 1e-6


class Band(NamedTuple):
    """Masks of one size, in whole numbers of steps.

    Attributes:
        steps: number of steps of each part, in the shapes of the potentials.
        lost: how much of a step was taken off, ``[*batch]``.
        kept: the size of a step that remains, ``[*batch]``.
    """

    steps: Tuple[Tensor, ...]
    lost: Tensor
    kept: Tensor

    def steps_of(self, parts: Sequence[Tensor]) -> Tensor:
        """Number of steps, or its expectation, ``[*sample, *batch]``, for parts ``[*sample, *batch, …]``."""
        total: Any = 0
        for steps, part in zip(self.steps, parts):
            total = total + _sum_events(steps * part, part.dim() - steps.dim() + self.lost.dim())
        return total


class Moderate(NamedTuple):
    """Potentials that a recursion can take.

    Attributes:
        potentials: potentials of moderate size, or −inf; 0 in broken items.
        ordinary: the potentials without masks.
        broken: which items have NaN or +inf, ``[*batch]``.
        constant: sum of the best scores of all choices, which every structure of an item has lost, ``[*batch]``.
        bands: the masks, by size.
    """

    potentials: Tuple[Tensor, ...]
    ordinary: Tuple[Tensor, ...]
    broken: Tensor
    constant: Tensor
    bands: Tuple[Band, ...]

    def lost_by(self, parts: Sequence[Tensor]) -> Tensor:
        """Score of structures ``[*batch, …]`` under the moderate potentials less that under the given ones."""
        return sum((band.lost * band.steps_of(parts) for band in self.bands), 0 - self.constant)

    def beyond(self, parts: Sequence[Tensor], reference: Sequence[Tensor]) -> Tensor:
        """Cost of the masks in ``parts`` less that of the masks in ``reference``; exactly 0 where they are equal."""
        total = torch.zeros_like(self.constant)
        for band in self.bands:
            usual = band.steps_of(reference)
            difference = band.steps_of(parts) - usual
            # Where all structures have many steps, sums of their scores round more, and so do probabilities.
            equal = difference.abs() < ROUNDING * usual.clamp(min=1)
            total = total + (band.lost + band.kept) * difference.masked_fill(equal, 0)
        return total


def readable(tensor: Tensor) -> bool:
    """Whether the values of a tensor may be read: on the CPU, and not while a graph is traced."""
    return tensor.device.type == "cpu" and has_values(tensor)


def all_ordinary(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are finite and of moderate size."""
    for tensor in tensors:
        if tensor.numel() > 0:
            least, most = torch.aminmax(tensor.detach())
            # A comparison with NaN is false.
            if not (least.item() >= -LARGEST_ORDINARY and most.item() <= LARGEST_ORDINARY):
                return False
    return True


# From scores ``[*batch, …]`` to numbers that no score exceeds, broadcastable to them, and the sum of these numbers over
# the parts of a structure, which is the same for all structures of an item, ``[*batch]``.
Bounds = Callable[[Sequence[Tensor]], Tuple[List[Tensor], Tensor]]


def bounds_of_choices(choices: Sequence[Tuple[int, ...]], batch_shape: torch.Size) -> Bounds:
    """The best score of each choice. ``choices`` are, for each potential, the dimensions (negative) along which every
    structure has one part, or no structure has any."""

    def bounds(scores: Sequence[Tensor]) -> Tuple[List[Tensor], Tensor]:
        best = [_finite(score.amax(dims, keepdim=True)) for score, dims in zip(scores, choices)]
        constant: Any = sum(_sum_events(one, len(batch_shape)) for one in best)
        return best, constant

    return bounds


def none_extreme(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are −inf, or finite and of moderate size: no potentials that :func:`moderate` changes."""
    for tensor in tensors:
        if not all_ordinary((tensor,)):
            forbidden = tensor.detach() == NEGATIVE_INFINITY
            if not (forbidden.any() and all_ordinary((tensor.detach().masked_fill(forbidden, 0),))):
                return False
    return True


def moderate(
    potentials: Sequence[Tensor], bounds: Optional[Bounds], batch_shape: torch.Size, most_parts: int
) -> Optional[Moderate]:
    """The same distribution with moderate potentials; ``None`` if the given ones are moderate already.

    Gradients reach the potentials as if nothing had been subtracted.

    Args:
        potentials: float64 or float32, each ``[*batch, …]``; 0 or −inf in padding.
        bounds: what is subtracted from the scores; ``None`` if only NaN and +inf are to be removed.
        batch_shape: ``[*batch]``.
        most_parts: the largest number of parts of a structure.
    """
    values = [potential.detach() for potential in potentials]
    broken = unusable_items(values, batch_shape)
    values = [value.masked_fill(_beside(broken, value) & (value != NEGATIVE_INFINITY), 0) for value in values]
    extreme = any(bool(((value.abs() > LARGEST_ORDINARY) & torch.isfinite(value)).any()) for value in values)
    if not extreme and not broken.any():
        return None
    if extreme and bounds is not None:
        values, ordinary, constant, bands = _reduced(values, bounds, batch_shape, most_parts)
    else:
        ordinary, constant, bands = values, values[0].new_zeros(batch_shape), ()

    def following(values: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        return tuple(_following(value, potential) for value, potential in zip(values, potentials))

    return Moderate(following(values), following(ordinary), broken, constant, bands)


def unusable_items(potentials: Sequence[Tensor], batch_shape: torch.Size) -> Tensor:
    """Which items hold NaN or +inf, ``[*batch]``."""
    return _any_event([_unusable(potential) for potential in potentials], batch_shape)


def differences(
    potentials: Sequence[Tensor], parts: Sequence[Tensor], reference: Sequence[Tensor]
) -> Tuple[Tensor, ...]:
    """``parts`` ``[*sample, *batch, …]`` less those of a structure; 0 where a large potential would multiply the
    rounding error of an expectation into a large number."""
    result = []
    for potential, part, other in zip(potentials, parts, reference):
        difference = part - other
        noise = (potential.detach().abs() > LARGEST_RESOLVED) & (difference.abs() < ROUNDING)
        result.append(difference.masked_fill(noise & torch.isfinite(potential), 0))
    return tuple(result)


def _reduced(
    values: List[Tensor], bounds: Bounds, batch_shape: torch.Size, most_parts: int
) -> Tuple[List[Tensor], List[Tensor], Tensor, Tuple[Band, ...]]:
    """Moderate and ordinary potentials, constant and bands; see :class:`Moderate`."""
    largest = min(LARGEST_FINITE, torch.finfo(values[0].dtype).max / 2**24)
    values = [value.masked_fill(torch.isfinite(value), 0) + _finite(value).clamp(-largest, largest) for value in values]
    best, constant = bounds(values)
    sizes = [value.shape[len(batch_shape) :].numel() for value in values]

    def flat(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.reshape(batch_shape.numel(), size) for t, size in zip(tensors, sizes)], 1)

    def shaped(tensor: Tensor) -> List[Tensor]:
        return [part.reshape(value.shape) for part, value in zip(tensor.split(sizes, 1), values)]

    scores = flat(values)
    moderate, ordinary, bands = _compressed(scores, flat([b.expand_as(v) for b, v in zip(best, values)]), most_parts)
    # Items without masks keep their scores.
    extreme = ((scores.abs() > LARGEST_ORDINARY) & torch.isfinite(scores)).any(1, keepdim=True)
    moderate, ordinary = torch.where(extreme, moderate, scores), torch.where(extreme, ordinary, scores)
    constant = constant.masked_fill(~extreme.reshape(batch_shape), 0)
    shaped_bands = tuple(
        Band(tuple(shaped(steps)), lost.reshape(batch_shape), kept.reshape(batch_shape)) for steps, lost, kept in bands
    )
    return shaped(moderate), shaped(ordinary), constant, shaped_bands


def _compressed(
    scores: Tensor, best: Tensor, most_parts: int
) -> Tuple[Tensor, Tensor, List[Tuple[Tensor, Tensor, Tensor]]]:
    """Scores ``[items, N]`` less the best of their choice, first with shrunk masks, then without masks; and ``(steps,
    lost, kept)`` of each band."""
    costs = (best - scores).masked_fill(scores == NEGATIVE_INFINITY, INFINITY)
    numbers = _bands(costs, 4 * most_parts)
    top = _finite(costs).masked_fill(numbers != 0, 0).amax(1, keepdim=True)
    ordinary, bands = costs.clone(), []
    for number in range(1, int(numbers.amax()) + 1):
        band = numbers == number
        largest = costs.masked_fill(~band, 0).amax(1, keepdim=True)
        step = costs.masked_fill(~band, INFINITY).amin(1, keepdim=True) / STEPS
        exact = (largest <= MOST_STEPS * step) & (_rest(costs, scores, best, band, step).abs() <= LARGEST_ORDINARY)
        exact = (exact | ~band).all(1, keepdim=True)
        step = torch.where(exact, step, largest / MOST_STEPS)
        step = torch.where(band.any(1, keepdim=True), step, 1)
        steps = (costs / step).round().masked_fill(~band, 0)
        rest = _rest(costs, scores, best, band, step)
        ordinary = torch.where(band, rest, ordinary)
        # Where scores of all sizes occur, steps are fractions of the largest: the rests are negligible beside a step.
        rest = rest.masked_fill(rest.abs() > LARGEST_ORDINARY, 0)
        enough = 4 * most_parts * (top + rest.abs().amax(1, keepdim=True)) + NEGLIGIBLE
        enough = torch.where(exact, enough.clamp(min=LARGEST_ORDINARY) / STEPS, enough)
        kept = torch.minimum(torch.exp2(enough.log2().ceil()), step)
        costs = torch.where(band, steps * kept + rest, costs)
        top = torch.maximum(top, costs.masked_fill(~band, 0).amax(1, keepdim=True))
        bands.append((steps, step - kept, kept))
    return -costs, -ordinary, bands


def _bands(costs: Tensor, apart: int) -> Tensor:
    """The band of each cost ``[items, N]``, by number; 0 for ordinary and for infinite costs.

    A band begins where a cost exceeds any sum of the smaller costs.
    """
    finite = _finite(costs)
    ascending, order = finite.sort(1)
    before = torch.nn.functional.pad(ascending[:, :-1], (1, 0)).clamp(min=1)
    begins = (ascending > LARGEST_ORDINARY) & (ascending > apart * before)
    return torch.zeros_like(order).scatter_(1, order, begins.cumsum(1)).masked_fill(costs == INFINITY, 0)


def _rest(costs: Tensor, scores: Tensor, best: Tensor, band: Tensor, step: Tensor) -> Tensor:
    """The remainder of the costs of a band after whole steps are subtracted.

    The mask is in the score or, with the opposite sign, in the best score: it is subtracted from the one that has it.
    """
    mask = (costs / step).round() * step
    rest = torch.where(scores.abs() > best.abs(), best - (scores + mask), (best - mask) - scores)
    return rest.masked_fill(~band, 0)


def _following(value: Tensor, potential: Tensor) -> Tensor:
    """``value`` with the gradient of ``potential``; the gradient is NaN where the potential is NaN or +inf."""
    if potential.requires_grad:
        # A copy, since the caller's tensor may be used elsewhere.
        potential = potential.view_as(potential)
        unusable = _unusable(potential.detach())
        potential.register_hook(lambda gradient: gradient.masked_fill(unusable, float("nan")))
    finite = potential.masked_fill(~torch.isfinite(potential), 0)
    return value + (finite - finite.detach())


def _unusable(value: Tensor) -> Tensor:
    return torch.isnan(value) | (value == INFINITY)


def _finite(value: Tensor) -> Tensor:
    return value.masked_fill(~torch.isfinite(value), 0)


def _beside(items: Tensor, value: Tensor) -> Tensor:
    """``items`` ``[*batch]`` with dimensions of size 1 for the events of ``value``."""
    return items[(...,) + (None,) * (value.dim() - items.dim())]


def _any_event(values: Sequence[Tensor], batch_shape: torch.Size) -> Tensor:
    """Whether any value of an item is true, ``[*batch]``."""
    result = torch.zeros(batch_shape, dtype=torch.bool, device=values[0].device)
    for value in values:
        result = result | value.reshape(batch_shape + (value.shape[len(batch_shape) :].numel(),)).any(-1)
    return result


def _sum_events(value: Tensor, leading: int) -> Tensor:
    """The sum over all dimensions after the first ``leading`` ones."""
    return value.flatten(leading).sum(-1) if value.dim() > leading else value
