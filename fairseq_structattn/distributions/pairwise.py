"""Scores of pairs of neighbours: a table ``[K, K]``, shared by all edges, or one for each edge, ``[…, n-1, K, K]``,
whose leading dimensions broadcast to those of the batch."""

from typing import Optional, Tuple

import torch
from torch import Tensor


def check_pairwise(pairwise: Tensor, batch_shape: torch.Size, n: int, states: int) -> None:
    """ValueError if ``pairwise`` has another shape than ``[K, K]`` or ``[…, n-1, K, K]``."""
    edges = max(n - 1, 0)
    shape, table = tuple(pairwise.shape), (states, states)
    per_edge = shape[-3:] == (edges,) + table and broadcasts(shape[:-3], batch_shape)
    if shape != table and not per_edge:
        raise ValueError(
            f"pairwise has shape {shape}; it must be {table} or (…, {edges}, {states}, {states}) with leading "
            f"dimensions that broadcast to {tuple(batch_shape)}"
        )


def broadcasts(shape: Tuple[int, ...], batch_shape: torch.Size) -> bool:
    """Whether a shape broadcasts to that of the batch."""
    try:
        return torch.broadcast_shapes(shape, batch_shape) == batch_shape
    except RuntimeError:
        return False


def mask_edges(edges: Tensor, real: Optional[Tensor]) -> Tensor:
    """``edges`` ``[*batch, n-1, K, K]`` with 0 on edges that touch padding."""
    return edges if real is None else edges.masked_fill(~real[..., 1:, None, None], 0)


# For kernels, in which all leading dimensions are flattened into one


def tables_of_chains(pairwise: Tensor, batch_shape: torch.Size) -> Tensor:
    """Tables as ``[chains, edges, K, K]``; chains or edges that share a table have size 1."""
    if pairwise.dim() == 2:
        return pairwise[None, None]
    tables = pairwise.shape[-3:]
    if pairwise.shape[:-3].numel() == 1:
        return pairwise.reshape((1,) + tables)
    return pairwise.expand(batch_shape + tables).reshape((batch_shape.numel(),) + tables)


def edge_tables(tables: Tensor, shape: Tuple[int, int]) -> Tensor:
    """One table for each edge, ``[chains, n-1, K, K]``, of chains of the shape ``[chains, n]``."""
    chains, n = shape
    return tables.expand(chains, n - 1, *tables.shape[2:])
