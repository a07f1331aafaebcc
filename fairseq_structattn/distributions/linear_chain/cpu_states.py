"""Linear chain with K states, compiled for the CPU, with a backward pass in closed form.

Messages are log scores in float64 with maximum 0. A step is a product of a vector and a matrix: the exponentials of the
message times those of the table, without K² new exponentials. A sum so small that it may have lost terms is recomputed
in log space, so scores may have any size, and −inf may occur anywhere.

The gradient for an upstream gradient g of the marginals is Cov(parts) · g. With edge marginals m and marginals p, let L
be the conditional expectation of the sum of g up to a state b at i+1, and R that of the sum after a state a at i:

    L_{i+1}(b) = Σ_a m_i(a, b) / p_{i+1}(b) · (L_i(a) + g_i(a, b)) + g_{i+1}(b),
    R_i(a) = Σ_b m_i(a, b) / p_i(a) · (R_{i+1}(b) + g_i(a, b) + g_{i+1}(b)),

and the gradients are p_i(a) (L_i(a) + R_i(a) − E) and m_i(a, b) (L_i(a) + g_i(a, b) + g_{i+1}(b) + R_{i+1}(b) − E),
where E is the expected sum of g over a whole sequence. (Expectation semiring: Li & Eisner, EMNLP 2009.)
"""

from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.numba_choices import draw_index
from ..kernels.numba_compile import inlined, kernel, over_batch, subroutine
from ..kernels.numba_math import copy, exp, log
from ..operations import Operation, uniform, without_gradient
from ..pairwise import edge_tables, tables_of_chains
from ..semirings import NEGATIVE_INFINITY
from . import reference
from .potentials import NO_STATE, without_padding

# Products below the least positive float64, about 1e-308, are lost; in a sum of this size they do not matter.
LEAST_SUM = 1e-280
# Stands for the logarithm of a sum that has to be recomputed.
LOST = float("inf")


def expectations(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, with_edges: bool = False
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, marginals ``[*batch, n, K]`` and, if asked for, edge marginals ``[*batch, n-1, K, K]``.

    Differentiable any number of times. Computed in float64, whatever the dtypes; edge marginals have that of
    ``pairwise``, the others that of ``unary``. Marginals are exactly 0 in padding.

    Args:
        unary: ``[*batch, n, K]``, n > 0, float32 or float64; anything in padding.
        pairwise: ``[K, K]``, or ``[…, n-1, K, K]`` with leading dimensions that broadcast to ``batch``, float32 or
            float64; anything in padding.
        lengths: integers ``[*batch]``.
    """
    batch_shape, dtype = unary.shape[:-2], unary.dtype
    log_partition, marginals, edges = operation(*_problem(unary, pairwise, lengths), with_edges)
    if with_edges:
        edges = edges.reshape(batch_shape + edges.shape[1:])
    return log_partition.to(dtype).reshape(batch_shape), marginals.to(dtype).reshape(unary.shape), edges


@without_gradient("chain_argmax", "Tensor unary, Tensor pairwise, Tensor lengths", lambda u, p, n: u.shape[:-1])
def argmax(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """The states ``[*batch, n]`` of a best sequence, :data:`NO_STATE` in padding and where none is possible.

    Arguments as for :func:`expectations`.
    """
    problem = _problem(unary, pairwise, lengths)
    states = torch.full(problem[0].shape[:-1], NO_STATE, device=unary.device)
    _run(_viterbi, states.shape[0], *problem, states)
    return states.reshape(unary.shape[:-1])


@without_gradient(
    "chain_sample",
    "Tensor unary, Tensor pairwise, Tensor lengths, int count",
    lambda unary, pairwise, lengths, count: (count,) + unary.shape[:-1],
)
def sample(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """The states ``[count, *batch, n]`` of exact samples, :data:`NO_STATE` in padding and where none is possible.

    Arguments as for :func:`expectations`.
    """
    problem = _problem(unary, pairwise, lengths)
    uniforms = uniform((count,) + problem[0].shape[:-1], unary.device, generator)
    states = torch.full(uniforms.shape, NO_STATE, device=unary.device)
    _run(_sample, states.shape[1], *problem, uniforms, states)
    return states.reshape((count,) + unary.shape[:-1])


def _problem(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    n, states = unary.shape[-2:]
    # Tables are the largest tensors by far: kernels read and write them as they are.
    tables = tables_of_chains(pairwise, unary.shape[:-2])
    return unary.double().reshape(-1, n, states), tables, lengths.reshape(-1)


def _run(kernel, chains: int, *tensors: Tensor) -> None:
    over_batch(kernel, chains, *(tensor.detach().contiguous().numpy() for tensor in tensors))


class _Expectations(Operation):
    """unary ``[chains, n, K]``, tables ``[chains or 1, n-1 or 1, K, K]``, lengths ``[chains]`` → log Z and marginals in
    float64, edge marginals (or ``None``) in the dtype of the tables."""

    name = "chain_of_states"
    arguments = "Tensor unary, Tensor tables, Tensor lengths, bool with_edges"
    potentials, results, outputs, kept = 2, 3, 5, (0, 1, 3, 4)

    def forward(self, unary: Tensor, tables: Tensor, lengths: Tensor, with_edges: bool):
        chains, n, states = unary.shape
        log_partition, marginals = unary.new_zeros(chains), unary.new_zeros(unary.shape)
        left, right = unary.new_empty(unary.shape), unary.new_empty(unary.shape)
        edges = tables.new_empty(chains if with_edges else 0, n - 1, states, states)
        _run(_forward, chains, unary, tables, lengths, log_partition, left, right, marginals, edges)
        return log_partition, marginals, edges if with_edges else None, left, right

    def gradient(self, inputs, outputs, upstream, one_table_each=False):
        (_, tables, lengths, _), (log_partition, marginals, _, left, right) = inputs, outputs
        grad_log_partition, grad_marginals, grad_edges = upstream
        chains, n, states = marginals.shape
        upstream = (
            marginals.new_zeros(chains) if grad_log_partition is None else grad_log_partition,
            torch.zeros_like(marginals) if grad_marginals is None else grad_marginals,
            tables.new_zeros(1, 1, states, states) if grad_edges is None else grad_edges,
        )
        # Gradients that many edges or chains share are summed in float64.
        own = tables.shape[:2] == (chains, n - 1)
        grad_tables = (tables if own else marginals).new_empty(chains, *tables.shape[1:])
        grad_unary = torch.zeros_like(marginals)
        state = tables, lengths, log_partition, left, right, marginals
        _run(_backward, chains, *state, *upstream, grad_unary, grad_tables)
        return grad_unary, grad_tables if one_table_each else grad_tables.sum_to_size(tables.shape).to(tables.dtype)

    def shapes(self, unary, tables, lengths, with_edges):
        (chains, n, states), messages = unary.shape, unary.new_empty(unary.shape)
        edges = tables.new_empty((chains, n - 1, states, states) if with_edges else 0)
        return (unary.new_empty(chains), messages, edges, torch.empty_like(messages), torch.empty_like(messages))

    def parts(self, unary, tables):
        return unary, edge_tables(tables, unary.shape[:2])

    def log_partition(self, unary, edges, lengths, with_edges):
        return reference.total(*without_padding(unary, edges, lengths), lengths)

    def all_results(self, unary, tables, lengths, with_edges):
        return unary, tables, lengths, True


operation = _Expectations()


# Kernels


@kernel
def _forward(first, stride, unary, tables, lengths, log_partition, left, right, marginals, edges):
    n, states = unary.shape[1:]
    weights, largest, row = np.empty(tables.shape[1:]), np.empty(tables.shape[1]), np.empty(states)
    for chain in range(first, unary.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        if tables.shape[0] > 1 or chain == first:
            _exponentials(table, n if tables.shape[0] == 1 else length, weights, largest)
        log_partition[chain] = _left_messages(unary[chain], table, weights, largest, length, left[chain])
        if length == 0 or log_partition[chain] == NEGATIVE_INFINITY:
            length = 0
        for i in range(max(length - 1, 0), n - 1 if edges.shape[0] > 0 else 0):
            _clear(edges[chain, i])
        row[:] = 0
        for done in range(length):
            i = length - 1 - done
            if done > 0:
                e = _shared(i, tables.shape[1])
                _from_right(right[chain, i + 1], table[e], weights[e], largest[e], row)
                if edges.shape[0] > 0:
                    _edge_marginals(left[chain, i], table[e], weights[e], right[chain, i + 1], edges[chain, i])
            _softmax(left[chain, i], row, marginals[chain, i])
            for a in range(states):
                right[chain, i, a] = row[a] + unary[chain, i, a]
            _subtract_maximum(right[chain, i])


@kernel
def _backward(
    first, stride, tables, lengths, log_partition, left, right, marginals,
    grad_log_partition, grad_marginals, grad_edges, grad_unary, grad_tables,
):  # fmt: skip
    n, states = marginals.shape[1:]
    weights, largest, edges = np.empty(tables.shape[1:]), np.empty(tables.shape[1]), np.empty((n - 1, states, states))
    before, after = np.empty((n, states)), np.empty(states)
    for chain in range(first, marginals.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        if tables.shape[0] > 1 or chain == first:
            _exponentials(table, n if tables.shape[0] == 1 else length, weights, largest)
        for e in range(grad_tables.shape[1]):
            _clear(grad_tables[chain, e])
        if length == 0 or log_partition[chain] == NEGATIVE_INFINITY:
            continue
        p, g, g_edges = marginals[chain], grad_marginals[chain], grad_edges[_shared(chain, grad_edges.shape[0])]
        copy(g[0], before[0])
        for i in range(length - 1):
            e = _shared(i, tables.shape[1])
            _edge_marginals(left[chain, i], table[e], weights[e], right[chain, i + 1], edges[i])
            _expected_before(edges[i], g_edges[_shared(i, g_edges.shape[0])], p[i + 1], before[i], before[i + 1])
            for b in range(states):
                before[i + 1, b] += g[i + 1, b]
        offset = grad_log_partition[chain] - _dot(p[length - 1], before[length - 1])
        after[:] = 0
        for done in range(length):
            i = length - 1 - done
            if done > 0:
                for b in range(states):
                    after[b] += g[i + 1, b]
                _expected_after(
                    edges[i], g_edges[_shared(i, g_edges.shape[0])], p[i], before[i], offset, after,
                    grad_tables[chain, _shared(i, tables.shape[1])],
                )  # fmt: skip
            for a in range(states):
                grad_unary[chain, i, a] = p[i, a] * (before[i, a] + after[a] + offset)


@kernel
def _viterbi(first, stride, unary, tables, lengths, states):
    n, count = unary.shape[1:]
    best, arrived, back = np.empty(count), np.empty(count), np.empty((n, count), np.int64)
    for chain in range(first, unary.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        copy(unary[chain, 0], best)
        for i in range(1, length):
            e = _shared(i - 1, tables.shape[1])
            arrived[:], back[i] = NEGATIVE_INFINITY, 0
            for a in range(count):
                for b in range(count):
                    score = best[a] + table[e, a, b]
                    back[i, b] = a if score > arrived[b] else back[i, b]
                    arrived[b] = max(score, arrived[b])
            for b in range(count):
                best[b] = arrived[b] + unary[chain, i, b]
        state = np.argmax(best)
        if best[state] > NEGATIVE_INFINITY:
            for done in range(length):
                states[chain, length - 1 - done] = state
                state = back[length - 1 - done, state]


@kernel
def _sample(first, stride, unary, tables, lengths, uniform, states):
    n, count = unary.shape[1:]
    weights, largest, left = np.empty(tables.shape[1:]), np.empty(tables.shape[1]), np.empty((n, count))
    row = np.empty(count)
    for chain in range(first, unary.shape[0], stride):
        length, table = lengths[chain], tables[_shared(chain, tables.shape[0])]
        if tables.shape[0] > 1 or chain == first:
            _exponentials(table, n if tables.shape[0] == 1 else length, weights, largest)
        if _left_messages(unary[chain], table, weights, largest, length, left) == NEGATIVE_INFINITY:
            continue
        for draw in range(states.shape[0]):
            for done in range(length):
                i = length - 1 - done
                copy(left[i], row)
                if done > 0:
                    e = _shared(i, tables.shape[1])
                    for a in range(count):
                        row[a] += table[e, a, states[draw, chain, i + 1]]
                states[draw, chain, i] = draw_index(row, uniform[draw, chain, i])


# Parts of the kernels, for one chain


@subroutine
def _left_messages(unary, table, weights, largest, length, left):
    """Fill the messages from the left and return log Z."""
    total = 0.0
    for i in range(length):
        row = left[i]
        row[:] = 0
        if i > 0:
            e = _shared(i - 1, table.shape[0])
            _from_left(left[i - 1], table[e], weights[e], largest[e], row)
        for b in range(row.shape[0]):
            row[b] += unary[i, b]
        total += _subtract_maximum(row)
        if total == NEGATIVE_INFINITY:
            return total
    if length > 0:
        mass = 0.0
        for b in range(left.shape[1]):
            mass += exp(left[length - 1, b])
        total += log(mass)
    return total


@subroutine
def _exponentials(table, length, weights, largest):
    highest = np.empty(table.shape[1])
    for e in range(min(table.shape[0], length)):
        highest[:], shift = NEGATIVE_INFINITY, NEGATIVE_INFINITY
        # Maxima of columns first, which are independent of each other.
        for a in range(table.shape[1]):
            for b in range(table.shape[1]):
                highest[b] = max(highest[b], table[e, a, b])
        for b in range(table.shape[1]):
            shift = max(shift, highest[b])
        largest[e] = 0.0 if shift == NEGATIVE_INFINITY else shift
        for a in range(table.shape[1]):
            for b in range(table.shape[1]):
                weights[e, a, b] = exp(table[e, a, b] - largest[e])


@subroutine
def _from_left(message, table, weights, largest, arrived):
    """log Σ_a exp(message[a] + table[a, b]) for each b."""
    arrived[:] = 0
    for a in range(message.shape[0]):
        scale = exp(message[a])
        for b in range(message.shape[0]):
            arrived[b] += scale * weights[a, b]
    _logarithms(arrived, largest)
    for b in range(message.shape[0]):
        if arrived[b] == LOST:
            arrived[b] = _log_sum(message, table[:, b])


@subroutine
def _from_right(message, table, weights, largest, arrived):
    """log Σ_b exp(table[a, b] + message[b]) for each a."""
    scaled = _exponentials_of(message)
    for a in range(message.shape[0]):
        arrived[a] = _dot(weights[a], scaled)
    _logarithms(arrived, largest)
    for a in range(message.shape[0]):
        if arrived[a] == LOST:
            arrived[a] = _log_sum(message, table[a])


@subroutine
def _logarithms(sums, largest):
    """Logarithms of sums that were divided by exp(largest); :data:`LOST` if a sum is too small to be accurate."""
    for a in range(sums.shape[0]):
        total = sums[a]
        sums[a] = log(max(total, LEAST_SUM)) + largest if total >= LEAST_SUM else LOST


@subroutine
def _log_sum(message, scores):
    best = NEGATIVE_INFINITY
    for a in range(message.shape[0]):
        best = _larger(best, message[a] + scores[a])
    if best == NEGATIVE_INFINITY:
        return best
    total = 0.0
    for a in range(message.shape[0]):
        total += exp(message[a] + scores[a] - best)
    return best + log(total)


@subroutine
def _subtract_maximum(message):
    """Subtract the maximum in place and return it; a message in which all states are impossible is unchanged."""
    best = NEGATIVE_INFINITY
    for a in range(message.shape[0]):
        best = _larger(best, message[a])
    if best > NEGATIVE_INFINITY:
        for a in range(message.shape[0]):
            message[a] -= best
    return best


@subroutine
def _softmax(left, right, p):
    best = NEGATIVE_INFINITY
    for a in range(p.shape[0]):
        p[a] = left[a] + right[a]
        best = max(best, p[a])
    total = 0.0
    for a in range(p.shape[0]):
        p[a] = exp(p[a] - best)
        total += p[a]
    for a in range(p.shape[0]):
        p[a] /= total


@subroutine
def _edge_marginals(left, table, weights, right, edge):
    states = left.shape[0]
    scaled, scales, total = _exponentials_of(right), _exponentials_of(left), 0.0
    for a in range(states):
        total += scales[a] * _dot(weights[a], scaled)
    if total >= LEAST_SUM:
        for a in range(states):
            scale = scales[a] / total
            for b in range(states):
                edge[a, b] = scale * weights[a, b] * scaled[b]
    else:
        _edge_marginals_of_logarithms(left, table, right, edge)


@subroutine
def _edge_marginals_of_logarithms(left, table, right, edge):
    states = left.shape[0]
    best, total = NEGATIVE_INFINITY, 0.0
    for a in range(states):
        for b in range(states):
            best = max(best, left[a] + table[a, b] + right[b])
    for a in range(states):
        for b in range(states):
            total += exp(left[a] + table[a, b] + right[b] - best)
    for a in range(states):
        for b in range(states):
            edge[a, b] = exp(left[a] + table[a, b] + right[b] - best) / total


@subroutine
def _expected_before(edge, g, p, before, after):
    """L at the right end of an edge, without g of that end, from L at its left end."""
    after[:] = 0
    for a in range(p.shape[0]):
        for b in range(p.shape[0]):
            after[b] += edge[a, b] * (before[a] + g[a, b])
    for b in range(p.shape[0]):
        after[b] = after[b] / p[b] if p[b] > 0 else 0.0


@subroutine
def _expected_after(edge, g, p, before, offset, after, grad_table):
    """R at the left end of an edge from R + g at its right end, in place, and the gradient of the edge's scores."""
    behind = after.copy()
    for a in range(p.shape[0]):
        total, others = 0.0, before[a] + offset
        for b in range(p.shape[0]):
            value = behind[b] + g[a, b]
            total += edge[a, b] * value
            grad_table[a, b] += edge[a, b] * (value + others)
        after[a] = total / p[a] if p[a] > 0 else 0.0


@subroutine
def _clear(table):
    for a in range(table.shape[0]):
        for b in range(table.shape[1]):
            table[a, b] = 0


@subroutine
def _exponentials_of(message):
    result = np.empty_like(message)
    for a in range(message.shape[0]):
        result[a] = exp(message[a])
    return result


@subroutine
def _dot(weights, values):
    total = 0.0
    for a in range(values.shape[0]):
        total += weights[a] * values[a]
    return total


@inlined
def _larger(best, score):
    """The larger number, or NaN if either is NaN, so that NaN scores are visible in the result."""
    return best if score <= best or best != best else score


@inlined
def _shared(index, size):
    return 0 if size == 1 else index
