"""Binary linear chain in Triton, by scans along the positions, with a backward pass in closed form.

Loaded by :mod:`.cuda`. The step from one position to the next is a 2×2 matrix of weights, and messages are products of
such matrices with a vector. A program computes a chain, a lane two positions, and an associative scan multiplies the
matrices: its depth grows with the logarithm of the number of positions. (Hassan, Särkkä & García-Fernández, IEEE
Transactions on Signal Processing 2021.)

Sums and products of positive numbers have no cancellation, and each matrix entry has an exponent (``unit``) of its own
(:mod:`..kernels.triton_scaled`). So scores may have any size, and the error of a probability does not depend on it. A
message is the ratio of the mass of state 1 to that of state 0, also with an exponent. It is 0 if state 1 is impossible,
and its exponent is +∞ if state 0 is impossible.

The gradient is the product of the covariance of the parts with the upstream gradient g. It is computed from ḟ and ḃ,
the derivatives, in direction g, of the logarithms of the messages from the left (with the score of i) and from the
right (without it). With β_b = P(z_{i-1} = 1 | z_i = b), α_a = P(z_{i+1} = 1 | z_i = a) and G the part of g for edges:

    ḟ_i = g_i + (β_1 − β_0) ḟ_{i-1} + β_1 G_11 + (1 − β_1) G_01 − β_0 G_10 − (1 − β_0) G_00,
    ḃ_i = (α_1 − α_0) (g_{i+1} + ḃ_{i+1}) + α_1 G_11 + (1 − α_1) G_10 − α_0 G_01 − (1 − α_0) G_00,

Both are scans of affine maps with factors between −1 and 1. (Expectation semiring: Li & Eisner, EMNLP 2009.)
"""

from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.triton_launch import on_device_of
from ..kernels.triton_scaled import add_product, normalised, power_of_two, scaled_exp, scaled_log
from ..operations import Operation
from ..pairwise import edge_tables
from . import reference
from .potentials import without_padding

# Positions of a tile and warps of a program, with two positions to a lane. The first pair that holds the whole chain is
# used, or else several tiles of the last. (With one position to a lane, ptxas spills registers to run more programs.)
TILES = ((64, 1), (128, 2), (256, 4))


class ScanExpectations(Operation):
    """unary ``[chains, n]``, tables ``[chains or 1, n-1 or 1, 2, 2]``, ends ``[chains or 1, 4]`` (scores of the first
    state and of the last, or ``None``), lengths ``[chains]`` → log Z, marginals, and edge marginals ``[chains, n-1, 2,
    2]`` or ``None``."""

    name = "binary_chain_by_scans"
    arguments = "Tensor unary, Tensor tables, Tensor? ends, Tensor lengths, bool with_edges"
    potentials, results, outputs, kept = 3, 3, 4, (0, 3)
    wide = False

    def forward(self, unary: Tensor, tables: Tensor, ends: Optional[Tensor], lengths: Tensor, with_edges: bool):
        unary, tables, lengths = unary.contiguous(), tables.contiguous(), lengths.contiguous()
        ends = None if ends is None else ends.contiguous()
        chains, n = unary.shape
        log_partition, marginals = unary.new_empty(chains), torch.empty_like(unary)
        edges = unary.new_empty(chains, n - 1, 2, 2) if with_edges else None
        # Messages (ratios of masses) from the left and from the right, each with its exponent.
        messages = unary.new_empty(4, chains, n)
        _launch(
            forward_kernel, unary, tables, ends, lengths, log_partition, marginals, messages, _or(edges, unary),
            with_edges=int(with_edges),
        )  # fmt: skip
        return log_partition, marginals, edges, messages

    def gradient(self, inputs, outputs, upstream):
        unary, tables, ends, lengths, _ = inputs
        unary, tables, lengths = unary.contiguous(), tables.contiguous(), lengths.contiguous()
        ends = None if ends is None else ends.contiguous()
        (log_partition, _, _, messages), (grad_log_partition, grad_marginals, grad_edges) = outputs, upstream
        chains, n = unary.shape
        # An expanded number takes no memory, and no time to read.
        nothing = unary.new_zeros(())
        grad_log_partition = nothing.expand(chains) if grad_log_partition is None else grad_log_partition
        grad_marginals = nothing.expand(chains, n) if grad_marginals is None else grad_marginals
        grad_unary, grad_tables = torch.empty_like(unary), tables.new_empty(chains, *tables.shape[1:])
        grad_ends = unary if ends is None else unary.new_empty(chains, 4)
        _launch(
            backward_kernel, unary, tables, ends, lengths, log_partition, messages, grad_log_partition, grad_marginals,
            _or(grad_edges, unary).contiguous(), grad_unary, grad_tables, grad_ends,
            torch.empty_like(unary), grad_log_partition.stride(0), *grad_marginals.stride(), grad_tables.stride(0),
            with_edges=int(grad_edges is not None),
        )  # fmt: skip
        grad_ends = None if ends is None else grad_ends.sum_to_size(ends.shape)
        return grad_unary, grad_tables.sum_to_size(tables.shape), grad_ends

    def shapes(self, unary, tables, ends, lengths, with_edges):
        chains, n = unary.shape
        edges = unary.new_empty((chains, n - 1, 2, 2) if with_edges else 0)
        return unary.new_empty(chains), unary.new_empty(chains, n), edges, unary.new_empty(4, chains, n)

    def parts(self, unary, tables, ends):
        return unary, edge_tables(tables, unary.shape), None if ends is None else ends.expand(len(unary), 4)

    def log_partition(self, unary, edges, ends, lengths, with_edges):
        states = torch.stack((torch.zeros_like(unary), unary), -1)
        if ends is not None:
            position = torch.arange(unary.shape[1], device=unary.device)
            last = (position == lengths.unsqueeze(-1) - 1).unsqueeze(-1)
            states = states + ends[:, None, :2].masked_fill((position != 0).unsqueeze(-1), 0)
            states = states + ends[:, None, 2:].masked_fill(~last, 0)
        return reference.total(*without_padding(states, edges, lengths), lengths)

    def all_results(self, *inputs):
        return ()


scan_expectations = ScanExpectations()


def _launch(
    kernel: triton.JITFunction, unary: Tensor, tables: Tensor, ends: Optional[Tensor], *others, **flags
) -> None:
    """Run a kernel with a program for each chain. Tensors that the flags declare absent are placeholders, not read."""
    chains, n = unary.shape
    if chains == 0:
        return
    tile, num_warps = next((choice for choice in TILES if n <= choice[0]), TILES[-1])
    strides = _chain_stride(tables), 0 if tables.shape[1] == 1 else 4, _chain_stride(ends)
    with on_device_of(unary):
        kernel[(chains,)](
            unary, tables, _or(ends, unary), *others, chains, n, *strides, has_ends=int(ends is not None), **flags,
            TILE=tile, num_warps=num_warps,
        )  # fmt: skip


def _or(tensor: Optional[Tensor], placeholder: Tensor) -> Tensor:
    return placeholder if tensor is None else tensor


def _chain_stride(tensor: Optional[Tensor]) -> int:
    return tensor.stride(0) if tensor is not None and tensor.shape[0] > 1 else 0


# Kernels


@triton.jit(do_not_specialize=["chains", "n", "table_stride", "edge_stride", "ends_stride", "has_ends", "with_edges"])
def forward_kernel(
    unary, tables, ends, lengths, log_partition, marginals, messages, edges,
    chains, n, table_stride, edge_stride, ends_stride, has_ends, with_edges, TILE: tl.constexpr,
):  # fmt: skip
    """Fill ``log_partition``, ``marginals``, ``messages`` and, with ``with_edges``, ``edges``."""
    chain = tl.program_id(0).to(tl.int64)
    length = _length_of(lengths, chain, n)
    size = chains.to(tl.int64) * n
    unary, marginals, messages = unary + chain * n, marginals + chain * n, messages + chain * n
    tables, edges = tables + chain * table_stride, edges + chain * 4 * (n - 1)
    start_zero, start_one = _load_end(ends + chain * ends_stride, has_ends)
    end_zero, end_one = _load_end(ends + chain * ends_stride + 2, has_ends)
    lanes = tl.arange(0, TILE)
    tiles = tl.cdiv(length, TILE)
    value, unit = _surely_zero(unary)
    total = tl.zeros_like(value)
    for tile in range(tiles):
        position = lanes + tile * TILE
        real, first = position < length, position == 0
        w00, w01, w10, w11 = _load_table(tables, edge_stride, position - 1, real & ~first, float("-inf"))
        w00, w01 = tl.where(first, start_zero, w00), tl.where(first, start_one, w01)
        score = tl.load(unary + position, mask=real, other=0.0)
        ratio, ratio_unit, whole, whole_unit = _scan(real, w00, w01, w10, w11, score, False, value, unit)
        _store_message(messages, size, position, real, ratio, ratio_unit)
        value, unit = _last(ratio, lanes, TILE), _last(ratio_unit, lanes, TILE)
        total += _last(whole_unit, lanes, TILE) + tl.log2(_last(whole, lanes, TILE))
    log_z = tl.where(length == 0, 0.0, _log_partition(value, unit, total, end_zero, end_one))
    tl.store(log_partition + chain + tl.arange(0, 1), log_z)
    possible = log_z != float("-inf")
    # The code below reads messages that other lanes have stored.
    tl.debug_barrier()
    value, unit = _surely_zero(unary)
    for tile in range(tiles):
        # From the end of the chain: lanes count backwards.
        position = length - 1 - tile * TILE - lanes
        real, last = position >= 0, position == length - 1
        w00, w01, w10, w11 = _load_table(tables, edge_stride, position, real & ~last, float("-inf"))
        w00, w10 = tl.where(last, end_zero, w00), tl.where(last, end_one, w10)
        score = tl.load(unary + position + 1, mask=real & ~last, other=0.0)
        ratio, ratio_unit, _, _ = _scan(real, w00, w10, w01, w11, score, True, value, unit)
        _store_message(messages + 2 * size, size, position, real, ratio, ratio_unit)
        value, unit = _last(ratio, lanes, TILE), _last(ratio_unit, lanes, TILE)
        left, left_unit = _load_message(messages, size, position, real)
        zero, one = _shares_of_states(left * ratio, left_unit + ratio_unit)
        zero, one = tl.where(possible, zero, 0.0), tl.where(possible, one, 0.0)
        tl.store(marginals + position, one, mask=real)
        if with_edges != 0:
            has_left = real & (position > 0)
            m00, m01, m10, m11 = _left_edge(messages, size, tables, edge_stride, position, has_left, zero, one)
            _store_table(edges, position - 1, has_left, m00, m01, m10, m11)
    for start in range(length, n, TILE):
        position = lanes + start
        nothing = tl.zeros([TILE], unary.dtype.element_ty)
        tl.store(marginals + position, nothing, mask=position < n)
        if with_edges != 0:
            padding = (position > 0) & (position < n)
            _store_table(edges, position - 1, padding, nothing, nothing, nothing, nothing)


@triton.jit(
    do_not_specialize=[
        "log_partition_stride", "row_stride", "column_stride", "grad_tables_stride",
        "chains", "n", "table_stride", "edge_stride", "ends_stride", "has_ends", "with_edges",
    ]
)  # fmt: skip
def backward_kernel(
    unary, tables, ends, lengths, log_partition, messages, grad_log_partition, grad_marginals, grad_edges,
    grad_unary, grad_tables, grad_ends, tangents, log_partition_stride, row_stride, column_stride, grad_tables_stride,
    chains, n, table_stride, edge_stride, ends_stride, has_ends, with_edges, TILE: tl.constexpr,
):  # fmt: skip
    """Fill ``grad_unary``, ``grad_tables`` and, with ``has_ends``, ``grad_ends``. ``tangents`` ``[chains, n]`` is
    scratch for derivatives of the messages from the left."""
    chain = tl.program_id(0).to(tl.int64)
    length = _length_of(lengths, chain, n)
    # Impossible chains are not read; their gradients are zero.
    length = tl.where(tl.load(log_partition + chain) == float("-inf"), 0, length)
    size = chains.to(tl.int64) * n
    unary, messages, grad_unary = unary + chain * n, messages + chain * n, grad_unary + chain * n
    tables, grad_tables, tangents = (
        tables + chain * table_stride,
        grad_tables + chain * grad_tables_stride,
        tangents + chain * n,
    )
    upstream, grad_edges, grad_ends = (
        grad_marginals + chain * row_stride,
        grad_edges + chain * 4 * (n - 1),
        grad_ends + chain * 4,
    )
    only = tl.arange(0, 1)
    scale = tl.load(grad_log_partition + chain * log_partition_stride + only, mask=only < length, other=0.0)
    lanes = tl.arange(0, TILE)
    has_upstream = lanes < TILE * with_edges
    tiles = tl.cdiv(length, TILE)
    tangent = tl.zeros_like(scale)
    for tile in range(tiles):
        position = lanes + tile * TILE
        real, has_left = position < length, (position < length) & (position > 0)
        zero_zero, zero_one, one_zero, one_one = _state_before(messages, size, tables, edge_stride, position, has_left)
        g00, g01, g10, g11 = _load_table(grad_edges, 4, position - 1, has_left & has_upstream, 0.0)
        direction = _load_upstream(upstream, column_stride, position, real)
        direction += (one_one * g11 + zero_one * g01) - (one_zero * g10 + zero_zero * g00)
        derivative = _scan_affine(one_one - one_zero, direction, tangent)
        tl.store(tangents + position, derivative, mask=real)
        tangent = _last(derivative, lanes, TILE)
    if has_ends != 0:
        tl.store(grad_ends + tl.arange(0, 4), tl.zeros([4], unary.dtype.element_ty))
    # The code below reads derivatives that other lanes have stored, and overwrites these zeros.
    tl.debug_barrier()
    tangent = tl.zeros_like(scale)
    sum00, sum01, sum10, sum11 = tangent, tangent, tangent, tangent
    for tile in range(tiles):
        position = length - 1 - tile * TILE - lanes
        real, last, has_left = position >= 0, position == length - 1, position > 0
        zero_zero, zero_one, one_zero, one_one = _state_after(
            unary, messages + 2 * size, size, tables, edge_stride, position, real & ~last
        )
        g00, g01, g10, g11 = _load_table(grad_edges, 4, position, real & ~last & has_upstream, 0.0)
        factor = one_one - zero_one
        term = factor * _load_upstream(upstream, column_stride, position + 1, real & ~last)
        term += (one_one * g11 + one_zero * g10) - (zero_one * g01 + zero_zero * g00)
        arrived = _scan_affine(factor, term, tangent)
        tangent = _last(arrived, lanes, TILE)

        left, left_unit = _load_message(messages, size, position, real)
        right, right_unit = _load_message(messages + 2 * size, size, position, real)
        zero, one = _shares_of_states(left * right, left_unit + right_unit)
        derivative = tl.load(tangents + position, mask=real, other=0.0) + arrived
        grad_zero, grad_one = zero * (scale - one * derivative), one * (scale + zero * derivative)
        tl.store(grad_unary + position, grad_one, mask=real)
        if has_ends != 0:
            _store_end(grad_ends, real & (position == 0), grad_zero, grad_one)
            _store_end(grad_ends + 2, last, grad_zero, grad_one)

        # The derivative of each pair of states on the left edge less its expectation.
        m00, m01, m10, m11 = _left_edge(messages, size, tables, edge_stride, position, has_left, zero, one)
        g00, g01, g10, g11 = _load_table(grad_edges, 4, position - 1, has_left & has_upstream, 0.0)
        before = tl.load(tangents + position - 1, mask=has_left, other=0.0)
        here = arrived + _load_upstream(upstream, column_stride, position, real)
        g01, g10, g11 = g01 + here, g10 + before, g11 + (before + here)
        excess = scale - (m00 * g00 + m01 * g01 + m10 * g10 + m11 * g11)
        m00, m01, m10, m11 = m00 * (excess + g00), m01 * (excess + g01), m10 * (excess + g10), m11 * (excess + g11)
        if edge_stride != 0:
            _store_table(grad_tables, position - 1, has_left, m00, m01, m10, m11)
        else:
            sum00, sum01 = sum00 + tl.sum(m00, 0, keep_dims=True), sum01 + tl.sum(m01, 0, keep_dims=True)
            sum10, sum11 = sum10 + tl.sum(m10, 0, keep_dims=True), sum11 + tl.sum(m11, 0, keep_dims=True)
    for start in range(length, n, TILE):
        position = lanes + start
        nothing = tl.zeros([TILE], unary.dtype.element_ty)
        tl.store(grad_unary + position, nothing, mask=position < n)
        if edge_stride != 0:
            padding = (position > 0) & (position < n)
            _store_table(grad_tables, position - 1, padding, nothing, nothing, nothing, nothing)
    if edge_stride == 0:
        _store_table(grad_tables, only, only == 0, sum00, sum01, sum10, sum11)


# Scans


@triton.jit
def _scan(real, w00, w01, w10, w11, score, OF_SOURCE: tl.constexpr, value, unit):
    """Messages at all positions and their normalisers, with exponents, given the message that enters the tile.

    ``w`` are the scores of pairs of states for the steps into the positions. ``score`` is that of state 1 at the start
    (with ``OF_SOURCE``) or the end of a step. Steps in padding leave the message unchanged.
    """
    v00, u00 = scaled_exp(tl.where(real, w00, 0.0))
    v01, u01 = scaled_exp(w01)
    v10, u10 = scaled_exp(w10)
    v11, u11 = scaled_exp(tl.where(real, w11, 0.0))
    weight, weight_unit = scaled_exp(score)
    if OF_SOURCE:
        v10, u10 = v10 * weight, u10 + weight_unit
    else:
        v01, u01 = v01 * weight, u01 + weight_unit
    v11, u11 = v11 * weight, u11 + weight_unit
    v00, u00, v01, u01, v10, u10, v11, u11, common = tl.associative_scan(
        (v00, u00, v01, u01, v10, u10, v11, u11, tl.zeros_like(w00)), 0, _product
    )
    a, a_unit, b, b_unit = _masses(value, unit)
    zero, zero_unit = _sum_of_products(a, a_unit, v00, u00, b, b_unit, v10, u10)
    one, one_unit = _sum_of_products(a, a_unit, v01, u01, b, b_unit, v11, u11)
    surely_one = zero == 0
    divisor = tl.where(surely_one, 1.0, zero)
    ratio_unit = tl.where(surely_one, float("inf"), one_unit - zero_unit)
    return one / divisor, ratio_unit, divisor, common + tl.maximum(zero_unit, one_unit)


@triton.jit
def _product(
    a00, p00, a01, p01, a10, p10, a11, p11, a_common, b00, q00, b01, q01, b10, q10, b11, q11, b_common
):  # fmt: skip
    """The product of two matrices of scaled numbers, with the largest exponent factored out."""
    v00, u00 = _sum_of_products(a00, p00, b00, q00, a01, p01, b10, q10)
    v01, u01 = _sum_of_products(a00, p00, b01, q01, a01, p01, b11, q11)
    v10, u10 = _sum_of_products(a10, p10, b00, q00, a11, p11, b10, q10)
    v11, u11 = _sum_of_products(a10, p10, b01, q01, a11, p11, b11, q11)
    common = tl.maximum(tl.maximum(u00, u01), tl.maximum(u10, u11))
    shift = tl.where(common == float("-inf"), 0.0, common)
    return v00, u00 - shift, v01, u01 - shift, v10, u10 - shift, v11, u11 - shift, a_common + b_common + common


@triton.jit
def _sum_of_products(a, a_unit, b, b_unit, c, c_unit, d, d_unit):
    total, unit = add_product(a * b, a_unit + b_unit, c, c_unit, d, d_unit)
    return normalised(total, unit)


@triton.jit
def _scan_affine(factor, term, value):
    """x_i = factor_i · x_{i-1} + term_i with ``value`` as the initial x."""
    factor, term = tl.associative_scan((factor, term), 0, _composition)
    return factor * value + term


@triton.jit
def _composition(a_factor, a_term, b_factor, b_term):
    return a_factor * b_factor, a_term * b_factor + b_term


@triton.jit
def _last(values, lanes, TILE: tl.constexpr):
    return tl.sum(tl.where(lanes == TILE - 1, values, 0.0), 0, keep_dims=True)


# Messages, and probabilities made of them


@triton.jit
def _surely_zero(unary):
    """The message that enters a chain from either end. Scores of an end are those of an edge from state 0."""
    value = tl.zeros([1], unary.dtype.element_ty)
    return value, value + float("-inf")


@triton.jit
def _masses(value, unit):
    """A message as masses of the states 0 and 1, the larger of which has the exponent 0."""
    return tl.where(unit == float("inf"), 0.0, 1.0), -tl.maximum(unit, 0.0), value, tl.minimum(unit, 0.0)


@triton.jit
def _log_partition(value, unit, total, end_zero, end_one):
    zero, zero_unit, one, one_unit = _masses(value, unit)
    to_zero, to_zero_unit = scaled_exp(end_zero)
    to_one, to_one_unit = scaled_exp(end_one)
    mass, mass_unit = _sum_of_products(zero, zero_unit, to_zero, to_zero_unit, one, one_unit, to_one, to_one_unit)
    return scaled_log(mass, mass_unit + total)


@triton.jit
def _shares_of_states(value, unit):
    """P(z_i = 0) and P(z_i = 1), given their ratio."""
    zero, zero_unit, one, one_unit = _masses(value, unit)
    return _shares(zero, zero_unit, one, one_unit)


@triton.jit
def _shares(a, a_unit, b, b_unit):
    """The shares of two masses in their sum, with equal relative precision; zeros if both masses are 0."""
    common = tl.maximum(a_unit, b_unit)
    a, b = a * power_of_two(a_unit - common), b * power_of_two(b_unit - common)
    larger, smaller = tl.where(a > b, a, b), tl.where(a > b, b, a)
    # If the smaller mass is 0, the shares are exactly 1 and 0.
    quotient = smaller / tl.where(larger == 0, 1.0, larger)
    likely = tl.where(larger == 0, 0.0, 1 / (1 + quotient))
    unlikely = quotient * likely
    return tl.where(a > b, likely, unlikely), tl.where(a > b, unlikely, likely)


@triton.jit
def _state_before(messages, size, tables, edge_stride, position, has_left):
    """P(z_{i-1} = a | z_i = b), in the order 00, 01, 10, 11 of a and b; zeros where there is no edge on the left."""
    value, unit = _load_message(messages, size, position - 1, has_left)
    zero, zero_unit, one, one_unit = _masses(value, unit)
    w00, w01, w10, w11 = _load_table(tables, edge_stride, position - 1, has_left, float("-inf"))
    zero_zero, one_zero = _weighted_shares(zero, zero_unit, w00, one, one_unit, w10)
    zero_one, one_one = _weighted_shares(zero, zero_unit, w01, one, one_unit, w11)
    return zero_zero, zero_one, one_zero, one_one


@triton.jit
def _state_after(unary, messages, size, tables, edge_stride, position, has_right):
    """P(z_{i+1} = b | z_i = a), in the order 00, 01, 10, 11 of a and b; zeros where there is no edge on the right."""
    value, unit = _load_message(messages, size, position + 1, has_right)
    score, score_unit = scaled_exp(tl.load(unary + position + 1, mask=has_right, other=0.0))
    zero, zero_unit, one, one_unit = _masses(value * score, unit + score_unit)
    w00, w01, w10, w11 = _load_table(tables, edge_stride, position, has_right, float("-inf"))
    zero_zero, zero_one = _weighted_shares(zero, zero_unit, w00, one, one_unit, w01)
    one_zero, one_one = _weighted_shares(zero, zero_unit, w10, one, one_unit, w11)
    return zero_zero, zero_one, one_zero, one_one


@triton.jit
def _weighted_shares(zero, zero_unit, zero_score, one, one_unit, one_score):
    zero_weight, zero_weight_unit = scaled_exp(zero_score)
    one_weight, one_weight_unit = scaled_exp(one_score)
    return _shares(zero * zero_weight, zero_unit + zero_weight_unit, one * one_weight, one_unit + one_weight_unit)


@triton.jit
def _left_edge(messages, size, tables, edge_stride, position, has_left, zero, one):
    """P(z_{i-1} = a, z_i = b), in the order 00, 01, 10, 11, from the probabilities of both states at i."""
    zero_zero, zero_one, one_zero, one_one = _state_before(messages, size, tables, edge_stride, position, has_left)
    return zero_zero * zero, zero_one * one, one_zero * zero, one_one * one


# Memory


@triton.jit
def _length_of(lengths, chain, n):
    # The host does not check lengths on a device, so they are clamped here.
    return tl.minimum(tl.maximum(tl.load(lengths + chain), 0), n).to(tl.int32)


@triton.jit
def _load_end(pointers, has_ends):
    """Scores of both states at an end, each ``[1]``."""
    only = tl.arange(0, 1)
    given = only < has_ends
    return tl.load(pointers + only, mask=given, other=0.0), tl.load(pointers + only + 1, mask=given, other=0.0)


@triton.jit
def _store_end(pointers, mask, zero, one):
    nowhere = tl.zeros_like(mask).to(tl.int32)
    tl.store(pointers + nowhere, zero, mask=mask)
    tl.store(pointers + nowhere + 1, one, mask=mask)


@triton.jit
def _load_upstream(pointers, stride, position, mask):
    return tl.load(pointers + position.to(tl.int64) * stride, mask=mask, other=0.0)


@triton.jit
def _load_message(messages, size, position, mask):
    value = tl.load(messages + position, mask=mask, other=0.0)
    return value, tl.load(messages + size + position, mask=mask, other=float("-inf"))


@triton.jit
def _store_message(messages, size, position, mask, value, unit):
    tl.store(messages + position, value, mask=mask)
    tl.store(messages + size + position, unit, mask=mask)


@triton.jit
def _load_table(tables, stride, edge, mask, other):
    """The entries of a table for the pairs of states 00, 01, 10 and 11."""
    pointers = tables + edge * stride
    return (
        tl.load(pointers, mask=mask, other=other),
        tl.load(pointers + 1, mask=mask, other=other),
        tl.load(pointers + 2, mask=mask, other=other),
        tl.load(pointers + 3, mask=mask, other=other),
    )


@triton.jit
def _store_table(tables, edge, mask, w00, w01, w10, w11):
    pointers = tables + edge * 4
    tl.store(pointers, w00, mask=mask)
    tl.store(pointers + 1, w01, mask=mask)
    tl.store(pointers + 2, w10, mask=mask)
    tl.store(pointers + 3, w11, mask=mask)


def _configurations():
    integers = ["chains", "n", "log_partition_stride", "row_stride", "column_stride", "grad_tables_stride"]
    integers += ["table_stride", "edge_stride", "ends_stride", "has_ends", "with_edges"]
    types = dict(dict.fromkeys(integers, "i32"), lengths="*i64")
    for kernel in (forward_kernel, backward_kernel):
        arguments = {name: types.get(name, "*fp32") for name in kernel.arg_names if name != "TILE"}
        for tile, num_warps in TILES:
            yield kernel, arguments, {"TILE": tile}, {"num_warps": num_warps}


# All kernels that the launches above compile for float32.
CONFIGURATIONS = tuple(_configurations())
