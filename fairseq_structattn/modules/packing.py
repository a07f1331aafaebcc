"""Packed batches: the words of right-padded sentences without the padding, as cuDNN reads them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where each word stands in a packed batch: the first words of all sentences, the longest sentence first, then
    their second words, and so on.

    ``torch.nn.utils.rnn`` copies slice by slice, and its backward pass one target step after the other; here one
    operation packs and one unpacks, whatever the lengths.

    Attributes:
        rows: of each packed word, its place in the flat batch ``[src_len * batch]``; on the device of the words
        batch_sizes: number of sentences that have a first, a second, … word; on the host
        places: of each sentence of the batch, its place in the order of the packed batch, ``[batch]``
    """

    rows: Tensor
    batch_sizes: Tensor
    places: Tensor

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> "Packing":
        """The packing of sentences whose lengths, of at least 1, are ``[batch]`` on the host.

        Example:
            >>> packing = Packing.of(torch.tensor([1, 2]), torch.device("cpu"))
            >>> packing.pack(torch.tensor([[[1], [2]], [[0], [3]]])).flatten()
            tensor([2, 1, 3])
        """
        order = lengths.argsort(descending=True, stable=True)
        position = torch.arange(int(lengths.max())).unsqueeze(1)
        has_word = position < lengths[order].unsqueeze(0)
        rows = (position * lengths.numel() + order)[has_word]
        # Nothing waits for these two copies either: they are read before the next line runs.
        places = order.argsort().to(device, non_blocking=True)
        return cls(rows.to(device, non_blocking=True), has_word.sum(1), places)

    def pack(self, words: Tensor) -> Tensor:
        """The packed words ``[number of words, dim]`` of a batch ``[src_len, batch, dim]``."""
        return words.flatten(0, 1).index_select(0, self.rows)

    def unpack(self, packed: Tensor, src_len: int) -> Tensor:
        """The inverse of :meth:`pack`, ``[src_len, batch, dim]``; 0 on padding."""
        batch = self.places.numel()
        flat = packed.new_zeros(src_len * batch, packed.size(-1))
        return flat.index_copy(0, self.rows, packed).view(src_len, batch, -1)
