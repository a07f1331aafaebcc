"""The one form of pairwise scores that all compiled kernels take."""

from typing import Tuple

import torch
from torch import Tensor


def tables_of_chains(pairwise: Tensor, batch_shape: torch.Size) -> Tensor:
    """Tables as ``[chains, edges, K, K]``, where either of the first two is 1 if one table serves all."""
    if pairwise.dim() == 2:
        return pairwise[None, None]
    tables = pairwise.shape[-3:]
    if pairwise.shape[:-3].numel() == 1:
        return pairwise.reshape((1,) + tables)
    return pairwise.expand(batch_shape + tables).reshape((batch_shape.numel(),) + tables)


def edge_tables(tables: Tensor, shape: Tuple[int, int]) -> Tensor:
    """Tables of chains with one for each edge, ``[chains, n-1, K, K]``, for the shape ``[chains, n]``."""
    chains, n = shape
    return tables.expand(chains, n - 1, *tables.shape[2:])


def without_padding(unary: Tensor, edges: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
    """Scores of states ``[chains, n, K]`` and of edges ``[chains, n-1, K, K]`` with 0 in padding."""
    padding = torch.arange(unary.shape[1], device=unary.device) >= lengths.unsqueeze(-1)
    edges = edges.masked_fill(padding[:, 1:, None, None], 0)
    return unary.masked_fill(padding.unsqueeze(-1), 0), edges
