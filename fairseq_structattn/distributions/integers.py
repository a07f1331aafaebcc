"""Conversion of structures between integers (the state of each position, the head of each word) and indicators."""

import torch
from torch import Tensor

NOTHING = -1


def of_marks(parts: Tensor, real: Tensor) -> Tensor:
    """0 or 1 for each position; :data:`NOTHING` in padding and for other values."""
    return (parts == 1).long().masked_fill(~(real & ((parts == 0) | (parts == 1))), NOTHING)


def of_choices(parts: Tensor, dim: int) -> Tensor:
    """Index of the part that is 1 along ``dim``, which is removed; :data:`NOTHING` where no part is 1."""
    chosen = parts == 1
    if parts.shape[dim] == 0:
        return chosen.sum(dim) + NOTHING
    return chosen.to(torch.uint8).argmax(dim).masked_fill(~chosen.any(dim), NOTHING)


def one_hot(integers: Tensor, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Indicators along a new dimension ``dim`` = −1 or −2, of size ``count``; 0 for integers outside 0..count−1."""
    numbers = torch.arange(count, device=integers.device)
    return (integers.unsqueeze(dim) == (numbers if dim == -1 else numbers.unsqueeze(-1))).to(dtype)
