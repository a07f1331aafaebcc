"""Binary linear chains, compiled for the CPU: loads and stores for the recursion of :mod:`.cpu_odds` on odds.

A block of neighbouring chains is treated at once, with positions first, so that each step is a loop over contiguous
float64 numbers. The backward pass saves nothing but the arguments: it recomputes the messages, together with their
derivatives in the direction of the upstream gradient. :mod:`.cpu_states` computes the chains whose couplings are out of
the range of odds. This is decided for each chain alone, so that results do not depend on the rest of the batch.
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
from . import cpu_states, reference
from .potentials import without_padding

# Number of chains in a block.
WIDTH = odds.WIDTH


def expectations(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, with_edges: bool = False
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, P(z_i = 1) ``[*batch, n]`` and, if asked for, edge marginals ``[*batch, n-1, 2, 2]``.

    Differentiable any number of times. Computed in float64, whatever the dtype; log Z is in float64 too.

    Args:
        unary: ``[*batch, n]``, n > 0, float32 or float64, score of state 1; −inf is allowed, anything in padding.
        pairwise: ``[2, 2]``, or ``[…, n-1, 2, 2]`` with leading dimensions that broadcast to ``batch``; anything in
            padding.
        lengths: integers ``[*batch]``.
    """
    batch_shape, n = unary.shape[:-1], unary.shape[-1]
    # Fields are differences of pairwise scores, which float32 would round.
    tables = tables_of_chains(pairwise, batch_shape).double()
    log_partition, marginals, edges = _odds(unary.reshape(-1, n), tables, lengths.reshape(-1), with_edges)
    if with_edges:
        edges = edges.reshape(batch_shape + edges.shape[1:])
    return log_partition.reshape(batch_shape), marginals.reshape(unary.shape), edges


class _Odds(Operation):
    """unary ``[chains, n]``, tables ``[chains or 1, n-1 or 1, 2, 2]``, lengths ``[chains]`` → log Z, marginals, edge
    marginals (or ``None``), and a mask of the chains in the range of odds."""

    name = "binary_chain"
    arguments = "Tensor unary, Tensor tables, Tensor lengths, bool with_edges"
    potentials, results, outputs, kept = 2, 3, 4, (3,)

    def forward(self, unary: Tensor, tables: Tensor, lengths: Tensor, with_edges: bool):
        chains, n = unary.shape
        log_partition, marginals = tables.new_empty(chains), unary.new_empty(chains, n)
        edges = unary.new_empty(chains if with_edges else 0, n - 1, 2, 2)
        in_range = unary.new_empty(chains, dtype=torch.bool)
        _run(_forward, unary, tables, lengths, log_partition, marginals, edges, in_range)
        if not in_range.all():
            problem = _as_states(unary, tables, lengths, ~in_range)
            log_partition[~in_range], states, pairs, *_ = cpu_states.operation.forward(*problem, with_edges)
            marginals[~in_range] = states[..., 1].to(marginals.dtype)
            if with_edges:
                edges[~in_range] = pairs.to(edges.dtype)
        return log_partition, marginals, edges if with_edges else None, in_range

    def gradient(self, inputs, outputs, upstream):
        unary, tables, lengths, _ = inputs
        grad_log_partition, grad_marginals, grad_edges = upstream
        in_range, n = outputs[3], unary.shape[1]
        given = (
            tables.new_empty(0) if grad_log_partition is None else grad_log_partition,
            unary.new_empty(0, n) if grad_marginals is None else grad_marginals,
            tables.new_empty(0, n - 1, 2, 2) if grad_edges is None else _shared(grad_edges).double(),
        )
        grad_unary = unary.new_empty(unary.shape)
        grad_tables = tables.new_zeros(unary.shape[:1] + tables.shape[1:])
        _run(_backward, unary, tables, lengths, *given, grad_unary, grad_tables)
        grad_tables = grad_tables.sum_to_size(tables.shape)
        if not in_range.all():
            states, others = self._gradient_of_states(inputs, ~in_range, upstream)
            grad_unary[~in_range] = states[..., 1].to(grad_unary.dtype)
            grad_tables[~in_range if len(tables) > 1 else slice(None)] += others
        return grad_unary, grad_tables

    def _gradient_of_states(self, inputs, chosen: Tensor, upstream):
        """Gradients with respect to unary scores and tables of the chosen chains."""
        unary, tables, lengths, _ = inputs
        problem = (*_as_states(unary, tables, lengths, chosen), False)
        grad_log_partition, selected, edges = (None if given is None else given[chosen] for given in upstream)
        states = None if selected is None else torch.stack((torch.zeros_like(selected), selected), -1).double()
        edges = None if edges is None else edges.double()
        results = cpu_states.operation.forward(*problem)
        return cpu_states.operation.gradient(problem, results, (grad_log_partition, states, edges))

    def shapes(self, unary, tables, lengths, with_edges):
        chains, n = unary.shape
        edges = unary.new_empty((chains, n - 1, 2, 2) if with_edges else 0)
        in_range = unary.new_empty(chains, dtype=torch.bool)
        return tables.new_empty(chains), unary.new_empty(chains, n), edges, in_range

    def parts(self, unary, tables):
        return unary, edge_tables(tables, unary.shape)

    def log_partition(self, unary, edges, lengths, with_edges):
        states = torch.stack((torch.zeros_like(unary), unary), -1)
        return reference.total(*without_padding(states, edges, lengths), lengths)

    def all_results(self, unary, tables, lengths, with_edges):
        return unary, tables, lengths, True


_odds = _Odds()


def _shared(edges: Tensor) -> Tensor:
    """``[chains, n-1, 2, 2]`` as ``[chains, 1, 2, 2]`` if all edges are equal, as in the gradient of a sum."""
    return edges[:, :1] if edges.shape[1] > 0 and edges.stride(1) == 0 else edges


def _as_states(unary: Tensor, tables: Tensor, lengths: Tensor, chosen: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """The chosen chains as chains of two states, in float64."""
    unary = unary[chosen].double()
    tables = tables[chosen] if len(tables) > 1 else tables
    return torch.stack((torch.zeros_like(unary), unary), -1), tables, lengths[chosen]


def _run(kernel, unary: Tensor, *others: Tensor) -> None:
    arrays = [tensor.detach().contiguous().numpy() for tensor in (unary,) + others]
    over_batch(kernel, -(-unary.shape[0] // WIDTH), *arrays)


# Kernels


@kernel
def _forward(first, stride, unary, tables, lengths, log_partition, marginals, edges, in_range):
    n = unary.shape[1]
    fields, coupling, left = np.empty((n, WIDTH)), np.empty((n + 1, WIDTH)), np.empty((n, WIDTH))
    messages, selected = np.empty((n, WIDTH)), np.empty((n, WIDTH))
    total, usual = np.empty(WIDTH), np.empty(WIDTH)
    for start in range(first * WIDTH, unary.shape[0], stride * WIDTH):
        _load_fields(start, unary, tables, lengths, fields, coupling, total)
        count = odds.bring_into_range(fields, coupling, usual, total)
        for w in range(min(WIDTH, unary.shape[0] - start)):
            in_range[start + w] = usual[w] > 0
        if count > 0:
            odds.exponentiate(coupling, tables.shape[1] == 1)
            odds.left_messages(fields, coupling, messages, left, total)
            odds.right_messages(coupling, messages, left, selected)
            _store(start, usual, selected, total, marginals, log_partition)
            if edges.shape[0] > 0:
                _store_edges(start, usual, lengths, coupling, messages, selected, edges)


@kernel
def _backward(
    first, stride, unary, tables, lengths, grad_log_partition, grad_marginals, grad_edges, grad_unary, grad_tables
):
    n = unary.shape[1]
    fields, coupling, direction = np.empty((n, WIDTH)), np.empty((n + 1, WIDTH)), np.empty((n, WIDTH))
    edge_direction, left, left_tangent = np.empty((n + 1, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    grad_fields, grad_coupling, weights = np.empty((n, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    scale, constant, usual = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH)
    for start in range(first * WIDTH, unary.shape[0], stride * WIDTH):
        _load_fields(start, unary, tables, lengths, fields, coupling, constant)
        if odds.bring_into_range(fields, coupling, usual, constant) > 0:
            _load_direction(
                start, lengths, grad_log_partition, grad_marginals, grad_edges, scale, direction, edge_direction
            )
            odds.exponentiate(coupling, tables.shape[1] == 1)
            odds.left_tangents(fields, coupling, direction, edge_direction, weights, left, left_tangent)
            odds.gradients(
                coupling, direction, edge_direction, weights, left, left_tangent, scale, grad_fields, grad_coupling
            )
            _store_gradients(start, usual, lengths, scale, grad_fields, grad_coupling, grad_unary, grad_tables)


# Parts of the kernels, for a block of chains


@subroutine
def _load_fields(start, unary, tables, lengths, fields, coupling, constant):
    """Fields, −inf in padding; couplings of each position with its left neighbour; score of the sequence of zeros."""
    _load(start, lengths, unary, NEGATIVE_INFINITY, fields)
    coupling[0], coupling[-1], constant[:] = 0, 0, 0
    if tables.shape[0] == 1 and tables.shape[1] == 1:
        _add_one_table(start, lengths, tables[0, 0], fields, coupling, constant)
    else:
        _add_tables(start, lengths, tables, fields, coupling, constant)


@subroutine
def _load(start, lengths, matrix, padding, rows):
    """``matrix`` ``[chains, n]`` of a block as ``[n, WIDTH]``."""
    for w in range(WIDTH):
        length = _length(start, lengths, w)
        for i in range(length):
            rows[i, w] = matrix[start + w, i]
        for i in range(length, matrix.shape[1]):
            rows[i, w] = padding


@inlined
def _length(start, lengths, w):
    return lengths[start + w] if start + w < lengths.shape[0] else 0


@subroutine
def _add_one_table(start, lengths, table, fields, coupling, constant):
    on_left, on_right = table[1, 0] - table[0, 0], table[0, 1] - table[0, 0]
    both = table[1, 1] - table[1, 0] - on_right
    edges = np.empty(WIDTH)
    for w in range(WIDTH):
        edges[w] = max(_length(start, lengths, w) - 1, 0)
        constant[w] = edges[w] * table[0, 0]
    for i in range(fields.shape[0]):
        from_left, joint = (on_right, both) if i > 0 else (0.0, 0.0)
        for w in range(WIDTH):
            fields[i, w] += from_left + (on_left if i < edges[w] else 0.0)
            coupling[i, w] = joint


@subroutine
def _add_tables(start, lengths, tables, fields, coupling, constant):
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
        _add_tables(start, lengths, grad_edges, direction, edge_direction, np.zeros(WIDTH))


@subroutine
def _store(start, wanted, rows, values, matrix, vector):
    """Store ``rows`` ``[n, WIDTH]`` and ``values`` ``[WIDTH]`` of the chains of a block for which ``wanted`` is 1.0."""
    for w in range(min(WIDTH, matrix.shape[0] - start)):
        if wanted[w]:
            vector[start + w] = values[w]
            for i in range(matrix.shape[1]):
                matrix[start + w, i] = rows[i, w]


@subroutine
def _store_edges(start, wanted, lengths, strength, messages, selected, edges):
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
            p = selected[i, w] if i < last[w] else 0.0
            beside_zero = (1 - p) / (1 + odds) if i < last[w] else 0.0
            beside_one = p / (1 + joint)
            m00[w], m01[w], m10[w], m11[w] = beside_zero, beside_zero * odds, beside_one, beside_one * joint
        for w in range(min(WIDTH, edges.shape[0] - start)):
            if wanted[w]:
                table = edges[start + w, i]
                table[0, 0], table[0, 1], table[1, 0], table[1, 1] = m00[w], m01[w], m10[w], m11[w]


@subroutine
def _store_gradients(start, wanted, lengths, scale, grad_fields, grad_coupling, grad_unary, grad_tables):
    """Store the gradients of the wanted chains. For a chain with one table, those of its edges are added up."""
    for w in range(min(WIDTH, grad_unary.shape[0] - start)):
        if wanted[w]:
            for i in range(grad_unary.shape[1]):
                grad_unary[start + w, i] = grad_fields[i, w]
    if grad_tables.shape[1] == 1:
        _store_sum(start, wanted, lengths, scale, grad_fields, grad_coupling, grad_tables)
        return
    for w in range(min(WIDTH, grad_tables.shape[0] - start)):
        for i in range(lengths[start + w] - 1 if wanted[w] else 0):
            _store_table(
                scale[w], grad_fields[i, w], grad_fields[i + 1, w], grad_coupling[i, w], grad_tables[start + w, i]
            )


@subroutine
def _store_sum(start, wanted, lengths, scale, grad_fields, grad_coupling, grad_tables):
    """Store the gradient of one table for all edges; the terms of padding are 0."""
    edges, left, right, both = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    for w in range(WIDTH):
        edges[w] = max(_length(start, lengths, w) - 1, 0)
    for i in range(grad_fields.shape[0] - 1):
        for w in range(WIDTH):
            left[w] += grad_fields[i, w] if i < edges[w] else 0.0
            right[w] += grad_fields[i + 1, w]
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
