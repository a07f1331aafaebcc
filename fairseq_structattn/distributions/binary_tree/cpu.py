"""Binary trees on the CPU, compiled, with a backward pass in closed form. O(n²) memory, O(n³) time.

The inside and outside passes run on weights instead of logarithms, so every logsumexp is a sum of products. A span's
marginal is the product of its inside and outside values. The gradient of the marginals for an upstream gradient g is
Cov(spans) · g, and a covariance is symmetric: the backward pass is the forward-mode derivative of both passes in
direction g. (Expectation semiring: Li & Eisner, EMNLP 2009.)

Every tree of n words has n spans of one word, whose scores are a constant, and n − 1 longer ones. So a constant may be
subtracted from the scores of the longer ones. It is the best of them plus log 4, since each word multiplies the number
of trees by 4: no inside value exceeds 1. Results are accurate unless Z is small: values that underflow belong to parts
of probability below 2⁻¹⁰²² / Z. Sentences with a small Z are computed again with scaled numbers, each with its own
exponent (``unit``), which is slower and accurate for scores of any size.
"""

import math
from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..integers import NOTHING
from ..kernels.constants import LOG_2
from ..kernels.numba_compile import kernel, over_batch, subroutine
from ..kernels.numba_math import exp
from ..kernels.numba_simd import empty_lanes
from ..kernels.numba_spans import best_split, chart_size, draw_split, push, scaled_exp, stride_of
from ..operations import Operation, uniform, without_gradient
from ..semirings import NEGATIVE_INFINITY
from . import reference
from .cpu_inside_outside import (
    CHARTS,
    OUTSIDE,
    SPAN,
    WEIGHT,
    inside_best,
    inside_dual,
    inside_numbers,
    inside_scaled,
    inside_scaled_dual,
    outside_dual,
    outside_numbers,
    outside_scaled,
    outside_scaled_dual,
    whole_sentence,
)

SMALLEST_PARTITION = 2.0**-900
LOG_TREES_PER_WORD = math.log(4)


def expectations(scores: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n, n]``, differentiable any number of times.

    Args:
        scores: ``[batch, n, n]``, float32 or float64, −inf where there is no span.
        lengths: integers ``[batch]``.
    """
    if scores.shape[-1] == 0:
        return reference.expectations(scores, lengths)
    log_partition, marginals = _expectations(scores.double(), lengths)
    return log_partition.to(scores.dtype), marginals.to(scores.dtype)


@without_gradient("binary_argmax", "Tensor scores, Tensor lengths", lambda scores, _: scores.shape[:2])
def argmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """A best tree as integers ``[batch, n]``, see :mod:`.spans`; ``NOTHING`` in padding and where none is possible."""
    first = torch.full(scores.shape[:2], NOTHING, device=scores.device)
    if first.numel() > 0:
        over_batch(_argmax, len(scores), _array(scores.double()), _array(lengths), first.numpy())
    return first


@without_gradient(
    "binary_sample",
    "Tensor scores, Tensor lengths, int count",
    lambda scores, lengths, count: (count,) + scores.shape[:2],
)
def sample(scores: Tensor, lengths: Tensor, count: int, generator: Optional[torch.Generator] = None) -> Tensor:
    """Samples as integers ``[count, batch, n]``, see :mod:`.spans`; ``NOTHING`` where none is possible."""
    first = torch.full((count,) + scores.shape[:2], NOTHING, device=scores.device)
    if first.numel() > 0:
        uniforms = uniform(first.shape, scores.device, generator)
        problem = _array(_lowered(scores.double(), lengths)[0]), _array(lengths)
        over_batch(_sample, len(scores), *problem, uniforms.numpy(), first.numpy())
    return first


class _Expectations(Operation):
    """Scores ``[batch, n, n]`` in float64 → log Z ``[batch]`` and marginals ``[batch, n, n]``."""

    name = "binary_trees"
    arguments = "Tensor scores, Tensor lengths"
    # Charts are not kept: filling them in again takes no longer than reading them from memory.
    potentials, results, outputs, kept = 1, 2, 3, (1, 2)

    def forward(self, scores: Tensor, lengths: Tensor):
        scores, constant = _lowered(scores, lengths)
        scaled = torch.zeros(lengths.shape, dtype=torch.bool, device=scores.device)
        log_partition = scores.new_full(lengths.shape, NEGATIVE_INFINITY)
        marginals = scores.new_zeros(scores.shape)
        problem = _array(scores), _array(lengths)
        over_batch(_forward, len(scores), *problem, scaled.numpy(), log_partition.numpy(), marginals.numpy())
        return log_partition + constant, marginals, scaled

    def gradient(self, inputs, outputs, upstream):
        (scores, lengths), (_, marginals, scaled) = inputs, outputs
        grad_log_partition, grad_marginals = upstream
        gradient = torch.zeros_like(marginals)
        if grad_marginals is not None:
            problem = _array(_lowered(scores.detach(), lengths)[0]), _array(lengths), scaled.numpy()
            over_batch(_backward, len(scores), *problem, _array(grad_marginals), gradient.numpy())
        if grad_log_partition is not None:
            gradient.addcmul_(marginals, grad_log_partition[:, None, None])
        return (gradient,)

    def shapes(self, scores, lengths):
        return scores.new_empty(lengths.shape), scores.new_empty(scores.shape), lengths.new_empty(lengths.shape).bool()

    def log_partition(self, scores, lengths):
        return reference.total(scores, lengths)


_expectations = _Expectations()


def _lowered(scores: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
    """Scores less a constant, for single words less themselves, and the sum of what a tree has lost, ``[batch]``."""
    words = scores.diagonal(0, 1, 2)
    words = words.masked_fill(words == NEGATIVE_INFINITY, 0)
    longer = scores.triu(1) + scores.new_full(scores.shape[1:], NEGATIVE_INFINITY).tril()
    best = longer.amax((1, 2)) + LOG_TREES_PER_WORD
    best = best.masked_fill(best == NEGATIVE_INFINITY, 0)
    lowered = scores - best[:, None, None]
    lowered.diagonal(0, 1, 2).copy_(scores.diagonal(0, 1, 2) - words)
    return lowered, words.sum(1) + best * (lengths - 1).clamp(min=0)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


# Kernels


@kernel
def _forward(first, stride, scores, lengths, scaled, log_partition, marginals):
    room = CHARTS * chart_size(scores.shape[2] - 1)
    values, units = empty_lanes(room), empty_lanes(room)
    for item in range(first, len(lengths), stride):
        if lengths[item] == 0:
            log_partition[item] = 0
            continue
        last = lengths[item] - 1
        top = whole_sentence(last)
        scaled[item] = _inside(scores[item], values, units, last)
        if values[top] == 0:
            continue
        log_partition[item] = math.log(values[top]) + (units[top] * LOG_2 if scaled[item] else 0.0)
        values[OUTSIDE * chart_size(last) + top] = 1 / values[top]
        if scaled[item]:
            _mirror_units(units, last)
            outside_scaled((values, units), last)
        else:
            outside_numbers((values,), last)
        _add_products(values, values, marginals[item], last)
        for word in range(last + 1):
            marginals[item, word, word] = 1


@kernel
def _backward(first, stride, scores, lengths, scaled, directions, gradient):
    room = CHARTS * chart_size(scores.shape[2] - 1)
    values, units, tangents = empty_lanes(room), empty_lanes(room), empty_lanes(room)
    for item in range(first, len(lengths), stride):
        if lengths[item] == 0:
            continue
        last = lengths[item] - 1
        top = whole_sentence(last)
        around_top = OUTSIDE * chart_size(last) + top
        _set_weights(scores[item], values, units, last, scaled[item])
        _set_directions(directions[item], values, tangents, last)
        if scaled[item]:
            inside_scaled_dual((values, units, tangents), last)
        else:
            inside_dual((values, tangents), last)
        if values[top] == 0:
            continue
        values[around_top] = 1 / values[top]
        tangents[around_top] = -tangents[top] / values[top] / values[top]
        if scaled[item]:
            _mirror_units(units, last)
            outside_scaled_dual((values, units, tangents), last)
        else:
            outside_dual((values, tangents), last)
        _add_products(values, tangents, gradient[item], last)
        _add_products(tangents, values, gradient[item], last)


@kernel
def _argmax(first, stride, scores, lengths, trees):
    best = empty_lanes(CHARTS * chart_size(scores.shape[2] - 1))
    stack, no_uniforms = np.empty((scores.shape[2] + 1, 3), np.int64), np.empty(0)
    for item in range(first, len(lengths), stride):
        last = lengths[item] - 1
        if last < 0:
            continue
        size, row = chart_size(last), stride_of(last)
        best[: CHARTS * size] = NEGATIVE_INFINITY
        for i in range(last + 1):
            best[SPAN * size + i] = scores[item, i, i]
            for j in range(i + 1, last + 1):
                best[WEIGHT * size + (j - i) * row + i] = scores[item, i, j]
        inside_best((best,), last)
        if best[whole_sentence(last)] > NEGATIVE_INFINITY:
            _read_best((best,), no_uniforms, stack, trees[item], last)


@kernel
def _sample(first, stride, scores, lengths, uniforms, trees):
    room = CHARTS * chart_size(scores.shape[2] - 1)
    values, units = empty_lanes(room), empty_lanes(room)
    stack = np.empty((scores.shape[2] + 1, 3), np.int64)
    for item in range(first, len(lengths), stride):
        last = lengths[item] - 1
        if last < 0:
            continue
        if not _inside(scores[item], values, units, last):
            units[:] = 0
        if values[whole_sentence(last)] > 0:
            for draw in range(len(trees)):
                _read_sample((values, units), uniforms[draw, item], stack, trees[draw, item], last)


# Into and out of the charts


@subroutine
def _inside(scores, values, units, last):
    """Fill the inside charts of lowered scores, and return whether they are scaled."""
    _set_weights(scores, values, units, last, False)
    inside_numbers((values,), last)
    # The comparison is false for NaN, which is propagated.
    scaled = values[whole_sentence(last)] < SMALLEST_PARTITION
    if scaled:
        _set_weights(scores, values, units, last, True)
        inside_scaled((values, units), last)
    return scaled


@subroutine
def _set_weights(scores, values, units, last, scaled):
    size, row = chart_size(last), stride_of(last)
    values[: CHARTS * size] = 0
    if scaled:
        units[: CHARTS * size] = NEGATIVE_INFINITY
    for i in range(last + 1):
        # Lowered scores of single words are 0 or −inf.
        values[SPAN * size + i] = exp(scores[i, i])
        if scaled:
            units[SPAN * size + i] = 0
        for j in range(i + 1, last + 1):
            at = WEIGHT * size + (j - i) * row + i
            if scaled:
                values[at], units[at] = scaled_exp(scores[i, j])
            else:
                values[at] = exp(scores[i, j])


@subroutine
def _mirror_units(units, last):
    """Set the exponents of outside values so that their products with inside values are probabilities."""
    size = chart_size(last)
    for at in range(OUTSIDE * size):
        units[OUTSIDE * size + at] = -units[at]


@subroutine
def _set_directions(direction, values, tangents, last):
    size, row = chart_size(last), stride_of(last)
    tangents[: CHARTS * size] = 0
    for i in range(last + 1):
        for j in range(i + 1, last + 1):
            at = WEIGHT * size + (j - i) * row + i
            # Upstream gradients of forbidden spans, even NaN, are ignored.
            if values[at] != 0:
                tangents[at] = values[at] * direction[i, j]


@subroutine
def _add_products(insides, outsides, spans, last):
    size, row = chart_size(last), stride_of(last)
    for i in range(last + 1):
        for j in range(i + 1, last + 1):
            at = SPAN * size + (j - i) * row + i
            spans[i, j] += insides[at] * outsides[OUTSIDE * size + at]


# Trees from the inside charts


def _read_tree(choose):
    """A function that chooses a tree top-down, and writes the first word of the longest span that ends with each."""

    @subroutine
    def read(charts, uniforms, stack, first, last):
        size, stride = chart_size(last), stride_of(last)
        span = SPAN * size
        for word in range(last + 1):
            first[word] = word
        choices, waiting = 0, push(stack, 0, SPAN, last, 0)
        while waiting > 0:
            waiting -= 1
            width, start = stack[waiting, 1], stack[waiting, 2]
            first[start + width] = min(first[start + width], start)
            uniform = uniforms[choices] if choices < len(uniforms) else 0.0
            choices += 1
            after_start = (width - 1) * stride + start + 1
            k = choose(charts, span + start, stride, span + after_start, 1 - stride, width, uniform)
            waiting = push(stack, waiting, SPAN, k, start)
            waiting = push(stack, waiting, SPAN, width - 1 - k, start + 1 + k)

    return read


_read_best, _read_sample = _read_tree(best_split), _read_tree(draw_split)
