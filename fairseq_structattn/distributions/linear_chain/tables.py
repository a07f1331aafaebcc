"""The one form of pairwise scores that all compiled kernels take."""

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
