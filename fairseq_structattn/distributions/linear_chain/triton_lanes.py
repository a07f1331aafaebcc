"""Binary linear chain in Triton, by a recursion on log-odds, with a backward pass in closed form.

Loaded by :mod:`.cuda`.

With a table w of pairwise scores, the messages f from the left, which are log-odds, are

    f_{i+1} = h_{i+1} + log(e^w01 + e^(f_i + w11)) − log(e^w00 + e^(f_i + w10)),

and those from the right likewise, with w transposed. Both logarithms are taken relative to the more likely state, so
scores of any size, including −inf, may occur anywhere. No values are inspected beforehand, so the host never waits.
The gradient is the product of the covariance of the parts with the upstream gradient g, computed from the derivatives
of the messages in direction g, as in :mod:`.log_odds`.

Each lane computes one chain, so that nothing is exchanged along the recursion. Lanes read tiles of a few positions,
which are transposed on the chip: if each lane read its own row, a step would touch 32 cache lines. The sweep from the
left stores only the messages that enter each tile; the sweep back recomputes the others in registers. So scores and
upstream gradients are read twice and results are written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.triton_launch import on_device_of
from ..kernels.triton_scaled import LOG2_E, LOG_2
from ..operations import Operation
from . import reference
from .potentials import edge_tables, without_padding

# Chains of a program, one for each lane of its only warp, and positions held in registers: scores and messages in the
# forward pass; scores, messages, upstream gradients and derivatives of messages in the backward pass.
CHAINS = 32
NUM_WARPS = 1
FORWARD_TILE, BACKWARD_TILE = 8, 4
# Stands for −inf, so that differences are not NaN. Scores below half of it count as impossible.
FORBIDDEN = tl.constexpr(-1e30)
IMPOSSIBLE = tl.constexpr(-5e29)


class LaneExpectations(Operation):
    """unary ``[chains, n]``, tables ``[chains or 1, n-1 or 1, 2, 2]``, lengths ``[chains]`` → log Z and marginals."""

    name = "binary_chain_in_lanes"
    arguments = "Tensor unary, Tensor tables, Tensor lengths"
    potentials, results, outputs, kept = 2, 2, 2, (0,)
    wide = False

    def forward(self, unary: Tensor, tables: Tensor, lengths: Tensor):
        unary, tables, lengths = unary.contiguous(), tables.contiguous(), lengths.contiguous()
        chains, n = unary.shape
        log_partition, marginals = unary.new_empty(chains), torch.empty_like(unary)
        if chains > 0:
            entering = unary.new_empty(triton.cdiv(n, FORWARD_TILE), chains)
            with on_device_of(unary):
                forward_kernel[(triton.cdiv(chains, CHAINS),)](
                    unary, tables, lengths, log_partition, marginals, entering, chains, n, _chain_stride(tables),
                    PER_EDGE=tables.shape[1] != 1, CHAINS=CHAINS, TILE=FORWARD_TILE, num_warps=NUM_WARPS,
                )  # fmt: skip
        return log_partition, marginals

    def gradient(self, inputs, outputs, upstream):
        (unary, tables, lengths), (log_partition, _) = (tensor.contiguous() for tensor in inputs), outputs
        grad_log_partition, grad_marginals = upstream
        chains, n = unary.shape
        # An expanded number takes no memory, and no time to read.
        nothing = unary.new_zeros(())
        grad_log_partition = nothing.expand(chains) if grad_log_partition is None else grad_log_partition
        grad_marginals = nothing.expand(chains, n) if grad_marginals is None else grad_marginals
        grad_unary, grad_tables = torch.empty_like(unary), tables.new_empty(chains, *tables.shape[1:])
        if chains > 0:
            entering = unary.new_empty(2, triton.cdiv(n, BACKWARD_TILE), chains)
            with on_device_of(unary):
                backward_kernel[(triton.cdiv(chains, CHAINS),)](
                    unary, tables, lengths, log_partition, grad_log_partition, grad_marginals, grad_unary, grad_tables,
                    entering, chains, n, _chain_stride(tables), grad_log_partition.stride(0), *grad_marginals.stride(),
                    PER_EDGE=tables.shape[1] != 1, CHAINS=CHAINS, TILE=BACKWARD_TILE, num_warps=NUM_WARPS,
                )  # fmt: skip
        return grad_unary, grad_tables.sum_to_size(tables.shape)

    def shapes(self, unary, tables, lengths):
        return unary.new_empty(unary.shape[:1]), unary.new_empty(unary.shape)

    def parts(self, unary, tables):
        return unary, edge_tables(tables, unary.shape)

    def log_partition(self, unary, edges, lengths):
        states = torch.stack((torch.zeros_like(unary), unary), -1)
        return reference.total(*without_padding(states, edges, lengths), lengths)

    def all_results(self, *inputs):
        return ()


lane_expectations = LaneExpectations()


def _chain_stride(tables: Tensor) -> int:
    return tables.stride(0) if tables.shape[0] > 1 else 0


# Kernels


@triton.jit(do_not_specialize=["chains", "n", "table_stride"])
def forward_kernel(
    unary, tables, lengths, log_partition, marginals, entering, chains, n, table_stride,
    PER_EDGE: tl.constexpr, CHAINS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Fill ``log_partition`` and ``marginals``. ``entering`` ``[tiles, chains]`` is scratch for messages into tiles."""
    rows, real, length, longest = _chains_of_program(lengths, chains, n, CHAINS)
    end = tl.where(real, n, 0)
    tables += rows * table_stride
    table = _load_table(tables, 0, length > 1)
    scratch_stride = chains.to(tl.int64)
    tiles = tl.cdiv(longest, TILE)
    message = tl.full([CHAINS, 1], FORBIDDEN, unary.dtype.element_ty)
    total, one = tl.zeros_like(message), tl.full([CHAINS, 1], 1, unary.dtype.element_ty)
    for tile in range(tiles):
        tl.store(entering + rows + tile * scratch_stride, message, mask=real)
        scores = _load_scores(unary + rows * n, tile * TILE, length, TILE)
        _, message, total, factor = _left_messages(
            scores, message, total, one, tile * TILE, length, tables, table, PER_EDGE
        )
        total += tl.log2(factor)
    total += tl.log2(1 + tl.exp2(-tl.abs(message)))
    log_z = tl.where(length == 0, 0.0, tl.where(total < IMPOSSIBLE, float("-inf"), total * LOG_2))
    tl.store(log_partition + rows, log_z, mask=real)
    # The code below reads messages that other lanes may have stored.
    tl.debug_barrier()
    message = tl.full([CHAINS, 1], FORBIDDEN, unary.dtype.element_ty)
    for done in range(tiles):
        tile = tiles - 1 - done
        scores = _load_scores(unary + rows * n, tile * TILE, length, TILE)
        left = tl.load(entering + rows + tile * scratch_stride, mask=real, other=0.0)
        left, _, _, _ = _left_messages(scores, left, total, one, tile * TILE, length, tables, table, PER_EDGE)
        selected, message = _selected(scores, left, message, tile * TILE, length, tables, table, PER_EDGE)
        selected = tl.where(log_z == float("-inf"), 0.0, selected)
        _store_tile(marginals + rows * n, tile * TILE, end, selected, TILE)
    _store_zeros(marginals + rows * n, tiles, n, end, CHAINS, TILE)


@triton.jit(do_not_specialize=["chains", "n", "table_stride", "log_partition_stride", "row_stride"])
def backward_kernel(
    unary, tables, lengths, log_partition, grad_log_partition, grad_marginals, grad_unary, grad_tables, entering,
    chains, n, table_stride, log_partition_stride, row_stride, column_stride,
    PER_EDGE: tl.constexpr, CHAINS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Fill ``grad_unary`` and ``grad_tables``. ``entering`` ``[2, tiles, chains]`` is scratch for messages into tiles
    and their derivatives."""
    rows, real, length, longest = _chains_of_program(lengths, chains, n, CHAINS)
    end = tl.where(real, n, 0)
    # Impossible chains are not read; their gradients are zero.
    length = tl.where(tl.load(log_partition + rows, mask=real, other=0.0) == float("-inf"), 0, length)
    tables += rows * table_stride
    table = _load_table(tables, 0, length > 1)
    scratch_stride = chains.to(tl.int64)
    upstream = grad_marginals + rows * row_stride
    scale = tl.load(grad_log_partition + rows * log_partition_stride, mask=real & (length > 0), other=0.0)
    tiles = tl.cdiv(longest, TILE)
    tangents = entering + tl.cdiv(n, TILE) * scratch_stride
    message = tl.full([CHAINS, 1], FORBIDDEN, unary.dtype.element_ty)
    tangent = tl.zeros_like(message)
    for tile in range(tiles):
        tl.store(entering + rows + tile * scratch_stride, message, mask=real)
        tl.store(tangents + rows + tile * scratch_stride, tangent, mask=real)
        scores = _load_scores(unary + rows * n, tile * TILE, length, TILE)
        direction = _load_tile(upstream, column_stride, tile * TILE, length, TILE)
        _, _, message, tangent = _left_tangents(
            scores, direction, message, tangent, tile * TILE, length, tables, table, PER_EDGE
        )
    # The code below reads messages that other lanes may have stored.
    tl.debug_barrier()
    edges = grad_tables + rows * (4 * (n - 1) if PER_EDGE else 4)
    message, tangent = tl.full([CHAINS, 1], FORBIDDEN, unary.dtype.element_ty), tl.zeros_like(message)
    sums = (tangent, tangent, tangent, tangent)
    for done in range(tiles):
        tile = tiles - 1 - done
        scores = _load_scores(unary + rows * n, tile * TILE, length, TILE)
        direction = _load_tile(upstream, column_stride, tile * TILE, length, TILE)
        left = tl.load(entering + rows + tile * scratch_stride, mask=real, other=0.0)
        left_tangent = tl.load(tangents + rows + tile * scratch_stride, mask=real, other=0.0)
        left, left_tangent, _, _ = _left_tangents(
            scores, direction, left, left_tangent, tile * TILE, length, tables, table, PER_EDGE
        )
        gradient, message, tangent, sums = _gradients(
            scores, direction, left, left_tangent, message, tangent, sums, scale,
            tile * TILE, length, end, tables, table, edges, PER_EDGE,
        )  # fmt: skip
        _store_tile(grad_unary + rows * n, tile * TILE, end, gradient, TILE)
    _store_zeros(grad_unary + rows * n, tiles, n, end, CHAINS, TILE)
    if PER_EDGE:
        for edge in range(tiles * TILE, n - 1):
            _store_table(edges, edge, real, sums)
    else:
        _store_table(edges, 0, real, sums)


# Sweeps over a tile ``[chains, positions]``, which is halved recursively down to single positions. Halves and messages
# ``[chains, 1]`` stay in the registers of a chain's lane.


@triton.jit
def _left_messages(scores, message, total, factor, start, length, tables, table, PER_EDGE: tl.constexpr):
    """Messages f of the positions; the last message, and its normaliser 2^``total`` · ``factor``."""
    if scores.shape[1] == 1:
        w00, w01, w10, w11 = _edge_table(tables, table, start - 1, _has_left_neighbour(start, length), PER_EDGE)
        to_zero, to_one = _hand_on(message, w00, w10), _hand_on(message, w01, w11)
        following = scores + _log_odds(to_zero, to_one)
        real = length > start
        # In a message, the more likely state has the score 0.
        total += tl.where(real, tl.where(following > 0, scores + to_one[0], to_zero[0]), 0.0)
        factor *= tl.where(real, 1 + tl.where(following > 0, to_one[1], to_zero[1]), 1.0)
        message = tl.where(real, following, message)
        return message, message, total, factor
    else:
        HALF: tl.constexpr = scores.shape[1] // 2
        early, late = _halves(scores)
        early, message, total, factor = _left_messages(
            early, message, total, factor, start, length, tables, table, PER_EDGE
        )
        late, message, total, factor = _left_messages(
            late, message, total, factor, start + HALF, length, tables, table, PER_EDGE
        )
        return _joined(early, late), message, total, factor


@triton.jit
def _selected(scores, left, message, start, length, tables, table, PER_EDGE: tl.constexpr):
    """P(z_i = 1) of the positions, and the message c of the first."""
    if scores.shape[1] == 1:
        w00, w01, w10, w11 = _edge_table(tables, table, start, length > start + 1, PER_EDGE)
        increment = _log_odds(_hand_on(message, w00, w01), _hand_on(message, w10, w11))
        selected, _ = _probabilities(left + increment)
        real = length > start
        return tl.where(real, selected, 0.0), tl.where(real, scores + increment, FORBIDDEN)
    else:
        HALF: tl.constexpr = scores.shape[1] // 2
        early, late = _halves(scores)
        early_left, late_left = _halves(left)
        late, message = _selected(late, late_left, message, start + HALF, length, tables, table, PER_EDGE)
        early, message = _selected(early, early_left, message, start, length, tables, table, PER_EDGE)
        return _joined(early, late), message


@triton.jit
def _left_tangents(scores, direction, message, tangent, start, length, tables, table, PER_EDGE: tl.constexpr):
    """Messages f of the positions and their derivatives, and the last of both."""
    if scores.shape[1] == 1:
        w00, w01, w10, w11 = _edge_table(tables, table, start - 1, _has_left_neighbour(start, length), PER_EDGE)
        to_zero, to_one = _hand_on(message, w00, w10), _hand_on(message, w01, w11)
        beside_one, _ = _probabilities(to_one[2])
        beside_zero, _ = _probabilities(to_zero[2])
        real = length > start
        message = tl.where(real, scores + _log_odds(to_zero, to_one), message)
        tangent = tl.where(real, direction + (beside_one - beside_zero) * tangent, tangent)
        return message, tangent, message, tangent
    else:
        HALF: tl.constexpr = scores.shape[1] // 2
        early, late = _halves(scores)
        early_direction, late_direction = _halves(direction)
        early, early_tangent, message, tangent = _left_tangents(
            early, early_direction, message, tangent, start, length, tables, table, PER_EDGE
        )
        late, late_tangent, message, tangent = _left_tangents(
            late, late_direction, message, tangent, start + HALF, length, tables, table, PER_EDGE
        )
        return _joined(early, late), _joined(early_tangent, late_tangent), message, tangent


@triton.jit
def _gradients(
    scores, direction, left, left_tangent, message, tangent, sums, scale,
    start, length, end, tables, table, edges, PER_EDGE: tl.constexpr,
):  # fmt: skip
    """Gradients of the scores of the positions; the message c of the first and its derivative; and the sum so far of
    the gradients of the table. If each edge has a table, gradients of tables are stored to ``edges`` instead."""
    if scores.shape[1] == 1:
        w00, w01, w10, w11 = _edge_table(tables, table, start, length > start + 1, PER_EDGE)
        from_zero, from_one = _hand_on(message, w00, w01), _hand_on(message, w10, w11)
        one_beside_zero, zero_beside_zero = _probabilities(from_zero[2])
        one_beside_one, zero_beside_one = _probabilities(from_one[2])
        increment = _log_odds(from_zero, from_one)
        arrived = (one_beside_one - one_beside_zero) * tangent
        one, zero = _probabilities(left + increment)
        gradient = one * (zero * (left_tangent + arrived) + scale)
        # Edge marginals, and the derivative of each pair of states less its expectation.
        m00, m01, m10, m11 = (
            zero * zero_beside_zero,
            zero * one_beside_zero,
            one * zero_beside_one,
            one * one_beside_one,
        )
        excess = scale - one * left_tangent - (m01 + m11) * tangent
        edge = length > start + 1
        grad_table = (
            tl.where(edge, m00 * excess, 0.0),
            tl.where(edge, m01 * (excess + tangent), 0.0),
            tl.where(edge, m10 * (excess + left_tangent), 0.0),
            tl.where(edge, m11 * (excess + left_tangent + tangent), 0.0),
        )
        if PER_EDGE:
            _store_table(edges, start, end > start + 1, grad_table)
        else:
            sums = (sums[0] + grad_table[0], sums[1] + grad_table[1], sums[2] + grad_table[2], sums[3] + grad_table[3])
        inside = length > start
        message = tl.where(inside, scores + increment, FORBIDDEN)
        tangent = tl.where(inside, direction + arrived, 0.0)
        return tl.where(inside, gradient, 0.0), message, tangent, sums
    else:
        HALF: tl.constexpr = scores.shape[1] // 2
        early, late = _halves(scores)
        early_direction, late_direction = _halves(direction)
        early_left, late_left = _halves(left)
        early_tangent, late_tangent = _halves(left_tangent)
        late, message, tangent, sums = _gradients(
            late, late_direction, late_left, late_tangent, message, tangent, sums, scale,
            start + HALF, length, end, tables, table, edges, PER_EDGE,
        )  # fmt: skip
        early, message, tangent, sums = _gradients(
            early, early_direction, early_left, early_tangent, message, tangent, sums, scale,
            start, length, end, tables, table, edges, PER_EDGE,
        )  # fmt: skip
        return _joined(early, late), message, tangent, sums


# A step of the recursion


@triton.jit
def _hand_on(message, beside_zero, beside_one):
    """The mass 2^largest · (1 + rest) that a message gives to a state, whose pairwise scores with the states 0 and 1
    are given; and the log-odds that the mass came from state 1."""
    # In a message, the more likely state has the score 0.
    shift = tl.maximum(message, 0.0)
    from_zero, from_one = beside_zero - shift, beside_one + (message - shift)
    log_odds = from_one - from_zero
    return tl.maximum(from_zero, from_one), tl.exp2(-tl.abs(log_odds)), log_odds


@triton.jit
def _log_odds(to_zero, to_one):
    """The logarithm of the ratio of two masses. A NaN is carried by ``rest``."""
    quotient = (to_one[1] - to_zero[1]) / (2 + to_one[1] + to_zero[1])
    square = quotient * quotient
    if square.dtype == tl.float64:
        logarithm = tl.log2((1 + to_one[1]) / (1 + to_zero[1]))
    else:
        # A polynomial for 2 artanh(quotient) with |quotient| ≤ 1/3, interpolated at Chebyshev nodes, with an error of
        # 4e-9. It takes a third of the instructions of a logarithm.
        series = 0.20012298 + (0.13982579 + 0.14078889 * square) * square
        series = 1 + (0.33333161 + series * square) * square
        logarithm = (2 * LOG2_E * quotient) * series
    return to_one[0] - to_zero[0] + logarithm


@triton.jit
def _probabilities(log_odds):
    """The probabilities of 1 and of 0, with equal relative precision."""
    small = tl.exp2(-tl.abs(log_odds))
    likely = 1 / (1 + small)
    unlikely = small * likely
    return tl.where(log_odds > 0, likely, unlikely), tl.where(log_odds > 0, unlikely, likely)


# Tiles and tables


@triton.jit
def _has_left_neighbour(position, length):
    # The tensor stands first in comparisons: in the interpreter positions are constants, which cannot stand first.
    return (length > position) & (length > length - position)


@triton.jit
def _halves(tile):
    HALF: tl.constexpr = tile.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(tile, [tile.shape[0], 2, HALF]), [0, 2, 1]))


@triton.jit
def _joined(early, late):
    WIDTH: tl.constexpr = 2 * early.shape[1]
    return tl.reshape(tl.permute(tl.join(early, late), [0, 2, 1]), [early.shape[0], WIDTH])


@triton.jit
def _chains_of_program(lengths, chains, n, CHAINS: tl.constexpr):
    """Indices of the chains, whether they exist, their lengths, each ``[chains, 1]``, and the largest length."""
    rows = tl.program_id(0).to(tl.int64) * CHAINS + tl.arange(0, CHAINS)[:, None]
    real = rows < chains
    # The host does not check lengths on a device, so they are clamped here.
    length = tl.minimum(tl.maximum(tl.load(lengths + rows, mask=real, other=0), 0), n).to(tl.int32)
    return rows, real, length, tl.max(length)


@triton.jit
def _load_tile(pointers, stride, start, length, TILE: tl.constexpr):
    position = tl.arange(0, TILE)[None, :] + start
    return tl.load(pointers + position.to(tl.int64) * stride, mask=position < length, other=0.0)


@triton.jit
def _load_scores(pointers, start, length, TILE: tl.constexpr):
    return _binary(_load_tile(pointers, 1, start, length, TILE))


@triton.jit
def _store_tile(pointers, start, end, values, TILE: tl.constexpr):
    position = tl.arange(0, TILE)[None, :] + start
    tl.store(pointers + position, values, mask=position < end)


@triton.jit
def _store_zeros(pointers, tile, n, end, CHAINS: tl.constexpr, TILE: tl.constexpr):
    """Store zeros from tile number ``tile`` on, where all positions are padding."""
    zeros = tl.zeros([CHAINS, TILE], pointers.dtype.element_ty)
    for start in range(tile * TILE, n, TILE):
        _store_tile(pointers, start, end, zeros, TILE)


@triton.jit
def _edge_table(tables, table, edge, exists, PER_EDGE: tl.constexpr):
    """The table of an edge; zeros if there is no edge, which leaves the scores of both states as they are."""
    if PER_EDGE:
        return _load_table(tables, edge, exists)
    else:
        return (
            tl.where(exists, table[0], 0.0),
            tl.where(exists, table[1], 0.0),
            tl.where(exists, table[2], 0.0),
            tl.where(exists, table[3], 0.0),
        )


@triton.jit
def _load_table(tables, edge, exists):
    """Scores of the pairs of states 00, 01, 10 and 11."""
    pointers = tables + edge * 4
    return (
        _binary(tl.load(pointers, mask=exists, other=0.0)),
        _binary(tl.load(pointers + 1, mask=exists, other=0.0)),
        _binary(tl.load(pointers + 2, mask=exists, other=0.0)),
        _binary(tl.load(pointers + 3, mask=exists, other=0.0)),
    )


@triton.jit
def _store_table(pointers, edge, mask, table):
    for pair in tl.static_range(4):
        tl.store(pointers + edge * 4 + pair, table[pair], mask=mask)


@triton.jit
def _binary(scores):
    """Scores in units of log 2, so that an exponential is one instruction, with −inf replaced."""
    scores *= LOG2_E
    return tl.where(scores < FORBIDDEN, FORBIDDEN, scores)


def _configurations():
    tensors = ["unary", "tables", "log_partition", "marginals", "entering", "grad_log_partition", "grad_marginals"]
    tensors += ["grad_unary", "grad_tables"]
    for kernel, tile in ((forward_kernel, FORWARD_TILE), (backward_kernel, BACKWARD_TILE)):
        constants = {"CHAINS": CHAINS, "TILE": tile}
        if "column_stride" in kernel.arg_names:
            # Triton treats a stride of 1 as a constant.
            constants["column_stride"] = 1
        arguments = {name: "i32" for name in kernel.arg_names if name not in constants and name != "PER_EDGE"}
        arguments.update({name: "*fp32" for name in tensors if name in arguments}, lengths="*i64")
        for per_edge in (False, True):
            yield kernel, arguments, dict(constants, PER_EDGE=per_edge), NUM_WARPS


CONFIGURATIONS = tuple(_configurations())
