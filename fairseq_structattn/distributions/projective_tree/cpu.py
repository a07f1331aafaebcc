"""Projective dependency trees on the CPU, compiled, with a backward pass in closed form. O(n²) memory, O(n³) time.

The inside and outside passes run on weights instead of logarithms, so every logsumexp is a sum of products. An arc's
marginal is the product of its inside and outside values. The gradient of the marginals for an upstream gradient g is
Cov(arcs) · g, and a covariance is symmetric: the backward pass is the forward-mode derivative of both passes in
direction g. (Expectation semiring: Li & Eisner, EMNLP 2009. The same quantities as the backpropagation of Kim et al.,
ICLR 2017, figure 7, without signed logarithms.)

A word has one head in every tree, so a constant may be subtracted from the scores of its heads. The constant is the
best of these scores plus log(27/4), since each word multiplies the number of trees by 27/4: this keeps inside values
from growing. Results are accurate unless Z is small: values that underflow belong to parts of probability below
2⁻¹⁰²² / Z. Sentences with a small Z are computed again with scaled numbers, each with its own exponent (``unit``),
which is slower and accurate for scores of any size.
"""

import math
from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..arcs import NO_HEAD
from ..kernels.constants import LOG_2
from ..kernels.numba_compile import kernel, over_batch, subroutine
from ..kernels.numba_math import exp
from ..kernels.numba_simd import empty_lanes
from ..kernels.numba_spans import best_split, chart_size, draw_split, push, scaled_exp, stride_of
from ..operations import Operation, uniform, without_gradient
from ..semirings import NEGATIVE_INFINITY
from . import reference
from .cpu_inside_outside import (
    BOTH,
    CHARTS,
    LEFT,
    LEFT_ARC,
    LEFT_WEIGHT,
    OUTSIDE,
    RIGHT,
    RIGHT_ARC,
    RIGHT_WEIGHT,
    arc_position,
    clear,
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
LOG_TREES_PER_WORD = math.log(27 / 4)


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``, differentiable any number of times.

    Args:
        scores: ``[batch, n+1, n]``, float32 or float64, −inf where there is no arc.
        lengths: integers ``[batch]``.
        single_root: count only the trees with one word under the root.
    """
    log_partition, marginals = _expectations(scores.double(), lengths, single_root)
    return log_partition.to(scores.dtype), marginals.to(scores.dtype)


@without_gradient(
    "projective_argmax", "Tensor scores, Tensor lengths, bool single_root", lambda scores, *_: scores.shape[::2]
)
def argmax(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Heads ``[batch, n]`` of a best tree, :data:`NO_HEAD` in padding and where no tree is possible."""
    batch, _, n = scores.shape
    heads = torch.full((batch, n), NO_HEAD, device=scores.device)
    over_batch(_argmax, batch, _array(scores.double()), _array(lengths), single_root, heads.numpy())
    return heads


@without_gradient(
    "projective_sample",
    "Tensor scores, Tensor lengths, bool single_root, int count",
    lambda scores, lengths, single_root, count: (count,) + scores.shape[::2],
)
def sample(
    scores: Tensor, lengths: Tensor, single_root: bool, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Heads ``[count, batch, n]`` of samples, :data:`NO_HEAD` in padding and where no tree is possible."""
    batch, _, n = scores.shape
    heads = torch.full((count, batch, n), NO_HEAD, device=scores.device)
    # Two choices for each arc: the split point under it, and the extent of the span beyond it.
    uniforms = uniform((count, batch, 2 * n), scores.device, generator)
    scores = _lowered(scores.double())[0]
    problem = _array(scores), _array(lengths), single_root
    over_batch(_sample, batch, *problem, uniforms.numpy(), heads.numpy())
    return heads


class _Expectations(Operation):
    """Scores ``[batch, n+1, n]`` in float64 → log Z ``[batch]`` and marginals ``[batch, n+1, n]``."""

    name = "projective_trees"
    arguments = "Tensor scores, Tensor lengths, bool single_root"
    # Charts are not kept: filling them in again takes no longer than reading them from memory.
    potentials, results, outputs, kept = 1, 2, 3, (1, 2)

    def forward(self, scores: Tensor, lengths: Tensor, single_root: bool):
        scores, constant = _lowered(scores)
        scaled = torch.zeros(lengths.shape, dtype=torch.bool, device=scores.device)
        log_partition = scores.new_full(lengths.shape, NEGATIVE_INFINITY)
        marginals = scores.new_zeros(scores.shape)
        problem = _array(scores), _array(lengths), single_root
        over_batch(_forward, len(scores), *problem, scaled.numpy(), log_partition.numpy(), marginals.numpy())
        return log_partition + constant, marginals, scaled

    def gradient(self, inputs, outputs, upstream):
        (scores, lengths, single_root), (_, marginals, scaled) = inputs, outputs
        grad_log_partition, grad_marginals = upstream
        gradient = torch.zeros_like(marginals)
        if grad_marginals is not None:
            problem = _array(_lowered(scores.detach())[0]), _array(lengths), single_root, scaled.numpy()
            over_batch(_backward, len(scores), *problem, _array(grad_marginals), gradient.numpy())
        if grad_log_partition is not None:
            gradient.addcmul_(marginals, grad_log_partition[:, None, None])
        return (gradient,)

    def shapes(self, scores, lengths, single_root):
        return scores.new_empty(lengths.shape), scores.new_empty(scores.shape), lengths.new_empty(lengths.shape).bool()

    def log_partition(self, scores, lengths, single_root):
        return reference.total(scores, lengths, single_root)


_expectations = _Expectations()


def _lowered(scores: Tensor) -> Tuple[Tensor, Tensor]:
    """Scores less a constant for each word, and the sum of the constants, ``[batch]``."""
    constants = scores.amax(1, keepdim=True) + LOG_TREES_PER_WORD
    constants = constants.masked_fill(constants == NEGATIVE_INFINITY, 0)
    return scores - constants, constants.sum((1, 2))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


# Kernels


@kernel
def _forward(first, stride, scores, lengths, single_root, scaled, log_partition, marginals):
    room = CHARTS * chart_size(scores.shape[2])
    values, units = empty_lanes(room), empty_lanes(room)
    for item in range(first, len(lengths), stride):
        n = lengths[item]
        top = whole_sentence(n)
        scaled[item] = _inside(scores[item], values, units, n, single_root)
        if values[top] == 0 or (single_root and n == 0):
            continue
        log_partition[item] = math.log(values[top]) + (units[top] * LOG_2 if scaled[item] else 0.0)
        values[OUTSIDE * chart_size(n) + top] = 1 / values[top]
        if scaled[item]:
            _mirror_units(units, n)
            outside_scaled((values, units), n, single_root)
        else:
            outside_numbers((values,), n, single_root)
        _add_arc_products(values, values, marginals[item], n)


@kernel
def _backward(first, stride, scores, lengths, single_root, scaled, directions, gradient):
    room = CHARTS * chart_size(scores.shape[2])
    values, units, tangents = empty_lanes(room), empty_lanes(room), empty_lanes(room)
    for item in range(first, len(lengths), stride):
        n = lengths[item]
        top = whole_sentence(n)
        around_top = OUTSIDE * chart_size(n) + top
        _set_weights(scores[item], values, units, n, scaled[item])
        _set_directions(directions[item], values, tangents, n)
        if scaled[item]:
            inside_scaled_dual((values, units, tangents), n, single_root)
        else:
            inside_dual((values, tangents), n, single_root)
        if values[top] == 0:
            continue
        values[around_top] = 1 / values[top]
        tangents[around_top] = -tangents[top] / values[top] / values[top]
        if scaled[item]:
            _mirror_units(units, n)
            outside_scaled_dual((values, units, tangents), n, single_root)
        else:
            outside_dual((values, tangents), n, single_root)
        _add_arc_products(values, tangents, gradient[item], n)
        _add_arc_products(tangents, values, gradient[item], n)


@kernel
def _argmax(first, stride, scores, lengths, single_root, heads):
    most = scores.shape[2]
    best = empty_lanes(CHARTS * chart_size(most))
    stack, no_uniforms = np.empty((2 * most + 2, 3), np.int64), np.empty(0)
    for item in range(first, len(lengths), stride):
        n = lengths[item]
        clear(best, NEGATIVE_INFINITY, 0.0, n)
        for head in range(n + 1):
            for word in range(1, n + 1):
                if head != word:
                    best[arc_position(RIGHT_WEIGHT, LEFT_WEIGHT, head, word, n)] = scores[item, head, word - 1]
        inside_best((best,), n, single_root)
        if best[whole_sentence(n)] > NEGATIVE_INFINITY:
            _read_best((best,), no_uniforms, stack, heads[item], n)


@kernel
def _sample(first, stride, scores, lengths, single_root, uniforms, heads):
    most = scores.shape[2]
    values, units = empty_lanes(CHARTS * chart_size(most)), empty_lanes(CHARTS * chart_size(most))
    stack = np.empty((2 * most + 2, 3), np.int64)
    for item in range(first, len(lengths), stride):
        n = lengths[item]
        if not _inside(scores[item], values, units, n, single_root):
            units[:] = 0
        if values[whole_sentence(n)] > 0:
            for draw in range(len(heads)):
                _read_sample((values, units), uniforms[draw, item], stack, heads[draw, item], n)


# Into and out of the charts


@subroutine
def _inside(scores, values, units, n, single_root):
    """Fill the inside charts of lowered scores, and return whether they are scaled."""
    _set_weights(scores, values, units, n, False)
    inside_numbers((values,), n, single_root)
    # The comparison is false for NaN, which is propagated.
    scaled = values[whole_sentence(n)] < SMALLEST_PARTITION
    if scaled:
        _set_weights(scores, values, units, n, True)
        inside_scaled((values, units), n, single_root)
    return scaled


@subroutine
def _set_weights(scores, values, units, n, scaled):
    clear(values, 0.0, 1.0, n)
    if scaled:
        clear(units, NEGATIVE_INFINITY, 0.0, n)
    weights = np.empty(n)
    for head in range(n + 1):
        for word in range(n):
            weights[word] = exp(scores[head, word])
        for word in range(1, n + 1):
            if head != word:
                at = arc_position(RIGHT_WEIGHT, LEFT_WEIGHT, head, word, n)
                values[at] = weights[word - 1]
                if scaled:
                    values[at], units[at] = scaled_exp(scores[head, word - 1])


@subroutine
def _mirror_units(units, n):
    """Set the exponents of outside values so that their products with inside values are probabilities."""
    size = chart_size(n)
    for at in range(OUTSIDE * size):
        units[OUTSIDE * size + at] = -units[at]


@subroutine
def _set_directions(direction, values, tangents, n):
    clear(tangents, 0.0, 0.0, n)
    for head in range(n + 1):
        for word in range(1, n + 1):
            if head != word:
                at = arc_position(RIGHT_WEIGHT, LEFT_WEIGHT, head, word, n)
                # Upstream gradients of forbidden arcs, even NaN, are ignored.
                if values[at] != 0:
                    tangents[at] = values[at] * direction[head, word - 1]


@subroutine
def _add_arc_products(insides, outsides, arcs, n):
    around = OUTSIDE * chart_size(n)
    for head in range(n + 1):
        for word in range(1, n + 1):
            if head != word:
                at = arc_position(RIGHT_ARC, LEFT_ARC, head, word, n)
                arcs[head, word - 1] += insides[at] * outsides[around + at]


# Trees from the inside charts. ``choose(charts, a, a_step, b, b_step, count, uniform)`` picks a term of a sum.


def _read_tree(choose):
    """A function that chooses a tree top-down and writes its heads."""

    @subroutine
    def read(charts, uniforms, stack, heads, n):
        size, stride = chart_size(n), stride_of(n)
        right, left, right_arc, left_arc = RIGHT * size, LEFT * size, RIGHT_ARC * size, LEFT_ARC * size
        choices, waiting = 0, push(stack, 0, RIGHT, n, 0)
        while waiting > 0:
            waiting -= 1
            chart, width, start = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2]
            uniform = uniforms[choices] if choices < len(uniforms) else 0.0
            choices += 1
            after_start = (width - 1) * stride + start + 1
            if chart == BOTH:
                k = choose(charts, right + start, stride, left + after_start, 1 - stride, width, uniform)
                waiting = push(stack, waiting, RIGHT, k, start)
                waiting = push(stack, waiting, LEFT, width - 1 - k, start + 1 + k)
            elif chart == RIGHT:
                k = 1 + choose(
                    charts, right_arc + stride + start, stride, right + after_start, 1 - stride, width, uniform
                )
                heads[start + k - 1] = start
                waiting = push(stack, waiting, BOTH, k, start)
                waiting = push(stack, waiting, RIGHT, width - k, start + k)
            else:
                k = choose(charts, left + start, stride, left_arc + width * stride + start, 1 - stride, width, uniform)
                heads[start + k - 1] = start + width
                waiting = push(stack, waiting, LEFT, k, start)
                waiting = push(stack, waiting, BOTH, width - k, start + k)

    return read


_read_best, _read_sample = _read_tree(best_split), _read_tree(draw_split)
