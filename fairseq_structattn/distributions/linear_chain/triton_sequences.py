"""The best state sequence and samples of chains on the GPU, position by position, in Triton.

A program computes a chain: a message has a lane for each state, and some rows of a table of edges are a tile. The best
sequence is that of Viterbi (IEEE Transactions on Information Theory 1967), whose pointers are followed back from the
end. Samples are exact: messages are filtered forward, and states are drawn backward given the state to their right
(Scott, Journal of the American Statistical Association 2002, section 2.1), with a lane for each sample. Scores are
logarithms, of any size; −inf forbids a state or a pair.
"""

from typing import Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kernels.triton_draw import drawn
from ..kernels.triton_launch import next_power_of_two
from ..operations import uniform, without_gradient
from ..pairwise import tables_of_chains
from .potentials import NO_STATE
from .triton_states import ENTRIES, MOST_STATES, configurations, filter_forward, finite, launch, length_of, scores_after

# Most samples that one program draws.
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
    problem = _problem(unary, pairwise, lengths)
    launch(viterbi, *problem, torch.empty_like(problem[0]), pointers, states)
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
        problem = _problem(unary, pairwise, lengths)
        messages, log_partition = torch.empty_like(problem[0]), unary.new_empty(len(problem[0]))
        launch(filter_forward, *problem, log_partition, messages)
        uniforms = uniform(shape, unary.device, generator, unary.dtype)
        draws = min(DRAWS, ENTRIES // next_power_of_two(unary.shape[-1]), next_power_of_two(count))
        launch(draw_backward, *problem, messages, uniforms, states, count, blocks=-(-count // draws), DRAWS=draws)
    return states


def _problem(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """All leading dimensions flattened into one."""
    *batch_shape, n, states = unary.shape
    tables = tables_of_chains(pairwise, torch.Size(batch_shape)).contiguous()
    return unary.reshape(-1, n, states).contiguous(), tables, lengths.reshape(-1).contiguous()


# Kernels


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride"])
def viterbi(
    unary, tables, lengths, messages, pointers, best, chains, n, states, table_stride, edge_stride,
    STATES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Fill ``best`` ``[chains, n]``. ``messages`` and ``pointers`` ``[chains, n, states]`` are the score of the best
    sequence up to each state, and the state before that one in it."""
    chain = tl.program_id(0).to(tl.int64)
    length = length_of(lengths, chain, n)
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
            before, edges = messages + (i - 1) * states, tables + (i - 1) * edge_stride
            scores = scores_after(before, edges, first, states, ROWS, STATES)
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


@triton.jit(do_not_specialize=["chains", "n", "states", "table_stride", "edge_stride", "count"])
def draw_backward(
    unary, tables, lengths, messages, uniforms, samples, count, chains, n, states, table_stride, edge_stride,
    DRAWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Fill ``samples`` ``[count, chains, n]`` by ``uniforms`` of the same shape."""
    chain = tl.program_id(0).to(tl.int64)
    length = length_of(lengths, chain, n)
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
        weight = tl.exp(weight - finite(best)[None, :])
        right = drawn(weight, tl.load(uniforms + at + i, mask=wanted, other=0.0), lanes, STATES)
        tl.store(samples + at + i, right.to(tl.int64), mask=wanted & (best != float("-inf")))


CONFIGURATIONS = tuple(configurations((viterbi, {}), (draw_backward, {"DRAWS": ENTRIES // MOST_STATES})))
