"""Inside-outside and its backpropagation as Kim et al. (ICLR 2017) describe them: figures 6 and 7.

All four passes are written out over logarithms, the two backward ones over signed logarithms (table 1 of the paper).
They run under ``use_backend("paper")``, for comparison; the closed form of the other backends gives the same gradient.
"""

from typing import Iterator, Tuple

import torch
from torch import Tensor

from ..semirings import NEGATIVE_INFINITY, LogSemiring, SignedLog
from . import reference

argmax, sample = reference.argmax, reference.sample

# Charts [batch, width, start]. BOTH, absent in the paper, is the sum that two incomplete spans of equal ends share.
BOTH, RIGHT, LEFT, RIGHT_ARC, LEFT_ARC = range(5)

Index = Tuple[Tensor, Tensor]


def expectations(scores: Tensor, lengths: Tensor, single_root: bool) -> Tuple[Tensor, Tensor]:
    """log Z ``[batch]`` and marginals ``[batch, n+1, n]``, once differentiable.

    The paper has any number of words under the root; the reference computes trees with a single one.

    Args:
        scores: ``[batch, n+1, n]``, −inf where there is no arc.
        lengths: integers ``[batch]``.
        single_root: count only the trees with one word under the root.
    """
    if single_root or scores.numel() == 0:
        return reference.expectations(scores, lengths, single_root)
    return _Expectations.apply(scores, lengths)


class _Expectations(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        right_scores, left_scores = _arcs_to_charts(scores, NEGATIVE_INFINITY)
        inner = _inside(right_scores, left_scores)
        outer = _outside(inner, right_scores, left_scores, lengths)
        items = torch.arange(len(scores), device=scores.device)
        log_partition = inner[RIGHT, items, lengths, 0]
        # If no tree is possible, the difference would be −∞ + ∞.
        shift = log_partition.masked_fill(log_partition == NEGATIVE_INFINITY, 0)[:, None, None]
        log_marginals = inner[RIGHT_ARC:] + outer[RIGHT_ARC:] - shift
        marginals = _charts_to_arcs(*log_marginals.exp())
        ctx.save_for_backward(right_scores, left_scores, inner, outer, log_marginals, marginals, lengths)
        return log_partition, marginals

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_log_partition: Tensor, upstream: Tensor):
        right_scores, left_scores, inner, outer, log_marginals, marginals, lengths = ctx.saved_tensors
        direction = SignedLog.of(torch.stack(_arcs_to_charts(upstream, 0.0)))
        weighted = SignedLog.exp(log_marginals).times(direction)
        grad_inner, grad_outer = _Gradient(inner), _Gradient(outer)
        for arc, log_size, sign in zip((RIGHT_ARC, LEFT_ARC), *weighted):
            grad_inner.add(arc, ..., SignedLog(log_size, sign))
            grad_outer.add(arc, ..., SignedLog(log_size, sign))
        # Every marginal is divided by Z.
        total = SignedLog(*(part.transpose(0, 1).flatten(1) for part in weighted)).sum(1)
        items = torch.arange(len(upstream), device=upstream.device)
        grad_inner.add(RIGHT, (items, lengths, 0), SignedLog(total.log_size, -total.sign))
        grad_scores = _Gradient(torch.stack((right_scores, left_scores)))
        _back_through_outside(inner, outer, (right_scores, left_scores), grad_inner, grad_outer, grad_scores)
        _back_through_inside(inner, grad_inner, grad_scores)
        return _charts_to_arcs(*grad_scores.total.real()) + grad_log_partition[:, None, None] * marginals, None


class _Gradient:
    """Derivatives with respect to charts of logarithms, initially zero."""

    def __init__(self, charts: Tensor) -> None:
        self.total = SignedLog.of(torch.zeros_like(charts))

    def get(self, chart: int, index) -> SignedLog:
        return SignedLog(*(part[chart][index] for part in self.total))

    def add(self, chart: int, index, amount: SignedLog) -> None:
        """Add ``amount`` at an index without repeated elements."""
        for part, value in zip(self.total, self.get(chart, index).plus(amount)):
            part[chart][index] = value


# The four passes


def _inside(right_scores: Tensor, left_scores: Tensor) -> Tensor:
    inner = right_scores.new_full((5,) + right_scores.shape, NEGATIVE_INFINITY)
    inner[RIGHT, :, 0] = inner[LEFT, :, 0] = 0
    for width in range(1, right_scores.shape[1]):
        for parent, a, at_a, b, at_b in _rules(width, right_scores):
            inner[parent][_spans(width, right_scores)] = LogSemiring.sum(inner[a][at_a] + inner[b][at_b], 1)
            if parent == BOTH:
                inner[RIGHT_ARC, :, width] = inner[BOTH, :, width] + right_scores[:, width]
                inner[LEFT_ARC, :, width] = inner[BOTH, :, width] + left_scores[:, width]
    return inner


def _outside(inner: Tensor, right_scores: Tensor, left_scores: Tensor, lengths: Tensor) -> Tensor:
    outer = torch.full_like(inner, NEGATIVE_INFINITY)
    outer[RIGHT, torch.arange(len(lengths), device=lengths.device), lengths, 0] = 0
    for width in range(right_scores.shape[1] - 1, 0, -1):
        for parent, a, at_a, b, at_b in reversed(list(_rules(width, right_scores))):
            if parent == BOTH:
                outer[BOTH, :, width] = torch.logaddexp(
                    outer[RIGHT_ARC, :, width] + right_scores[:, width],
                    outer[LEFT_ARC, :, width] + left_scores[:, width],
                )
            around = outer[parent][_spans(width, right_scores)].unsqueeze(1)
            outer[a][at_a] = torch.logaddexp(outer[a][at_a], around + inner[b][at_b])
            outer[b][at_b] = torch.logaddexp(outer[b][at_b], around + inner[a][at_a])
    return outer


def _back_through_outside(
    inner: Tensor,
    outer: Tensor,
    scores: Tuple[Tensor, Tensor],
    grad_inner: _Gradient,
    grad_outer: _Gradient,
    grad_scores: _Gradient,
) -> None:
    """From short spans to long: the derivative of an outside value is distributed to the terms of its sum by share."""
    for width in range(1, inner.shape[2]):
        for parent, a, at_a, b, at_b in _rules(width, inner[BOTH]):
            spans = _spans(width, inner[BOTH])
            around = outer[parent][spans].unsqueeze(1)
            for child, at_child, sibling, at_sibling in ((a, at_a, b, at_b), (b, at_b, a, at_a)):
                share = _share(around + inner[sibling][at_sibling], outer[child][at_child])
                passed = grad_outer.get(child, at_child).times(share)
                grad_outer.add(parent, spans, passed.sum(1))
                grad_inner.add(sibling, at_sibling, passed)
            if parent == BOTH:
                for direction, arc in enumerate((RIGHT_ARC, LEFT_ARC)):
                    share = _share(outer[arc][spans] + scores[direction][spans], outer[BOTH][spans])
                    passed = grad_outer.get(BOTH, spans).times(share)
                    grad_outer.add(arc, spans, passed)
                    grad_scores.add(direction, spans, passed)


def _back_through_inside(inner: Tensor, grad_inner: _Gradient, grad_scores: _Gradient) -> None:
    """From long spans to short: the derivative of an inside value is distributed to the terms of its sum by share."""
    for width in range(inner.shape[2] - 1, 0, -1):
        spans = _spans(width, inner[BOTH])
        for parent, a, at_a, b, at_b in reversed(list(_rules(width, inner[BOTH]))):
            if parent == BOTH:
                for direction, arc in enumerate((RIGHT_ARC, LEFT_ARC)):
                    grad_inner.add(BOTH, spans, grad_inner.get(arc, spans))
                    grad_scores.add(direction, spans, grad_inner.get(arc, spans))
            share = _share(inner[a][at_a] + inner[b][at_b], inner[parent][spans].unsqueeze(1))
            whole = grad_inner.get(parent, spans)
            passed = SignedLog(whole.log_size.unsqueeze(1), whole.sign.unsqueeze(1)).times(share)
            grad_inner.add(a, at_a, passed)
            grad_inner.add(b, at_b, passed)


# Charts and their indices


def _rules(width: int, chart: Tensor) -> Iterator[Tuple[int, int, Index, int, Index]]:
    """The rules that build spans of this width from two parts: (whole, left part, its index, right part, its index), in
    the order of the inside pass. Indices select ``[batch, split, start]``."""
    k = torch.arange(width, device=chart.device).unsqueeze(1)
    start = torch.arange(chart.shape[1] - width, device=chart.device)
    rest = _index(width - 1 - k, start + k + 1)
    yield BOTH, RIGHT, _index(k, start), LEFT, rest
    yield RIGHT, RIGHT_ARC, _index(k + 1, start), RIGHT, rest
    yield LEFT, LEFT, _index(k, start), LEFT_ARC, _index(width - k, start + k)


def _index(width: Tensor, start: Tensor) -> tuple:
    return slice(None), width, start


def _spans(width: int, chart: Tensor) -> tuple:
    """The index of all spans of a width, ``[batch, start]``."""
    return slice(None), width, slice(chart.shape[1] - width)


def _share(terms: Tensor, total: Tensor) -> SignedLog:
    return SignedLog.exp((terms - total).masked_fill(total == NEGATIVE_INFINITY, NEGATIVE_INFINITY))


def _arcs_to_charts(arcs: Tensor, empty: float) -> Tuple[Tensor, Tensor]:
    """Values per arc ``[batch, n+1, n]`` as charts ``[batch, n+1, n+1]`` of rightward and of leftward arcs."""
    nodes = arcs.shape[1]
    right, left = (arcs.new_full((len(arcs), nodes, nodes), empty) for _ in range(2))
    for width in range(1, nodes):
        right[:, width, : nodes - width] = arcs.diagonal(width - 1, 1, 2)
        left[:, width, 1 : nodes - width] = arcs.diagonal(-1 - width, 1, 2)
    return right, left


def _charts_to_arcs(right: Tensor, left: Tensor) -> Tensor:
    nodes = right.shape[1]
    arcs = right.new_zeros(len(right), nodes, nodes - 1)
    for width in range(1, nodes):
        arcs.diagonal(width - 1, 1, 2).copy_(right[:, width, : nodes - width])
        arcs.diagonal(-1 - width, 1, 2).copy_(left[:, width, 1 : nodes - width])
    return arcs
