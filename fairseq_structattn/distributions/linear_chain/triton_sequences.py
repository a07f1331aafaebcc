"""The best state sequence and samples of chains on the GPU, position by position, in Triton.

A program computes a chain: a message has a lane for each state, and some rows of a table of edges are a tile. The best
sequence is that of Viterbi (IEEE Transactions on Information Theory 1967), whose pointers are followed back from the
end. Samples are exact: messages are filtered forward, and states are drawn backward given the state to their right
(Scott, Journal of the American Statistical Association 2002, section 2.1), with a lane for each sample. Scores are
logarithms, of any size; −inf forbids a state or a pair.
"""

from typing import Dict, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.triton_draw import drawn
from ..kernels.triton_launch import next_power_of_two, on_device_of
from ..operations import uniform, without_gradient
from ..pairwise import tables_of_chains
from .potentials import NO_STATE

# Beyond so many states rows of a table do not fit in registers.
MOST_STATES = 256
ROWS = 32
# Samples that one program draws.
DRAWS = 32
NONE = tl.constexpr(NO_STATE)


@without_gradient(
    "chain_argmax_on_gpu", "Tensor unary, Tensor pairwise, Tensor lengths", lambda unary, *_: unary.shape[:-1]
)
def argmax(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """The states ``[*batch, n]`` of a best sequence, :data:`NO_STATE` in padding and where none is possible.

    Args:
        unary: scores of states ``[*batch, n, K]``, 0 < n, K ≤ :data:`MOST_STATES`.
        pairwise: ``[K, K]`` or ``[…, n-1, K, K]``, in the dtype of `unary`.
        lengths: integers ``[*batch]``.
    """
    states = torch.full(unary.shape[:-1], NO_STATE, device=unary.device)
    pointers = torch.empty(unary.shape, dtype=torch.int32, device=unary.device)
    messages = torch.empty_like(unary, memory_format=torch.contiguous_format)
    _launch(viterbi, unary, pairwise, lengths, 1, messages, pointers, states, **_rows(unary))
    return states


@without_gradient(
    "chain_sample_on_gpu",
    "Tensor unary, Tensor pairwise, Tensor lengths, int count",
    lambda unary, pairwise, lengths, count: (count,) + unary.shape[:-1],
)
def sample(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, count: int, generator: Optional[torch.Generator] = None
) -> Tensor:
    """The states ``[count, *batch, n]`` of exact samples, :data:`NO_STATE` in padding and where none is possible.
    Other arguments as for :func:`argmax`."""
    shape = (count,) + unary.shape[:-1]
    states = torch.full(shape, NO_STATE, device=unary.device)
    if count > 0:
        messages, uniforms = (
            torch.empty_like(unary, memory_format=torch.contiguous_format),
            _uniform(shape, unary, generator),
        )
        _launch(filter_forward, unary, pairwise, lengths, 1, messages, **_rows(unary))
        draws = {"DRAWS": min(DRAWS, next_power_of_two(count))}
        blocks = -(-count // draws["DRAWS"])
        _launch(draw_backward, unary, pairwise, lengths, blocks, messages, uniforms, states, count, **draws)
    return states


def _uniform(shape: Tuple[int, ...], unary: Tensor, generator: Optional[torch.Generator]) -> Tensor:
    return uniform(shape, unary.device, generator, unary.dtype)


def _launch(kernel, unary: Tensor, pairwise: Tensor, lengths: Tensor, blocks: int, *others, **constants) -> None:
    """Runs a kernel with `blocks` programs for each chain."""
    *batch_shape, n, states = unary.shape
    unary, lengths = unary.contiguous(), lengths.contiguous()
    tables = tables_of_chains(pairwise, torch.Size(batch_shape)).contiguous()
    chains, width = lengths.numel(), next_power_of_two(states)
    if chains == 0:
        return
    table_stride = tables.stride(0) if tables.shape[0] > 1 else 0
    edge_stride = tables.stride(1) if tables.shape[1] > 1 else 0
    with on_device_of(unary):
        kernel[(chains, blocks)](
            unary, tables, lengths, *others, chains, n, states, table_stride, edge_stride, **constants,
            STATES=width, num_warps=_warps(width),
        )  # fmt: skip


def _rows(unary: Tensor) -> Dict[str, int]:
    """How many rows of a table are in registers at a time."""
    return {"ROWS": min(ROWS, next_power_of_two(unary.shape[-1]))}


def _warps(width: int) -> int:
    """Such that a lane has at most 16 entries of these rows."""
    return max(min(ROWS, width) * width // 512, 1)


# Kernels

_SIZES = ["chains", "n", "states", "table_stride", "edge_stride", "count"]


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride"])
def viterbi(
    unary, tables, lengths, messages, pointers, best, chains, n, states, table_stride, edge_stride,
    ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Fill ``best`` ``[chains, n]``. ``messages`` and ``pointers`` ``[chains, n, states]`` are the score of the best
    sequence up to each state, and the state before that one in it."""
    chain = tl.program_id(0).to(tl.int64)
    length = _length_of(lengths, chain, n)
    unary, tables, messages = unary + chain * n * states, tables + chain * table_stride, messages + chain * n * states
    pointers, best = pointers + chain * n * states, best + chain * n
    lanes = tl.arange(0, STATES)
    real = lanes < states
    message = tl.load(unary + lanes, mask=real & (length > 0), other=float("-inf"))
    for i in range(1, length):
        tl.store(messages + (i - 1) * states + lanes, message, mask=real)
        tl.debug_barrier()
        message = tl.full((STATES,), float("-inf"), unary.dtype.element_ty)
        pointer = tl.zeros((STATES,), tl.int32)
        for first in range(0, states, ROWS):
            scores = _scores(messages + (i - 1) * states, tables + (i - 1) * edge_stride, first, states, ROWS, STATES)
            most = tl.max(scores, 0)
            pointer = tl.where(most > message, first + tl.argmax(scores, 0), pointer)
            message = tl.maximum(message, most)
        tl.store(pointers + i * states + lanes, pointer, mask=real)
        message += tl.load(unary + i * states + lanes, mask=real, other=float("-inf"))
    state = tl.argmax(message, 0)
    # Other lanes have stored the pointers.
    tl.debug_barrier()
    if tl.max(message, 0) != float("-inf"):
        for done in range(length):
            i = length - 1 - done
            tl.store(best + i, state.to(tl.int64))
            state = tl.load(pointers + i * states + state, mask=i > 0, other=0)


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride"])
def filter_forward(
    unary, tables, lengths, messages, chains, n, states, table_stride, edge_stride,
    ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Fill ``messages`` ``[chains, n, states]``: the logarithm of the total weight of the sequences up to each state,
    but for a constant for each position."""
    chain = tl.program_id(0).to(tl.int64)
    length = _length_of(lengths, chain, n)
    unary, tables, messages = unary + chain * n * states, tables + chain * table_stride, messages + chain * n * states
    lanes = tl.arange(0, STATES)
    real = lanes < states
    message = tl.load(unary + lanes, mask=real & (length > 0), other=float("-inf"))
    for i in range(length):
        if i > 0:
            tl.debug_barrier()
            most = tl.full((STATES,), float("-inf"), unary.dtype.element_ty)
            mass = tl.zeros((STATES,), unary.dtype.element_ty)
            for first in range(0, states, ROWS):
                before, edges = messages + (i - 1) * states, tables + (i - 1) * edge_stride
                scores = _scores(before, edges, first, states, ROWS, STATES)
                larger = tl.maximum(most, tl.max(scores, 0))
                shift = _finite(larger)
                mass = mass * tl.exp(most - shift) + tl.sum(tl.exp(scores - shift[None, :]), 0)
                most = larger
            message = tl.log(mass) + _finite(most)
            message += tl.load(unary + i * states + lanes, mask=real, other=float("-inf"))
        # Only differences matter, and those of small numbers are accurate.
        message -= _finite(tl.max(message, 0))
        tl.store(messages + i * states + lanes, message, mask=real)


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride", "count"])
def draw_backward(
    unary, tables, lengths, messages, uniforms, samples, count, chains, n, states, table_stride, edge_stride,
    DRAWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Fill ``samples`` ``[count, chains, n]`` by ``uniforms`` of the same shape."""
    chain = tl.program_id(0).to(tl.int64)
    length = _length_of(lengths, chain, n)
    tables, messages = tables + chain * table_stride, messages + chain * n * states
    draw = tl.program_id(1) * DRAWS + tl.arange(0, DRAWS)
    wanted, at = draw < count, (draw.to(tl.int64) * chains + chain) * n
    lanes = tl.arange(0, STATES)[:, None]
    right = tl.zeros((DRAWS,), tl.int32)
    for done in range(length):
        i = length - 1 - done
        weight = tl.load(messages + i * states + lanes, mask=lanes < states, other=float("-inf"))
        edges = tables + i * edge_stride + lanes * states + right[None, :]
        weight = weight + tl.load(edges, mask=(lanes < states) & (done > 0), other=0.0)
        best = tl.max(weight, 0)
        weight = tl.exp(weight - _finite(best)[None, :])
        right = drawn(weight, tl.load(uniforms + at + i, mask=wanted, other=0.0), lanes, STATES)
        tl.store(samples + at + i, right.to(tl.int64), mask=wanted & (best != float("-inf")))


@triton.jit
def _scores(message, table, first, states, ROWS: tl.constexpr, STATES: tl.constexpr):
    """Scores of pairs, of some left states and all right ones, with the message to the left states."""
    left, right = first + tl.arange(0, ROWS), tl.arange(0, STATES)[None, :]
    before = tl.load(message + left, mask=left < states, other=float("-inf"))
    pairs = (left < states)[:, None] & (right < states)
    return before[:, None] + tl.load(table + left[:, None] * states + right, mask=pairs, other=float("-inf"))


@triton.jit
def _finite(score):
    return tl.where(score == float("-inf"), 0.0, score)


@triton.jit
def _length_of(lengths, chain, n):
    # The host does not check lengths on a device, so they are clamped here.
    return tl.minimum(tl.maximum(tl.load(lengths + chain), 0), n).to(tl.int32)


def _configurations():
    types = {"lengths": "*i64", "pointers": "*i32", "best": "*i64", "samples": "*i64"}
    for width in (2, MOST_STATES):
        rows = {"ROWS": min(ROWS, width)}
        for kernel, constants in ((viterbi, rows), (filter_forward, rows), (draw_backward, {"DRAWS": DRAWS})):
            names = [name for name in kernel.arg_names if not name.isupper()]
            signature = {name: types.get(name, "i32" if name in _SIZES else "*fp32") for name in names}
            yield kernel, signature, dict(constants, STATES=width), {"num_warps": _warps(width)}


CONFIGURATIONS = tuple(_configurations())
