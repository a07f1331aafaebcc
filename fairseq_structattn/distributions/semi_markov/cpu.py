"""Semi-Markov segmentations, compiled for the CPU, with a backward pass in closed form. O(n (L K + K²)) time.

Sums are logarithms in float64. At the boundary before position j, ``entered[j, b]`` is the sum over what precedes if a
segment with label b begins there, and ``ended[j, a]`` if one with label a has just ended; ``begun[j, b]`` and
``left[j, a]`` are the sums over what follows in these two cases. A segment's marginal is the probability that a segment
with its label begins where it does, the exponential of entered + begun − log Z, times its share of the sum ``begun``.

The gradient for an upstream gradient g of the marginals is Cov(parts) · g, and a covariance is symmetric: it is the
derivative of the marginals in direction g. The derivative of a sum is the mean of the derivatives of its terms, under
the probabilities of the terms given that the boundary is as the sum says. These are marginals of segments, or edges,
divided by their sum, so the backward pass needs neither exponentials nor logarithms. (Expectation semiring: Li &
Eisner, EMNLP 2009.)
"""

from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..integers import NOTHING
from ..kernels.numba_choices import draw_index
from ..kernels.numba_compile import inlined, kernel, over_batch, subroutine
from ..kernels.numba_math import exp, log
from ..operations import Operation, uniform, without_gradient
from ..pairwise import edge_tables, mask_edges, tables_of_chains
from ..semirings import NEGATIVE_INFINITY
from . import reference


def expectations(segments: Tensor, pairwise: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """log Z ``[*batch]``, marginals of segments ``[*batch, n, L, K]`` and of edges ``[*batch, n-1, K, K]``.

    Differentiable any number of times. Computed in float64, whatever the dtype.

    Args:
        segments: ``[*batch, n, L, K]``, −inf for segments that end after the sequence.
        pairwise: ``[K, K]``, or ``[…, n-1, K, K]`` with leading dimensions that broadcast to ``batch``.
        lengths: integers ``[*batch]``.
    """
    if segments.shape[-3] == 0:
        return reference.expectations(segments, pairwise, lengths)
    batch_shape, dtype = segments.shape[:-3], segments.dtype
    log_partition, marginals, edges = _operation(*_problem(segments, pairwise, lengths))
    return (
        log_partition.to(dtype).reshape(batch_shape),
        marginals.to(dtype).reshape(segments.shape),
        edges.to(dtype).reshape(batch_shape + edges.shape[1:]),
    )


@without_gradient("segments_argmax", "Tensor segments, Tensor pairwise, Tensor lengths", lambda s, p, n: s.shape[:-2])
def argmax(segments: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """A best segmentation as integers ``[*batch, n]``, see :func:`.parts.to_integers`.

    Arguments as for :func:`expectations`.
    """
    values = torch.full(segments.shape[:-2], NOTHING, device=segments.device)
    if values.numel() > 0:
        problem = _problem(segments, pairwise, lengths)
        _run(_viterbi, len(problem[0]), *problem, values.view(-1, values.shape[-1]))
    return values


@without_gradient(
    "segments_sample",
    "Tensor segments, Tensor pairwise, Tensor lengths, int count",
    lambda segments, pairwise, lengths, count: (count,) + segments.shape[:-2],
)
def sample(
    segments: Tensor, pairwise: Tensor, lengths: Tensor, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Exact samples as integers ``[count, *batch, n]``, see :func:`.parts.to_integers`.

    Arguments as for :func:`expectations`.
    """
    values = torch.full((count,) + segments.shape[:-2], NOTHING, device=segments.device)
    if values.numel() > 0:
        problem = _problem(segments, pairwise, lengths)
        chains, n = problem[0].shape[:2]
        # Two choices for each segment: its length, and the label of the segment before it.
        uniforms = uniform((count, chains, 2 * n), segments.device, generator)
        _run(_sample, chains, *problem, uniforms, values.view(count, chains, n))
    return values


def _problem(segments: Tensor, pairwise: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    tables = tables_of_chains(pairwise, segments.shape[:-3])
    return segments.double().reshape((-1,) + segments.shape[-3:]), tables.double(), lengths.reshape(-1)


def _run(kernel, chains: int, *tensors: Tensor) -> None:
    over_batch(kernel, chains, *(tensor.detach().contiguous().numpy() for tensor in tensors))


class _Expectations(Operation):
    """segments ``[chains, n, L, K]``, tables ``[chains or 1, n-1 or 1, K, K]``, lengths ``[chains]`` → log Z, marginals
    of segments and of edges, in float64."""

    name = "segments"
    arguments = "Tensor segments, Tensor tables, Tensor lengths"
    potentials, results, outputs, kept = 2, 3, 3, (0, 1, 2)

    def forward(self, segments: Tensor, tables: Tensor, lengths: Tensor):
        chains, n, _, labels = segments.shape
        log_partition, marginals = segments.new_zeros(chains), segments.new_zeros(segments.shape)
        edges = segments.new_zeros(chains, n - 1, labels, labels)
        _run(_forward, chains, segments, tables, lengths, log_partition, marginals, edges)
        return log_partition, marginals, edges

    def gradient(self, inputs, outputs, upstream):
        (_, tables, lengths), (log_partition, marginals, edges) = inputs, outputs
        grad_log_partition, grad_marginals, grad_edges = upstream
        chains, _, _, labels = marginals.shape
        upstream = (
            marginals.new_zeros(chains) if grad_log_partition is None else grad_log_partition,
            torch.zeros_like(marginals) if grad_marginals is None else grad_marginals,
            marginals.new_zeros(1, 1, labels, labels) if grad_edges is None else grad_edges,
        )
        grad_segments, grad_tables = torch.zeros_like(marginals), marginals.new_zeros(chains, *tables.shape[1:])
        _run(_backward, chains, lengths, log_partition, marginals, edges, *upstream, grad_segments, grad_tables)
        return grad_segments, grad_tables.sum_to_size(tables.shape)

    def shapes(self, segments, tables, lengths):
        chains, n, _, labels = segments.shape
        edges = segments.new_empty(chains, n - 1, labels, labels)
        return segments.new_empty(chains), segments.new_empty(segments.shape), edges

    def parts(self, segments, tables):
        return segments, edge_tables(tables, segments.shape[:2])

    def log_partition(self, segments, edges, lengths):
        real = torch.arange(segments.shape[1], device=segments.device) < lengths.unsqueeze(-1)
        return reference.total(segments, mask_edges(edges, real), lengths)


_operation = _Expectations()


# Kernels. The segment of m + 1 positions with label k that begins at i is at [i, m, k].


@kernel
def _forward(first, stride, segments, tables, lengths, log_partition, marginals, edges):
    n, longest, labels = segments.shape[1:]
    entered, ended = np.empty((n + 1, labels)), np.empty((n + 1, labels))
    begun, left = np.empty((n + 1, labels)), np.empty((n + 1, labels))
    terms, best, sums = np.empty((longest, labels)), np.empty(labels), np.empty(labels)
    for chain in range(first, segments.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        total = _inside(segments[chain], table, length, entered, ended, terms, best, sums)
        log_partition[chain] = total
        if length == 0 or total == NEGATIVE_INFINITY:
            continue
        for done in range(length):
            j = length - 1 - done
            _leave(table, begun, left, j + 1, length)
            sizes = min(longest, length - j)
            for m in range(sizes):
                for b in range(labels):
                    terms[m, b] = segments[chain, j, m, b] + left[j + m + 1, b]
            _exponentials(terms[:sizes], best, sums)
            for b in range(labels):
                begun[j, b] = _logarithm(sums[b], best[b])
                # The probability that a segment with this label begins here, for each unit of the sum.
                best[b] = exp(entered[j, b] + begun[j, b] - total) / max(sums[b], 1.0)
            for m in range(sizes):
                for b in range(labels):
                    marginals[chain, j, m, b] = terms[m, b] * best[b]
            if j > 0:
                _edge_marginals(table[_shared(j - 1, table.shape[0])], ended[j], begun[j], total, edges[chain, j - 1])


@kernel
def _backward(
    first, stride, lengths, log_partition, marginals, edges,
    grad_log_partition, grad_marginals, grad_edges, grad_segments, grad_tables,
):  # fmt: skip
    """``entered`` and so on are the derivatives of what has this name in :func:`_forward`."""
    n, longest, labels = marginals.shape[1:]
    entered, ended = np.empty((n + 1, labels)), np.empty((n + 1, labels))
    begun, left = np.empty((n + 1, labels)), np.empty((n + 1, labels))
    for chain in range(first, marginals.shape[0], stride):
        length, p, g = lengths[chain], marginals[chain], grad_marginals[chain]
        g_edges = grad_edges[_shared(chain, grad_edges.shape[0])]
        if length == 0 or log_partition[chain] == NEGATIVE_INFINITY:
            continue
        offset = grad_log_partition[chain] - _inside_tangents(p, g, edges[chain], g_edges, length, entered, ended)
        left[length] = 0
        for done in range(length):
            j = length - 1 - done
            if done > 0:
                _leave_tangents(edges[chain, j], g_edges[_shared(j, g_edges.shape[0])], begun[j + 1], left[j + 1])
            for b in range(labels):
                mass, change = 0.0, 0.0
                for m in range(min(longest, length - j)):
                    if p[j, m, b] > 0:
                        beyond = g[j, m, b] + left[j + m + 1, b]
                        mass += p[j, m, b]
                        change += p[j, m, b] * beyond
                        grad_segments[chain, j, m, b] = p[j, m, b] * (entered[j, b] + beyond + offset)
                begun[j, b] = _mean(change, mass)
            if j > 0:
                _table_gradient(
                    edges[chain, j - 1], g_edges[_shared(j - 1, g_edges.shape[0])], ended[j], begun[j], offset,
                    grad_tables[chain, _shared(j - 1, grad_tables.shape[1])],
                )  # fmt: skip


@kernel
def _viterbi(first, stride, segments, tables, lengths, values):
    n, longest, labels = segments.shape[1:]
    entered, ended = np.empty((n + 1, labels)), np.empty((n + 1, labels))
    sizes, before = np.empty((n + 1, labels), np.int64), np.empty((n + 1, labels), np.int64)
    for chain in range(first, segments.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        entered[0] = 0
        for j in range(1, length + 1):
            ended[j], entered[j], sizes[j], before[j] = NEGATIVE_INFINITY, NEGATIVE_INFINITY, 1, 0
            for m in range(min(longest, j)):
                for k in range(labels):
                    score = entered[j - m - 1, k] + segments[chain, j - m - 1, m, k]
                    if score > ended[j, k]:
                        ended[j, k], sizes[j, k] = score, m + 1
            if j < length:
                e = _shared(j - 1, table.shape[0])
                for a in range(labels):
                    for b in range(labels):
                        score = ended[j, a] + table[e, a, b]
                        if score > entered[j, b]:
                            entered[j, b], before[j, b] = score, a
        if length == 0 or not np.max(ended[length]) > NEGATIVE_INFINITY:
            continue
        _read(values[chain], length, np.argmax(ended[length]), sizes, before)


@kernel
def _sample(first, stride, segments, tables, lengths, uniforms, values):
    n, longest, labels = segments.shape[1:]
    entered, ended = np.empty((n + 1, labels)), np.empty((n + 1, labels))
    scores, terms = np.empty(max(longest, labels)), np.empty((longest, labels))
    best, sums = np.empty(labels), np.empty(labels)
    for chain in range(first, segments.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        total = _inside(segments[chain], table, length, entered, ended, terms, best, sums)
        if length == 0 or total == NEGATIVE_INFINITY:
            continue
        for sample in range(values.shape[0]):
            j, label, choices = length, 0, 0
            while j > 0:
                for a in range(labels):
                    scores[a] = ended[j, a]
                    if j < length:
                        scores[a] += table[_shared(j - 1, table.shape[0]), a, label]
                label = draw_index(scores[:labels], uniforms[sample, chain, choices])
                sizes = min(longest, j)
                for m in range(sizes):
                    scores[m] = entered[j - m - 1, label] + segments[chain, j - m - 1, m, label]
                begin = j - 1 - draw_index(scores[:sizes], uniforms[sample, chain, choices + 1])
                _write(values[sample, chain], begin, j, label, labels)
                j, choices = begin, choices + 2


# Parts of the kernels, for one sequence


@subroutine
def _inside(segments, table, length, entered, ended, terms, best, sums):
    """Fill the sums over what precedes each boundary and return log Z."""
    longest, labels = segments.shape[1:]
    entered[0] = 0
    for j in range(1, length + 1):
        sizes = min(longest, j)
        for m in range(sizes):
            for k in range(labels):
                terms[m, k] = entered[j - m - 1, k] + segments[j - m - 1, m, k]
        _exponentials(terms[:sizes], best, sums)
        for k in range(labels):
            ended[j, k] = _logarithm(sums[k], best[k])
        if j < length:
            e = _shared(j - 1, table.shape[0])
            for b in range(labels):
                top, total = NEGATIVE_INFINITY, 0.0
                for a in range(labels):
                    top = max(top, ended[j, a] + table[e, a, b])
                if top > NEGATIVE_INFINITY:
                    for a in range(labels):
                        total += exp(ended[j, a] + table[e, a, b] - top)
                entered[j, b] = _logarithm(total, top)
    if length == 0:
        return 0.0
    top, total = np.max(ended[length]), 0.0
    if top > NEGATIVE_INFINITY:
        for k in range(labels):
            total += exp(ended[length, k] - top)
    return _logarithm(total, top)


@subroutine
def _exponentials(terms, best, sums):
    """Replace terms ``[sizes, labels]`` by the exponentials of what they are less than the best of their label, and
    fill in the best and the sums."""
    sizes, labels = terms.shape
    best[:], sums[:] = NEGATIVE_INFINITY, 0
    for m in range(sizes):
        for k in range(labels):
            best[k] = max(best[k], terms[m, k])
    for m in range(sizes):
        for k in range(labels):
            terms[m, k] -= best[k] if best[k] > NEGATIVE_INFINITY else 0.0
    # One loop over all, which is long enough for vector instructions.
    flat = terms.reshape(-1)
    for i in range(sizes * labels):
        flat[i] = exp(flat[i])
    for m in range(sizes):
        for k in range(labels):
            sums[k] += terms[m, k]


@subroutine
def _leave(table, begun, left, j, length):
    """The sums over what follows segments that end at the boundary before position j."""
    for a in range(left.shape[1]):
        left[j, a] = 0
        if j < length:
            e, best, total = _shared(j - 1, table.shape[0]), NEGATIVE_INFINITY, 0.0
            for b in range(left.shape[1]):
                best = max(best, table[e, a, b] + begun[j, b])
            if best > NEGATIVE_INFINITY:
                for b in range(left.shape[1]):
                    total += exp(table[e, a, b] + begun[j, b] - best)
            left[j, a] = _logarithm(total, best)


@subroutine
def _edge_marginals(table, ended, begun, total, edge):
    for a in range(table.shape[0]):
        for b in range(table.shape[0]):
            edge[a, b] = exp(ended[a] + table[a, b] + begun[b] - total)


@subroutine
def _inside_tangents(p, g, edges, g_edges, length, entered, ended):
    """Fill the derivatives of the sums over what precedes, and return that of log Z."""
    longest, labels = p.shape[1:]
    entered[0] = 0
    total = 0.0
    for j in range(1, length + 1):
        for k in range(labels):
            mass, change = 0.0, 0.0
            for m in range(min(longest, j)):
                i = j - m - 1
                if p[i, m, k] > 0:
                    mass += p[i, m, k]
                    change += p[i, m, k] * (entered[i, k] + g[i, m, k])
            ended[j, k] = _mean(change, mass)
            if j == length:
                total += change
        if j < length:
            e = _shared(j - 1, g_edges.shape[0])
            for b in range(labels):
                mass, change = 0.0, 0.0
                for a in range(labels):
                    if edges[j - 1, a, b] > 0:
                        mass += edges[j - 1, a, b]
                        change += edges[j - 1, a, b] * (ended[j, a] + g_edges[e, a, b])
                entered[j, b] = _mean(change, mass)
    return total


@subroutine
def _leave_tangents(edge, g, begun, left):
    for a in range(left.shape[0]):
        mass, change = 0.0, 0.0
        for b in range(left.shape[0]):
            if edge[a, b] > 0:
                mass += edge[a, b]
                change += edge[a, b] * (g[a, b] + begun[b])
        left[a] = _mean(change, mass)


@subroutine
def _table_gradient(edge, g, ended, begun, offset, grad_table):
    for a in range(ended.shape[0]):
        for b in range(ended.shape[0]):
            if edge[a, b] > 0:
                grad_table[a, b] += edge[a, b] * (ended[a] + g[a, b] + begun[b] + offset)


@subroutine
def _read(values, length, label, sizes, before):
    """Follow the best choices back from the end."""
    end = length
    while end > 0:
        begin = end - sizes[end, label]
        _write(values, begin, end, label, sizes.shape[1])
        if begin > 0:
            label = before[begin, label]
        end = begin


@subroutine
def _write(values, begin, end, label, labels):
    values[begin] = labels + label
    for i in range(begin + 1, end):
        values[i] = label


@inlined
def _mean(change, mass):
    return change / mass if mass > 0 else 0.0


@inlined
def _logarithm(total, best):
    """The logarithm of a sum that was divided by exp(best), whose largest term is then 1."""
    return best + log(total) if best > NEGATIVE_INFINITY else best


@inlined
def _shared(index, size):
    return 0 if size == 1 else index
