"""Chains of two states, compiled for the CPU: loads and stores for the recursion of :mod:`.cpu_odds` on odds.

A block of neighbouring chains is treated at once, with positions first, so that each step is a loop over contiguous
float64 numbers. The backward pass saves nothing but the arguments: it recomputes the messages, together with their
derivatives in the direction of the upstream gradient. :mod:`.cpu_pairs` computes the chains that are out of the range
of odds, and :mod:`.cpu_states` those out of the range of both. This is decided for each chain alone, so that results do
not depend on the rest of the batch.
"""

from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.numba_compile import inlined, kernel, over_batch, subroutine
from ..operations import Operation
from ..pairwise import edge_tables, tables_of_chains
from ..semirings import NEGATIVE_INFINITY
from . import cpu_odds as odds
from . import cpu_pairs, cpu_states, reference
from .cpu_pairs import load_difference, store_states, two
from .potentials import LARGEST_PAIRWISE, without_padding

# Number of chains in a block.
WIDTH = odds.WIDTH


def expectations(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, with_edges: bool = False
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, marginals in the shape of ``unary`` and, if asked, edge marginals ``[*batch, n-1, 2, 2]``.

    Differentiable any number of times. Computed in float64, whatever the dtype; log Z is in float64 too. An impossible
    chain has probabilities 0.

    Args:
        unary: ``[*batch, n, 1]``, the score of state 1 where state 0 scores 0, or ``[*batch, n, 2]``, n > 0, float32 or
            float64; −inf is allowed, anything in padding.
        pairwise: ``[2, 2]``, or ``[…, n-1, 2, 2]`` with leading dimensions that broadcast to ``batch``; anything in
            padding.
        lengths: integers ``[*batch]``.
    """
    batch_shape = unary.shape[:-2]
    # Fields are differences of pairwise scores, which float32 would round.
    tables = tables_of_chains(pairwise, batch_shape).double()
    log_partition, marginals, edges = _odds(
        unary.reshape((-1,) + unary.shape[-2:]), tables, lengths.reshape(-1), with_edges
    )
    if with_edges:
        edges = edges.reshape(batch_shape + edges.shape[1:])
    return log_partition.reshape(batch_shape), marginals.reshape(unary.shape), edges


class _Odds(Operation):
    """unary ``[chains, n, 1 or 2]``, tables ``[chains or 1, n-1 or 1, 2, 2]``, lengths ``[chains]`` → log Z, marginals,
    edge marginals (or ``None``), and masks of the chains in the range of odds and in that of pairs."""

    name = "binary_chain"
    arguments = "Tensor unary, Tensor tables, Tensor lengths, bool with_edges"
    potentials, results, outputs, kept = 2, 3, 5, (3, 4)

    def forward(self, unary: Tensor, tables: Tensor, lengths: Tensor, with_edges: bool):
        chains, n, _ = unary.shape
        log_partition, marginals = tables.new_empty(chains), unary.new_empty(unary.shape)
        edges = unary.new_empty(chains if with_edges else 0, n - 1, 2, 2)
        in_range, fits = unary.new_empty(chains, dtype=torch.bool), unary.new_ones(chains, dtype=torch.bool)
        problem, results = (unary, tables, lengths), (log_partition, marginals, edges)
        _run(_forward, chains, *problem, *results, in_range)
        if not in_range.all():
            others = (~in_range).nonzero().squeeze(-1)
            _run(cpu_pairs.expectations, len(others), others, *problem, *results, fits)
        if not fits.all():
            log_partition[~fits], states, pairs, *_ = cpu_states.operation.forward(
                *_as_states(*problem, ~fits), with_edges
            )
            marginals[~fits] = states[..., -unary.shape[-1] :].to(marginals.dtype)
            if with_edges:
                edges[~fits] = pairs.to(edges.dtype)
        return log_partition, marginals, edges if with_edges else None, in_range, fits

    def gradient(self, inputs, outputs, upstream):
        unary, tables, lengths, _ = inputs
        grad_log_partition, grad_marginals, grad_edges = upstream
        (*_, in_range, fits), (chains, n, _) = outputs, unary.shape
        problem = unary, tables, lengths
        given = (
            tables.new_empty(0) if grad_log_partition is None else grad_log_partition,
            unary.new_empty(0, n, 1) if grad_marginals is None else grad_marginals,
            tables.new_empty(0, n - 1, 2, 2) if grad_edges is None else _shared(grad_edges).double(),
        )
        grad_unary = unary.new_empty(unary.shape)
        grad_tables = tables.new_zeros(unary.shape[:1] + tables.shape[1:])
        _run(_backward, chains, *problem, *given, grad_unary, grad_tables)
        if not in_range.all():
            others = (~in_range & fits).nonzero().squeeze(-1)
            _run(cpu_pairs.gradient, len(others), others, *problem, *given, grad_unary, grad_tables)
        if not fits.all():
            states, others = self._gradient_of_states(inputs, ~fits, upstream)
            grad_unary[~fits] = states[..., -unary.shape[-1] :].to(grad_unary.dtype)
            grad_tables[~fits] = others
        return grad_unary, grad_tables.sum_to_size(tables.shape)

    def _gradient_of_states(self, inputs, chosen: Tensor, upstream):
        """Gradients with respect to scores of states and tables of the chosen chains."""
        unary, tables, lengths, _ = inputs
        problem = (*_as_states(unary, tables, lengths, chosen), False)
        grad_log_partition, states, edges = (None if given is None else given[chosen].double() for given in upstream)
        given = grad_log_partition, None if states is None else _both(states), edges
        return cpu_states.operation.gradient(
            problem, cpu_states.operation.forward(*problem), given, one_table_each=True
        )

    def shapes(self, unary, tables, lengths, with_edges):
        chains, n, _ = unary.shape
        edges = unary.new_empty((chains, n - 1, 2, 2) if with_edges else 0)
        in_range, fits = (unary.new_empty(chains, dtype=torch.bool) for _ in range(2))
        return tables.new_empty(chains), torch.empty_like(unary), edges, in_range, fits

    def parts(self, unary, tables):
        return unary, edge_tables(tables, unary.shape[:2])

    def log_partition(self, unary, edges, lengths, with_edges):
        return reference.total(*without_padding(_both(unary), edges, lengths), lengths)

    def all_results(self, unary, tables, lengths, with_edges):
        return unary, tables, lengths, True


_odds = _Odds()


def _shared(edges: Tensor) -> Tensor:
    """``[chains, n-1, 2, 2]`` as ``[chains, 1, 2, 2]`` if all edges are equal, as in the gradient of a sum."""
    return edges[:, :1] if edges.shape[1] > 0 and edges.stride(1) == 0 else edges


def _as_states(unary: Tensor, tables: Tensor, lengths: Tensor, chosen: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """The chosen chains with scores of both states, in float64."""
    return _both(unary[chosen].double()), tables[chosen] if len(tables) > 1 else tables, lengths[chosen]


def _both(states: Tensor) -> Tensor:
    """``[chains, n, 1]`` of state 1, or ``[chains, n, 2]``, as ``[chains, n, 2]``."""
    return states if states.shape[-1] == 2 else torch.cat((torch.zeros_like(states), states), -1)


def _run(kernel, chains: int, *tensors: Tensor) -> None:
    over_batch(kernel, -(-chains // WIDTH), *(tensor.detach().contiguous().numpy() for tensor in tensors))


# Kernels


@kernel
def _forward(first, stride, unary, tables, lengths, log_partition, marginals, edges, in_range):
    n = unary.shape[1]
    fields, coupling, left = np.empty((n, WIDTH)), np.empty((n + 1, WIDTH)), np.empty((n, WIDTH))
    messages, states = np.empty((n, WIDTH)), two(n)
    total, usual = np.empty(WIDTH), np.empty(WIDTH)
    for start in range(first * WIDTH, unary.shape[0], stride * WIDTH):
        _load_fields(start, unary, tables, lengths, fields, coupling, total, usual)
        count = odds.bring_into_range(fields, coupling, usual, total)
        for w in range(min(WIDTH, unary.shape[0] - start)):
            in_range[start + w] = usual[w] > 0
        if count > 0:
            odds.exponentiate(coupling, tables.shape[1] == 1)
            odds.left_messages(fields, coupling, messages, left, total)
            odds.right_messages(coupling, messages, left, states)
            _store(start, usual, lengths, states, marginals)
            for w in range(min(WIDTH, unary.shape[0] - start)):
                if usual[w]:
                    log_partition[start + w] = total[w]
            if edges.shape[0] > 0:
                _store_edges(start, usual, lengths, coupling, messages, states, edges)


@kernel
def _backward(
    first, stride, unary, tables, lengths, grad_log_partition, grad_marginals, grad_edges, grad_unary, grad_tables
):
    n = unary.shape[1]
    fields, coupling, direction = np.empty((n, WIDTH)), np.empty((n + 1, WIDTH)), np.empty((n, WIDTH))
    edge_direction, left, left_tangent = np.empty((n + 1, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    grad_states, grad_coupling, weights = two(n), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    scale, constant, usual = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH)
    for start in range(first * WIDTH, unary.shape[0], stride * WIDTH):
        _load_fields(start, unary, tables, lengths, fields, coupling, constant, usual)
        if odds.bring_into_range(fields, coupling, usual, constant) > 0:
            _load_direction(
                start, lengths, grad_log_partition, grad_marginals, grad_edges, scale, direction, edge_direction
            )
            odds.exponentiate(coupling, tables.shape[1] == 1)
            odds.left_tangents(fields, coupling, direction, edge_direction, weights, left, left_tangent)
            odds.gradients(
                coupling, direction, edge_direction, weights, left, left_tangent, scale, grad_states, grad_coupling
            )
            _store(start, usual, lengths, grad_states, grad_unary)
            _store_tables(start, usual, lengths, scale, grad_states, grad_coupling, grad_tables)


# Parts of the kernels, for a block of chains


@subroutine
def _load_fields(start, unary, tables, lengths, fields, coupling, constant, usual):
    """Fields, −inf in padding; couplings of each position with its left neighbour; score of the sequence of zeros; and
    1.0 for chains whose scores are small enough for their differences to be exact."""
    coupling[0], coupling[-1], constant[:], usual[:] = 0, 0, 0, 1
    _load(start, lengths, unary, NEGATIVE_INFINITY, fields)
    if unary.shape[2] == 2:
        for w in range(WIDTH):
            for i in range(_length(start, lengths, w)):
                constant[w] += unary[start + w, i, 0]
                usual[w] = usual[w] if abs(unary[start + w, i, 0]) <= LARGEST_PAIRWISE else 0.0
    if tables.shape[0] == 1 and tables.shape[1] == 1:
        _add_one_table(start, lengths, tables[0, 0], fields, coupling, constant, usual)
    else:
        _add_tables(start, lengths, tables, fields, coupling, constant, usual)


@subroutine
def _load(start, lengths, matrix, padding, rows):
    """What state 1 has in ``matrix`` ``[chains, n, 1 or 2]`` less what state 0 has, of a block, as ``[n, WIDTH]``."""
    for w in range(WIDTH):
        length = _length(start, lengths, w)
        if length > 0:
            load_difference(matrix[start + w], length, rows, w)
        for i in range(length, matrix.shape[1]):
            rows[i, w] = padding


@inlined
def _length(start, lengths, w):
    return lengths[start + w] if start + w < lengths.shape[0] else 0


@subroutine
def _add_one_table(start, lengths, table, fields, coupling, constant, usual):
    on_left, on_right = table[1, 0] - table[0, 0], table[0, 1] - table[0, 0]
    both = table[1, 1] - table[1, 0] - on_right
    edges = np.empty(WIDTH)
    for w in range(WIDTH):
        edges[w] = max(_length(start, lengths, w) - 1, 0)
        constant[w] += edges[w] * table[0, 0]
        usual[w] = usual[w] if _is_moderate(table) or edges[w] == 0 else 0.0
    for i in range(fields.shape[0]):
        from_left, joint = (on_right, both) if i > 0 else (0.0, 0.0)
        for w in range(WIDTH):
            fields[i, w] += from_left + (on_left if i < edges[w] else 0.0)
            coupling[i, w] = joint


@subroutine
def _add_tables(start, lengths, tables, fields, coupling, constant, usual):
    coupling[:] = 0
    for w in range(WIDTH):
        t = 0 if tables.shape[0] == 1 else start + w
        for i in range(_length(start, lengths, w) - 1):
            e = 0 if tables.shape[1] == 1 else i
            on_right = tables[t, e, 0, 1] - tables[t, e, 0, 0]
            constant[w] += tables[t, e, 0, 0]
            fields[i, w] += tables[t, e, 1, 0] - tables[t, e, 0, 0]
            fields[i + 1, w] += on_right
            coupling[i + 1, w] = tables[t, e, 1, 1] - tables[t, e, 1, 0] - on_right
            usual[w] = usual[w] if _is_moderate(tables[t, e]) else 0.0


@inlined
def _is_moderate(table):
    return max(max(abs(table[0, 0]), abs(table[0, 1])), max(abs(table[1, 0]), abs(table[1, 1]))) <= LARGEST_PAIRWISE


@subroutine
def _load_direction(start, lengths, grad_log_partition, grad_marginals, grad_edges, scale, direction, edge_direction):
    """The upstream gradients of a block as a direction in fields and couplings: a linear function of edge marginals is
    one of P(z_i = 1), P(z_{i+1} = 1) and P(both = 1). Padding is not read."""
    for w in range(WIDTH):
        real = _length(start, lengths, w) > 0 and grad_log_partition.shape[0] > 0
        scale[w] = grad_log_partition[start + w] if real else 0.0
    edge_direction[:] = 0
    if grad_marginals.shape[0] > 0:
        _load(start, lengths, grad_marginals, 0.0, direction)
    else:
        direction[:] = 0
    if grad_edges.shape[0] > 0:
        _add_tables(start, lengths, grad_edges, direction, edge_direction, np.zeros(WIDTH), np.zeros(WIDTH))


@subroutine
def _store(start, wanted, lengths, rows, matrix):
    """Store what the states of the wanted chains (1.0) of a block have."""
    for w in range(min(WIDTH, matrix.shape[0] - start)):
        if wanted[w]:
            store_states(rows, w, lengths[start + w], matrix[start + w])


@subroutine
def _store_edges(start, wanted, lengths, strength, messages, states, edges):
    """Store the edge marginals of the wanted chains, given the messages from the right."""
    m00, m01, m10, m11 = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH)
    last = np.empty(WIDTH)
    for w in range(WIDTH):
        last[w] = _length(start, lengths, w) - 1
    for i in range(edges.shape[1]):
        for w in range(WIDTH):
            # Given z_i = 0 or 1, z_{i+1} is 0 with the probability 1 / (1 + odds).
            odds = messages[i + 1, w]
            joint = odds * strength[i + 1, w]
            real = 1.0 if i < last[w] else 0.0
            beside_zero = real * states[0][i, w] / (1 + odds)
            beside_one = real * states[1][i, w] / (1 + joint)
            m00[w], m01[w], m10[w], m11[w] = beside_zero, beside_zero * odds, beside_one, beside_one * joint
        for w in range(min(WIDTH, edges.shape[0] - start)):
            if wanted[w]:
                table = edges[start + w, i]
                table[0, 0], table[0, 1], table[1, 0], table[1, 1] = m00[w], m01[w], m10[w], m11[w]


@subroutine
def _store_tables(start, wanted, lengths, scale, grad_states, grad_coupling, grad_tables):
    """Store the gradients of the tables of the wanted chains. For a chain with one table, those of its edges are added
    up."""
    if grad_tables.shape[1] == 1:
        _store_sum(start, wanted, lengths, scale, grad_states, grad_coupling, grad_tables)
        return
    for w in range(min(WIDTH, grad_tables.shape[0] - start)):
        for i in range(lengths[start + w] - 1 if wanted[w] else 0):
            left, right = grad_states[1][i, w], grad_states[1][i + 1, w]
            _store_table(scale[w], left, right, grad_coupling[i, w], grad_tables[start + w, i])


@subroutine
def _store_sum(start, wanted, lengths, scale, grad_states, grad_coupling, grad_tables):
    """Store the gradient of one table for all edges; the terms of padding are 0."""
    edges, left, right, both = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    for w in range(WIDTH):
        edges[w] = max(_length(start, lengths, w) - 1, 0)
    for i in range(grad_states[1].shape[0] - 1):
        for w in range(WIDTH):
            left[w] += grad_states[1][i, w] if i < edges[w] else 0.0
            right[w] += grad_states[1][i + 1, w]
            both[w] += grad_coupling[i, w]
    for w in range(min(WIDTH, grad_tables.shape[0] - start)):
        if wanted[w]:
            _store_table(edges[w] * scale[w], left[w], right[w], both[w], grad_tables[start + w, 0])


@inlined
def _store_table(stay, left, right, both, grad_table):
    """Store the gradient of a table, given those of a constant, of the fields on either side and of the coupling."""
    grad_table[0, 0] = stay - left - right + both
    grad_table[0, 1] = right - both
    grad_table[1, 0] = left - both
    grad_table[1, 1] = both
