"""Right padding, which distributions need, for batches that are padded anywhere."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor


class RightPadding(NamedTuple):
    """How the sentences of a batch become right-padded.

    Attributes:
        lengths: number of positions that are not padding, ``[batch]``; None: no sentence is padded
        places: where each position of the right-padded sentence comes from, ``[batch, length]``, padding last; None:
            the sentences are right-padded already
        back: the inverse permutations ``[batch, length]``, or None
    """

    lengths: Optional[Tensor] = None
    places: Optional[Tensor] = None
    back: Optional[Tensor] = None

    @classmethod
    def of(cls, mask: Optional[Tensor]) -> "RightPadding":
        """The right padding of sentences with this mask of padding, ``[batch, length]``; None: no padding.

        Example:
            >>> padding = RightPadding.of(torch.tensor([[True, True, False], [False, False, True]]))
            >>> padding.lengths
            tensor([1, 2])
            >>> padding.pack(torch.tensor([[0, 0, 7], [8, 9, 0]]), -1)
            tensor([[7, 0, 0],
                    [8, 9, 0]])
        """
        if mask is None:
            return cls()
        mask = mask.to(torch.bool)
        lengths = (~mask).sum(1)
        # Reading the mask of another device would wait for it.
        if mask.device.type == "cpu" and not (mask[:, :-1] & ~mask[:, 1:]).any():
            return cls(lengths)
        places = mask.to(torch.int8).argsort(dim=1, stable=True)
        return cls(lengths, places, places.argsort(dim=1))

    def pack(self, columns: Tensor, dim: int) -> Tensor:
        """`columns` ``[batch, ...]`` right-padded along `dim`, a negative number."""
        return _permuted(columns, self.places, dim)

    def unpack(self, columns: Tensor, dim: int) -> Tensor:
        """The inverse of :meth:`pack`."""
        return _permuted(columns, self.back, dim)


def _permuted(columns: Tensor, places: Optional[Tensor], dim: int) -> Tensor:
    if places is None:
        return columns
    shape = [1] * columns.dim()
    shape[0], shape[dim] = places.shape
    return columns.gather(dim, places.view(shape).expand_as(columns))
