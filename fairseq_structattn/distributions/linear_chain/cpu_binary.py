"""The recursion on log-odds of :mod:`.log_odds`, compiled for the CPU.

A block of neighbouring chains is treated at once, with positions first, so that each step is a loop over contiguous
float64 numbers. The backward pass computes the messages again, each together with its derivative in the direction of
the upstream gradient: nothing but the arguments is kept for it. Chains whose scores are of a usual size are left to
:mod:`.cpu_odds`, each by itself, so that none depends on its neighbours.
"""

from typing import Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.numba_compile import inlined, kernel, over_batch, subroutine
from ..kernels.numba_math import copy, exp, log
from ..operations import Operation
from ..semirings import NEGATIVE_INFINITY
from . import cpu_odds as odds
from . import reference
from .potentials import edge_tables, tables_of_chains, without_padding

# Chains side by side.
WIDTH = odds.WIDTH
# A product of so many numbers up to 2 is finite.
MOST_FACTORS = 1000


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
    log_partition, marginals, edges = _log_odds(unary.reshape(-1, n), tables, lengths.reshape(-1), with_edges)
    if with_edges:
        edges = edges.reshape(batch_shape + edges.shape[1:])
    return log_partition.reshape(batch_shape), marginals.reshape(unary.shape), edges


class _LogOdds(Operation):
    """unary ``[chains, n]``, tables ``[chains or 1, n-1 or 1, 2, 2]``, lengths ``[chains]`` → log Z, marginals, edge
    marginals (or ``None``)."""

    name = "binary_chain"
    arguments = "Tensor unary, Tensor tables, Tensor lengths, bool with_edges"
    potentials, results, outputs, kept = 2, 3, 3, ()

    def forward(self, unary: Tensor, tables: Tensor, lengths: Tensor, with_edges: bool):
        chains, n = unary.shape
        log_partition, marginals = tables.new_empty(chains), unary.new_empty(chains, n)
        edges = unary.new_empty(chains if with_edges else 0, n - 1, 2, 2)
        _run(_forward, unary, tables, lengths, log_partition, marginals, edges)
        return log_partition, marginals, edges if with_edges else None

    def gradient(self, inputs, outputs, upstream):
        unary, tables, lengths, _ = inputs
        on_log_partition, on_marginals, on_edges = upstream
        n = unary.shape[1]
        upstream = (
            tables.new_empty(0) if on_log_partition is None else on_log_partition,
            unary.new_empty(0, n) if on_marginals is None else on_marginals,
            tables.new_empty(0, n - 1, 2, 2) if on_edges is None else on_edges.double(),
        )
        on_unary = unary.new_empty(unary.shape)
        on_tables = tables.new_zeros(unary.shape[:1] + tables.shape[1:])
        _run(_backward, unary, tables, lengths, *upstream, on_unary, on_tables)
        return on_unary, on_tables.sum_to_size(tables.shape)

    def shapes(self, unary, tables, lengths, with_edges):
        chains, n = unary.shape
        edges = unary.new_empty((chains, n - 1, 2, 2) if with_edges else 0)
        return unary.new_empty(chains), unary.new_empty(chains, n), edges

    def parts(self, unary, tables):
        return unary, edge_tables(tables, unary.shape)

    def log_partition(self, unary, edges, lengths, with_edges):
        states = torch.stack((torch.zeros_like(unary), unary), -1)
        return reference.total(*without_padding(states, edges, lengths), lengths)

    def all_results(self, unary, tables, lengths, with_edges):
        return unary, tables, lengths, True


_log_odds = _LogOdds()


def _run(kernel, unary: Tensor, *others: Tensor) -> None:
    arrays = [tensor.detach().contiguous().numpy() for tensor in (unary,) + others]
    over_batch(kernel, -(-unary.shape[0] // WIDTH), *arrays)


# Kernels


@kernel
def _forward(first, stride, unary, tables, lengths, log_partition, marginals, edges):
    n = unary.shape[1]
    fields, coupling, left = np.empty((n, WIDTH)), np.empty((n + 1, WIDTH)), np.empty((n, WIDTH))
    right, selected, weights = np.empty((n + 1, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    constant, total, usual, every = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH), np.ones(WIDTH)
    for start in range(first * WIDTH, unary.shape[0], stride * WIDTH):
        _load_fields(start, unary, tables, lengths, fields, coupling, constant)
        in_range = odds.count_in_range(fields, coupling, usual)
        if in_range < WIDTH or edges.shape[0] > 0:
            copy(constant, total)
            _left_messages(fields, coupling, left, total)
            _right_messages(fields, coupling, left, right, selected)
            _store(start, every, selected, total, marginals, log_partition)
        if edges.shape[0] > 0:
            _store_edges(start, lengths, coupling, right, selected, edges)
        elif in_range > 0:
            copy(constant, total)
            odds.exponentiate(coupling, tables.shape[1] == 1)
            odds.left_messages(fields, coupling, weights, left, total)
            odds.right_messages(coupling, weights, left, selected)
            _store(start, usual, selected, total, marginals, log_partition)


@kernel
def _backward(first, stride, unary, tables, lengths, on_log_partition, on_marginals, on_edges, on_unary, on_tables):
    n = unary.shape[1]
    fields, coupling, direction = np.empty((n, WIDTH)), np.empty((n + 1, WIDTH)), np.empty((n, WIDTH))
    edge_direction, left, left_tangent = np.empty((n + 1, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    on_fields, on_coupling, weights = np.empty((n, WIDTH)), np.empty((n, WIDTH)), np.empty((n, WIDTH))
    scale, constant, usual, every = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH), np.ones(WIDTH)
    for start in range(first * WIDTH, unary.shape[0], stride * WIDTH):
        _load_fields(start, unary, tables, lengths, fields, coupling, constant)
        _load_direction(start, lengths, on_log_partition, on_marginals, on_edges, scale, direction, edge_direction)
        in_range = odds.count_in_range(fields, coupling, usual)
        if in_range < WIDTH:
            _left_tangents(fields, coupling, direction, edge_direction, left, left_tangent)
            _gradients(fields, coupling, direction, edge_direction, left, left_tangent, scale, on_fields, on_coupling)
            _store_gradients(start, every, lengths, scale, on_fields, on_coupling, on_unary, on_tables)
        if in_range > 0:
            odds.exponentiate(coupling, tables.shape[1] == 1)
            odds.left_tangents(fields, coupling, direction, edge_direction, weights, left, left_tangent)
            odds.gradients(
                coupling, direction, edge_direction, weights, left, left_tangent, scale, on_fields, on_coupling
            )
            _store_gradients(start, usual, lengths, scale, on_fields, on_coupling, on_unary, on_tables)


# Parts of the kernels, for a block of chains
#
# LLVM vectorises a loop if it reads no other row of an array that it writes, so that the message of the step before is
# kept in a row of its own; and only if the outer loop counts upwards, so that a step from the right is n − 1 − done.


@subroutine
def _left_messages(fields, coupling, left, total):
    """Messages f, and log Z added to ``total``."""
    n = fields.shape[0]
    message, product = np.full(WIDTH, NEGATIVE_INFINITY), np.ones(WIDTH)
    for i in range(n):
        for w in range(WIDTH):
            increment, _, _ = _step(message[w], coupling[i, w])
            message[w] = fields[i, w] + increment
            left[i, w] = message[w]
        # log Z = Σ log(1 + e^f); the logarithm is taken of many factors at once.
        for w in range(WIDTH):
            total[w] += max(message[w], 0.0)
            product[w] *= 1 + exp(-abs(message[w]))
        if i % MOST_FACTORS == MOST_FACTORS - 1 or i == n - 1:
            for w in range(WIDTH):
                total[w] += log(product[w])
                product[w] = 1


@subroutine
def _right_messages(fields, coupling, left, right, selected):
    """Messages c, −inf behind the last position, and P(z_i = 1)."""
    message = np.full(WIDTH, NEGATIVE_INFINITY)
    right[-1] = NEGATIVE_INFINITY
    for done in range(fields.shape[0]):
        i = fields.shape[0] - 1 - done
        for w in range(WIDTH):
            increment, _, _ = _step(message[w], coupling[i + 1, w])
            selected[i, w] = _sigmoid(left[i, w] + increment)
            message[w] = fields[i, w] + increment
            right[i, w] = message[w]


@subroutine
def _left_tangents(fields, coupling, direction, edge_direction, left, left_tangent):
    """Messages f and their derivatives."""
    message, tangent = np.full(WIDTH, NEGATIVE_INFINITY), np.zeros(WIDTH)
    for i in range(fields.shape[0]):
        for w in range(WIDTH):
            increment, alone, joined = _step(message[w], coupling[i, w])
            message[w] = fields[i, w] + increment
            tangent[w] = direction[i, w] + (joined - alone) * tangent[w] + joined * edge_direction[i, w]
            left[i, w], left_tangent[i, w] = message[w], tangent[w]


@subroutine
def _gradients(fields, coupling, direction, edge_direction, left, left_tangent, scale, on_fields, on_coupling):
    """Messages c and their derivatives, and with them the gradients."""
    message, tangent, rest = np.full(WIDTH, NEGATIVE_INFINITY), np.zeros(WIDTH), np.zeros(WIDTH)
    for done in range(fields.shape[0]):
        i = fields.shape[0] - 1 - done
        for w in range(WIDTH):
            increment, alone, joined = _step(message[w], coupling[i + 1, w])
            arrived = (joined - alone) * tangent[w] + joined * edge_direction[i + 1, w]
            p = _sigmoid(left[i, w] + increment)
            both = p * joined
            on_fields[i, w] = p * ((1 - p) * (left_tangent[i, w] + arrived) + scale[w])
            on_coupling[i, w] = both * (
                (1 - p) * left_tangent[i, w] + rest[w] * tangent[w] + (1 - both) * edge_direction[i + 1, w] + scale[w]
            )
            message[w] = fields[i, w] + increment
            tangent[w] = direction[i, w] + arrived
            rest[w] = 1 - p


@inlined
def _step(message, coupling):
    """The increment sp(x + J) − sp(x) that a message x hands on, σ(x) and σ(x + J)."""
    joint = message + coupling
    small, small_joint = exp(-abs(message)), exp(-abs(joint))
    above, above_joint = max(message, 0.0), max(joint, 0.0)
    increment = above_joint - above + log((1 + small_joint) / (1 + small))
    alone = (1.0 if message > 0 else small) / (1 + small)
    joined = (1.0 if joint > 0 else small_joint) / (1 + small_joint)
    return increment, alone, joined


@inlined
def _sigmoid(x):
    small = exp(-abs(x))
    return (1.0 if x > 0 else small) / (1 + small)


@subroutine
def _load_fields(start, unary, tables, lengths, fields, coupling, constant):
    """Fields, −inf in padding, couplings of a position with its left neighbour, and the score of state 0 everywhere."""
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
def _load_direction(start, lengths, on_log_partition, on_marginals, on_edges, scale, direction, edge_direction):
    """The upstream gradients of a block: a linear function of edge marginals is one of P(z_i = 1), P(z_{i+1} = 1) and
    P(both = 1). Nothing is read in padding."""
    for w in range(WIDTH):
        real = _length(start, lengths, w) > 0 and on_log_partition.shape[0] > 0
        scale[w] = on_log_partition[start + w] if real else 0.0
    edge_direction[:] = 0
    if on_marginals.shape[0] > 0:
        _load(start, lengths, on_marginals, 0.0, direction)
    else:
        direction[:] = 0
    if on_edges.shape[0] > 0:
        _add_tables(start, lengths, on_edges, direction, edge_direction, np.zeros(WIDTH))


@subroutine
def _store(start, wanted, rows, values, matrix, vector):
    """``rows`` ``[n, WIDTH]`` and ``values`` ``[WIDTH]`` of the wanted chains of a block, 1.0 or 0.0 for each."""
    for w in range(min(WIDTH, matrix.shape[0] - start)):
        if wanted[w]:
            vector[start + w] = values[w]
            for i in range(matrix.shape[1]):
                matrix[start + w, i] = rows[i, w]


@subroutine
def _store_edges(start, lengths, coupling, right, selected, edges):
    alone, joined = np.empty(WIDTH), np.empty(WIDTH)
    for i in range(edges.shape[1]):
        for w in range(WIDTH):
            # P(z_{i+1} = 1) where z_i is 0 and where it is 1.
            alone[w], joined[w] = _sigmoid(right[i + 1, w]), _sigmoid(right[i + 1, w] + coupling[i + 1, w])
        for w in range(min(WIDTH, edges.shape[0] - start)):
            real = 1.0 if i + 1 < lengths[start + w] else 0.0
            table, p = edges[start + w, i], selected[i, w]
            table[0, 0] = real * (1 - p) * (1 - alone[w])
            table[0, 1] = real * (1 - p) * alone[w]
            table[1, 0] = real * p * (1 - joined[w])
            table[1, 1] = real * p * joined[w]


@subroutine
def _store_gradients(start, wanted, lengths, scale, on_fields, on_coupling, on_unary, on_tables):
    """The gradients of the wanted chains; that of the tables added up for a chain that has but one."""
    for w in range(min(WIDTH, on_unary.shape[0] - start)):
        if wanted[w]:
            for i in range(on_unary.shape[1]):
                on_unary[start + w, i] = on_fields[i, w]
    if on_tables.shape[1] == 1:
        _store_sum(start, wanted, lengths, scale, on_fields, on_coupling, on_tables)
        return
    for w in range(min(WIDTH, on_tables.shape[0] - start)):
        for i in range(lengths[start + w] - 1 if wanted[w] else 0):
            _store_table(scale[w], on_fields[i, w], on_fields[i + 1, w], on_coupling[i, w], on_tables[start + w, i])


@subroutine
def _store_sum(start, wanted, lengths, scale, on_fields, on_coupling, on_tables):
    """The gradient of one table for all edges; what is computed in padding is 0."""
    edges, left, right, both = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    for w in range(WIDTH):
        edges[w] = max(_length(start, lengths, w) - 1, 0)
    for i in range(on_fields.shape[0] - 1):
        for w in range(WIDTH):
            left[w] += on_fields[i, w] if i < edges[w] else 0.0
            right[w] += on_fields[i + 1, w]
            both[w] += on_coupling[i, w]
    for w in range(min(WIDTH, on_tables.shape[0] - start)):
        if wanted[w]:
            _store_table(edges[w] * scale[w], left[w], right[w], both[w], on_tables[start + w, 0])


@inlined
def _store_table(stay, left, right, both, on_table):
    """From the gradients of a constant, of the fields on either side and of the coupling."""
    on_table[0, 0] = stay - left - right + both
    on_table[0, 1] = right - both
    on_table[1, 0] = left - both
    on_table[1, 1] = both
