"""The measure of tree transduction (Grefenstette et al. 2015; Kim et al. 2017, section 4.1)."""

import torch
from torch import Tensor


def length_to_failure(predicted: Tensor, target: Tensor, padding: int, end: int) -> Tensor:
    """Share of the target that is right before the first error, ``[batch]``, 0 to 1.

    Up to its first error a greedy decoder has read what a teacher would have given it to read, so predictions under
    teacher forcing give the measure without decoding. The end of a sentence is not counted, above or below the line.
    An empty target is wholly right.

    Args:
        predicted: best words ``[batch, tgt_len]``
        target: ``[batch, tgt_len]``, padded on the right
        padding: index of the padding symbol
        end: index of ``</s>``
    """
    counted = target.ne(padding) & target.ne(end)
    right = (predicted.eq(target).cumprod(1).bool() & counted).sum(1)
    return torch.where(counted.any(1), right / counted.sum(1).clamp(min=1), torch.ones(len(target)).to(right.device))
