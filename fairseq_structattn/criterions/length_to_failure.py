"""The measure of tree transduction (Grefenstette et al. 2015; Kim et al. 2017, section 4.1)."""

import torch
from torch import Tensor


def length_to_failure(predicted: Tensor, target: Tensor, padding: int, end: int) -> Tensor:
    """Fraction of the target before the first error, ``[batch]``, 0 to 1.

    Up to its first error a greedy decoder reads the same words as under teacher forcing, so the measure follows from
    predictions under teacher forcing, without decoding. The end of a sentence counts neither in the numerator nor in
    the denominator. The fraction of an empty target is 1.

    Args:
        predicted: best words ``[batch, tgt_len]``
        target: ``[batch, tgt_len]``, padded on the right
        padding: index of the padding symbol
        end: index of ``</s>``
    """
    counted = target.ne(padding) & target.ne(end)
    right = (predicted.eq(target).cumprod(1).bool() & counted).sum(1)
    return torch.where(counted.any(1), right / counted.sum(1).clamp(min=1), torch.ones(len(target)).to(right.device))
