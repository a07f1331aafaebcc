"""Linear chains of K states on the GPU: messages in Triton, with a backward pass in closed form.

A program computes a chain, position by position. A message has a lane for each state, and some rows of a table of edges
are a tile. Messages are logarithms, and a step is a sum of exponentials relative to its largest term: K² exponentials,
which are few beside the launches that a step would take in PyTorch, and scores have any size. Sums over the left state,
whose rows come block by block, are kept relative to the largest term so far.

The gradient is that of :mod:`.cpu_states`. The conditional probabilities that it reads are computed from one message
each, p(left | right) from that from the left and p(right | left) from that from the right, so nothing is divided by a
probability. An edge marginal is p(left) · p(right | left).
"""

from typing import Dict, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.triton_launch import next_power_of_two, on_device_of
from ..operations import Operation
from ..pairwise import edge_tables
from . import reference
from .potentials import without_padding

# Beyond so many states, rows of a table do not fit in registers.
MOST_STATES = 256
# Rows of a table that are in registers at a time, and their entries.
ROWS, ENTRIES = 16, 2048
_SIZES = ["chains", "n", "states", "table_stride", "edge_stride"]


class StateExpectations(Operation):
    """unary ``[chains, n, K]``, tables ``[chains or 1, n-1 or 1, K, K]``, lengths ``[chains]`` → log Z, marginals, and
    edge marginals ``[chains, n-1, K, K]`` or ``None``; K ≤ :data:`MOST_STATES`."""

    name = "chain_of_states_on_gpu"
    arguments = "Tensor unary, Tensor tables, Tensor lengths, bool with_edges"
    potentials, results, outputs, kept = 2, 3, 5, (0, 1, 3, 4)
    wide = False

    def forward(self, unary: Tensor, tables: Tensor, lengths: Tensor, with_edges: bool):
        unary, tables, lengths = unary.contiguous(), tables.contiguous(), lengths.contiguous()
        log_partition, marginals, edges, left, right = self.shapes(unary, tables, lengths, with_edges)
        edges = edges.zero_()
        launch(filter_forward, unary, tables, lengths, log_partition, left)
        launch(
            smooth_backward, unary, tables, lengths, log_partition, left, right, marginals.zero_(), edges,
            with_edges=int(with_edges),
        )  # fmt: skip
        return log_partition, marginals, edges if with_edges else None, left, right

    def gradient(self, inputs, outputs, upstream):
        unary, tables, lengths = (tensor.contiguous() for tensor in inputs[:3])
        (log_partition, marginals, _, left, right), (grad_log_partition, grad_marginals, grad_edges) = outputs, upstream
        if grad_log_partition is None:
            grad_log_partition = torch.zeros_like(log_partition)
        grad_marginals = torch.zeros_like(marginals) if grad_marginals is None else grad_marginals.contiguous()
        grad_unary, grad_tables = torch.zeros_like(unary), tables.new_zeros(len(unary), *tables.shape[1:])
        launch(
            differentiate, unary, tables, lengths, log_partition, left, right, marginals,
            grad_log_partition.contiguous(), grad_marginals,
            marginals if grad_edges is None else grad_edges.contiguous(),
            grad_unary, grad_tables, torch.empty_like(unary), torch.empty_like(unary),
            with_edges=int(grad_edges is not None),
        )  # fmt: skip
        return grad_unary, grad_tables.sum_to_size(tables.shape)

    def shapes(self, unary, tables, lengths, with_edges):
        chains, n, states = unary.shape
        edges = unary.new_empty((chains, n - 1, states, states) if with_edges else 0)
        marginals, left, right = (unary.new_empty(unary.shape) for _ in range(3))
        return unary.new_empty(chains), marginals, edges, left, right

    def parts(self, unary, tables):
        return unary, edge_tables(tables, unary.shape[:2])

    def log_partition(self, unary, edges, lengths, with_edges):
        return reference.total(*without_padding(unary, edges, lengths), lengths)

    def all_results(self, unary, tables, lengths, with_edges):
        return unary, tables, lengths, True


expectations = StateExpectations()


def launch(kernel, unary: Tensor, tables: Tensor, lengths: Tensor, *others, blocks: int = 1, **flags) -> None:
    """Runs a kernel with `blocks` programs for each chain.

    Args:
        unary: ``[chains, n, K]``, contiguous, as are the others.
        tables: ``[chains or 1, n-1 or 1, K, K]``.
        lengths: ``[chains]``.
        others, flags: further arguments of the kernel.
    """
    chains, n, states = unary.shape
    if chains == 0:
        return
    table_stride = tables.stride(0) if tables.shape[0] > 1 else 0
    edge_stride = tables.stride(1) if tables.shape[1] > 1 else 0
    constants, options = configuration(kernel, states)
    with on_device_of(unary):
        kernel[(chains, blocks)](
            unary, tables, lengths, *others, chains, n, states, table_stride, edge_stride,
            **flags, **constants, **options,
        )  # fmt: skip


def configuration(kernel, states: int) -> Tuple[Dict[str, int], Dict[str, int]]:
    """Constants of a kernel, and options of its launch: a lane has at most 8 entries of some rows of a table."""
    width = next_power_of_two(states)
    rows = min(ROWS, width, ENTRIES // width)
    constants = {"STATES": width, "ROWS": rows} if "ROWS" in kernel.arg_names else {"STATES": width}
    return constants, {"num_warps": min(max(rows * width // 128, 1), 8)}


# Kernels


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride"])
def filter_forward(
    unary, tables, lengths, log_partition, left, chains, n, states, table_stride, edge_stride,
    STATES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Fill ``log_partition`` and ``left`` ``[chains, n, states]``: the logarithm of the total weight of what leads to
    each state, with it, but for a constant for each position."""
    chain = tl.program_id(0).to(tl.int64)
    length = length_of(lengths, chain, n)
    unary, tables, left = unary + chain * n * states, tables + chain * table_stride, left + chain * n * states
    lanes = tl.arange(0, STATES)
    real = lanes < states
    message = tl.load(unary + lanes, mask=real & (length > 0), other=float("-inf"))
    total = tl.sum(tl.zeros((STATES,), unary.dtype.element_ty), 0)
    for i in range(length):
        if i > 0:
            tl.debug_barrier()
            most = tl.full((STATES,), float("-inf"), unary.dtype.element_ty)
            mass = tl.zeros((STATES,), unary.dtype.element_ty)
            for first in range(0, states, ROWS):
                before, edges = left + (i - 1) * states, tables + (i - 1) * edge_stride
                scores = scores_after(before, edges, first, states, ROWS, STATES)
                larger = tl.maximum(most, tl.max(scores, 0))
                shift = finite(larger)
                mass = mass * tl.exp(most - shift) + tl.sum(tl.exp(scores - shift[None, :]), 0)
                most = larger
            message = tl.log(mass) + finite(most)
            message += tl.load(unary + i * states + lanes, mask=real, other=float("-inf"))
        # Only differences matter, and those of small numbers are accurate.
        shift = finite(tl.max(message, 0))
        message, total = message - shift, total + shift
        tl.store(left + i * states + lanes, message, mask=real)
    log_z = total + tl.log(tl.sum(tl.where(real, tl.exp(message), 0.0), 0))
    tl.store(log_partition + chain, tl.where(length == 0, 0.0, log_z))


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride", "with_edges"])
def smooth_backward(
    unary, tables, lengths, log_partition, left, right, marginals, edges,
    chains, n, states, table_stride, edge_stride, with_edges, STATES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Fill ``marginals``, ``edges`` if asked, both 0 on entry, and ``right`` ``[chains, n, states]``: the logarithm of
    the total weight of what follows each state, but for a constant for each position."""
    chain = tl.program_id(0).to(tl.int64)
    length = _possible_length(lengths, log_partition, chain, n)
    unary, tables, left = unary + chain * n * states, tables + chain * table_stride, left + chain * n * states
    right, marginals = right + chain * n * states, marginals + chain * n * states
    edges += chain * (n - 1) * states * states
    lanes = tl.arange(0, STATES)
    real = lanes < states
    for done in range(length):
        i = length - 1 - done
        inner = done > 0
        tl.debug_barrier()
        after = _after(unary, right, i + 1, lanes, states, inner)
        for first in range(0, states, ROWS):
            rows = first + tl.arange(0, ROWS)
            scores = _scores_before(tables + i * edge_stride, after, rows, lanes, states, inner)
            most = finite(tl.max(scores, 1))
            message = tl.log(tl.sum(tl.exp(scores - most[:, None]), 1)) + most
            tl.store(right + i * states + rows, tl.where(inner, message, 0.0), mask=rows < states)
        tl.debug_barrier()
        message = tl.load(right + i * states + lanes, mask=real, other=float("-inf"))
        both = message + tl.load(left + i * states + lanes, mask=real, other=float("-inf"))
        most = finite(tl.max(both, 0))
        mass = tl.exp(both - most)
        total = tl.sum(mass, 0)
        tl.store(marginals + i * states + lanes, mass / total, mask=real)
        if (with_edges != 0) & inner:
            for first in range(0, states, ROWS):
                rows = first + tl.arange(0, ROWS)
                scores = _scores_before(tables + i * edge_stride, after, rows, lanes, states, True)
                before = tl.load(left + i * states + rows, mask=rows < states, other=float("-inf"))
                edge = tl.exp(scores + (before - most)[:, None]) / total
                at, pairs = _pairs(rows, lanes, states)
                tl.store(edges + i * states * states + at, edge, mask=pairs)
        tl.store(right + i * states + lanes, message - finite(tl.max(message, 0)), mask=real)


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride", "with_edges"])
def differentiate(
    unary, tables, lengths, log_partition, left, right, marginals, grad_log_partition, grad_marginals, grad_edges,
    grad_unary, grad_tables, before, behind, chains, n, states, table_stride, edge_stride, with_edges,
    STATES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Fill ``grad_unary`` and ``grad_tables`` ``[chains, n-1 or 1, states, states]``, both 0 on entry. ``before`` and
    ``behind`` ``[chains, n, states]`` are L and R."""
    chain = tl.program_id(0).to(tl.int64)
    length = _possible_length(lengths, log_partition, chain, n)
    unary, tables, left = unary + chain * n * states, tables + chain * table_stride, left + chain * n * states
    right, marginals = right + chain * n * states, marginals + chain * n * states
    grad_marginals, grad_unary = grad_marginals + chain * n * states, grad_unary + chain * n * states
    before, behind = before + chain * n * states, behind + chain * n * states
    grad_edges += chain * (n - 1) * states * states
    grad_tables += chain * states * states * tl.where(edge_stride == 0, 1, n - 1)
    lanes = tl.arange(0, STATES)
    real = lanes < states
    given = (with_edges != 0) & (lanes < states)
    expected = _upstream(grad_marginals, marginals, lanes, real & (length > 0))
    tl.store(before + lanes, expected, mask=real & (length > 0))
    for i in range(1, length):
        tl.debug_barrier()
        most = tl.full((STATES,), float("-inf"), unary.dtype.element_ty)
        mass = tl.zeros((STATES,), unary.dtype.element_ty)
        weighted = mass
        for first in range(0, states, ROWS):
            rows = first + tl.arange(0, ROWS)
            scores = scores_after(left + (i - 1) * states, tables + (i - 1) * edge_stride, first, states, ROWS, STATES)
            larger = tl.maximum(most, tl.max(scores, 0))
            shift = finite(larger)
            share, kept = tl.exp(scores - shift[None, :]), tl.exp(most - shift)
            at, pairs = _pairs(rows, lanes, states)
            g = tl.load(grad_edges + (i - 1) * states * states + at, mask=pairs & given[None, :], other=0.0)
            g += tl.load(before + (i - 1) * states + rows, mask=rows < states, other=0.0)[:, None]
            mass = mass * kept + tl.sum(share, 0)
            weighted = weighted * kept + tl.sum(tl.where(share == 0, 0.0, share * g), 0)
            most = larger
        expected = tl.where(mass == 0, 0.0, weighted / mass)
        expected += _upstream(grad_marginals, marginals, i * states + lanes, real)
        tl.store(before + i * states + lanes, expected, mask=real)
    last = tl.maximum(length - 1, 0) * states + lanes
    of_last = tl.load(marginals + last, mask=real & (length > 0), other=0.0)
    offset = tl.load(grad_log_partition + chain) - tl.sum(of_last * expected, 0)
    for done in range(length):
        i = length - 1 - done
        inner = done > 0
        tl.debug_barrier()
        after = _after(unary, right, i + 1, lanes, states, inner)
        to_come = tl.load(behind + (i + 1) * states + lanes, mask=real & inner, other=0.0)
        to_come += _upstream(grad_marginals, marginals, (i + 1) * states + lanes, real & inner)
        for first in range(0, states, ROWS):
            rows = first + tl.arange(0, ROWS)
            in_rows = rows < states
            scores = _scores_before(tables + i * edge_stride, after, rows, lanes, states, inner)
            share = tl.exp(scores - finite(tl.max(scores, 1))[:, None])
            share = share / tl.where(inner, tl.sum(share, 1), 1.0)[:, None]
            at, pairs = _pairs(rows, lanes, states)
            pairs = pairs & inner
            g = tl.load(grad_edges + i * states * states + at, mask=pairs & given[None, :], other=0.0)
            g += to_come[None, :]
            # A state that nothing can follow has no shares.
            possible = share > 0
            rest = tl.sum(tl.where(possible, share * g, 0.0), 1)
            p = tl.load(marginals + i * states + rows, mask=in_rows, other=0.0)
            so_far = tl.load(before + i * states + rows, mask=in_rows, other=0.0) + offset
            tl.store(behind + i * states + rows, rest, mask=in_rows)
            tl.store(grad_unary + i * states + rows, tl.where(p == 0, 0.0, p * (so_far + rest)), mask=in_rows)
            change = tl.where(possible & (p > 0)[:, None], p[:, None] * share * (so_far[:, None] + g), 0.0)
            target = grad_tables + i * edge_stride + at
            change += tl.load(target, mask=pairs & (edge_stride == 0), other=0.0)
            tl.store(target, change, mask=pairs)


# Parts of the kernels


@triton.jit
def length_of(lengths, chain, n):
    # The host does not check lengths on a device, so they are clamped here.
    return tl.minimum(tl.maximum(tl.load(lengths + chain), 0), n).to(tl.int32)


@triton.jit
def _possible_length(lengths, log_partition, chain, n):
    """0 if no sequence is possible."""
    return tl.where(tl.load(log_partition + chain) == float("-inf"), 0, length_of(lengths, chain, n))


@triton.jit
def finite(score):
    return tl.where(score == float("-inf"), 0.0, score)


@triton.jit
def _pairs(rows, lanes, states):
    """Indices in a table of some left states and all right ones, and which of them exist."""
    return rows[:, None] * states + lanes[None, :], (rows < states)[:, None] & (lanes < states)[None, :]


@triton.jit
def scores_after(message, table, first, states, ROWS: tl.constexpr, STATES: tl.constexpr):
    """Scores of pairs, of some left states and all right ones, with the message up to the left states."""
    rows = first + tl.arange(0, ROWS)
    at, pairs = _pairs(rows, tl.arange(0, STATES), states)
    before = tl.load(message + rows, mask=rows < states, other=float("-inf"))
    return before[:, None] + tl.load(table + at, mask=pairs, other=float("-inf"))


@triton.jit
def _scores_before(table, after, rows, lanes, states, there):
    """Scores of pairs with what follows the right states; −∞ unless ``there``."""
    at, pairs = _pairs(rows, lanes, states)
    return tl.load(table + at, mask=pairs & there, other=float("-inf")) + after[None, :]


@triton.jit
def _after(unary, right, i, lanes, states, there):
    """What a state at position i and those that follow it score, 0 unless ``there``."""
    mask = (lanes < states) & there
    own = tl.load(unary + i * states + lanes, mask=mask, other=0.0)
    return own + tl.load(right + i * states + lanes, mask=mask, other=0.0)


@triton.jit
def _upstream(grad_marginals, marginals, at, mask):
    """The upstream gradient, 0 for impossible states."""
    p = tl.load(marginals + at, mask=mask, other=0.0)
    return tl.where(p == 0, 0.0, tl.load(grad_marginals + at, mask=mask, other=0.0))


def configurations(*kernels):
    """Kernels with the most states, in float64, which scores of states are in: kernel, types of its arguments,
    compile-time constants and options of its launch."""
    types = {"lengths": "*i64", "pointers": "*i32", "best": "*i64", "samples": "*i64"}
    integers = [*_SIZES, "with_edges", "count"]
    for kernel, flags in kernels:
        constants, options = configuration(kernel, MOST_STATES)
        names = [name for name in kernel.arg_names if not name.isupper()]
        signature = {name: types.get(name, "i32" if name in integers else "*fp64") for name in names}
        yield kernel, signature, {**constants, **flags}, options


CONFIGURATIONS = tuple(configurations((filter_forward, {}), (smooth_backward, {}), (differentiate, {})))
