"""Linear chains on the GPU: expectations of binary chains by a parallel scan over the positions, at depth log n
(:mod:`.triton_scan`); those of chains of more states (:mod:`.triton_states`), best sequences and samples
(:mod:`.triton_sequences`) position by position."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..pairwise import tables_of_chains
from . import reference, triton_scan, triton_sequences, triton_states
from .potentials import Potentials, both_states, mask_states


def argmax(chain: Potentials) -> Tensor:
    """The states ``[*batch, n]`` of a best sequence, ``NO_STATE`` in padding and where none is possible."""
    return triton_sequences.argmax(*chain.states()) if _fits(chain) else reference.argmax(chain)


def sample(chain: Potentials, count: int, generator: Optional[torch.Generator] = None) -> Tensor:
    """The states ``[count, *batch, n]`` of exact samples, ``NO_STATE`` in padding and where none is possible."""
    if not _fits(chain):
        return reference.sample(chain, count, generator)
    return triton_sequences.sample(*chain.states(), count, generator=generator)


def _fits(chain: Potentials) -> bool:
    return chain.positions > 0 and chain.num_states <= triton_states.MOST_STATES


def expectations(chain: Potentials, with_edges: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, marginals in the shape of ``unary`` and, if asked, edge marginals ``[*batch, n-1, K, K]``.

    Differentiable any number of times. The reference computes chains of more than 256 states.
    """
    if not _fits(chain):
        return reference.expectations(chain, with_edges)
    if chain.num_states != 2:
        return _expectations_of_states(chain, with_edges)
    unary, pairwise, start, end = chain.unary, chain.pairwise, chain.start, chain.end
    if not chain.binary:
        # The difference of the two states' scores may be ∞ − ∞, so each score is added to all edges into its state.
        states = mask_states(unary, chain.real)
        start = states[..., 0, :] if start is None else states[..., 0, :] + start
        pairwise, unary = pairwise + states[..., 1:, None, :], torch.zeros_like(states[..., 0])
    start, end = (None if scores is None else scores.to(unary.dtype) for scores in (start, end))
    log_partition, selected, edges = binary_expectations(
        unary, pairwise.to(unary.dtype), chain.lengths, start, end, with_edges
    )
    return log_partition, selected if chain.binary else both_states(selected, log_partition, chain.real), edges


def _expectations_of_states(chain: Potentials, with_edges: bool) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    unary, pairwise, lengths = chain.states()
    batch_shape, (n, states) = lengths.shape, unary.shape[-2:]
    log_partition, marginals, edges = triton_states.expectations(
        unary.reshape(-1, n, states), tables_of_chains(pairwise, batch_shape), lengths.reshape(-1), with_edges
    )
    edges = edges.reshape(batch_shape + edges.shape[1:]) if with_edges else None
    return log_partition.reshape(batch_shape), marginals.reshape(unary.shape), edges


def binary_expectations(
    unary: Tensor,
    pairwise: Tensor,
    lengths: Tensor,
    start: Optional[Tensor] = None,
    end: Optional[Tensor] = None,
    with_edges: bool = False,
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, P(z_i = 1) ``[*batch, n]`` and, if asked for, edge marginals ``[*batch, n-1, 2, 2]``.

    Differentiable any number of times. Computed in the dtype of ``unary``, with an error relative to the largest finite
    score; bitwise deterministic. O(n) time and memory.

    Args:
        unary: ``[*batch, n]``, n > 0, float32 or float64, score of state 1; −inf is allowed, anything in padding.
        pairwise: ``[2, 2]``, or ``[…, n-1, 2, 2]`` with leading dimensions that broadcast to ``batch``, in the dtype of
            ``unary``; −inf is allowed, anything in padding.
        lengths: integers ``[*batch]``.
        start: scores of the first state, broadcastable to ``[*batch, 2]``, in the dtype of ``unary``; −inf is allowed.
            ``None`` (default): 0.
        end: scores of the last real state, likewise.
    """
    batch_shape, n = unary.shape[:-1], unary.shape[-1]
    tables, ends = tables_of_chains(pairwise, batch_shape), _ends(start, end, batch_shape)
    log_partition, marginals, edges = triton_scan.scan_expectations(
        unary.reshape(-1, n), tables, ends, lengths.reshape(-1), with_edges
    )
    edges = edges if edges is None else edges.reshape(batch_shape + (n - 1, 2, 2))
    return log_partition.reshape(batch_shape), marginals.reshape(unary.shape), edges


def _ends(start: Optional[Tensor], end: Optional[Tensor], batch_shape: torch.Size) -> Optional[Tensor]:
    """Scores of both ends, concatenated: ``[chains, 4]``, or ``[1, 4]`` if all chains share them."""
    given = [scores for scores in (start, end) if scores is not None]
    if not given:
        return None
    nothing = given[0].new_zeros(2)
    both = [nothing if scores is None else scores for scores in (start, end)]
    if all(scores.numel() == 2 for scores in both):
        return torch.cat([scores.reshape(1, 2) for scores in both], -1)
    return torch.cat([scores.expand(batch_shape + (2,)) for scores in both], -1).reshape(-1, 4)


CONFIGURATIONS = tuple(
    one for module in (triton_scan, triton_states, triton_sequences) for one in module.CONFIGURATIONS
)
