"""Coverage loss: a penalty on repeated attention to the same source positions."""

from typing import Tuple

import torch
from torch import Tensor, nn

from fairseq_structattn.criterions.terms import Term, register_term


def coverage_loss(weights: Tensor, counted: Tensor) -> Tensor:
    """Σ_t Σ_i min(a_{t,i}, c_{t,i}) with the coverage c_t = Σ_{t' < t} a_{t'}, summed over the batch.

    See et al., "Get To The Point: Summarization with Pointer-Generator Networks" (ACL 2017), equations 10, 12 and 13.
    In the paper a_t sums to 1, so that a step costs at most 1. Here weights are divided by their sum first, since the
    weights of other distributions have other sums. A step whose weights are all 0 costs nothing.

    Args:
        weights: ``[batch, tgt_len, src_len]``, at least 0
        counted: mask of target words, False for padding, boolean ``[batch, tgt_len]``
    """
    weights = weights if weights.dtype == torch.float64 else weights.float()
    weights = weights.masked_fill(~counted.unsqueeze(-1), 0)
    total = weights.sum(-1, keepdim=True)
    # Where an estimator selects no position, the sum is 0; divided by a tiny number, gradients would overflow.
    attention = weights / total.masked_fill(total == 0, 1)
    coverage = attention.cumsum(1) - attention
    return torch.minimum(attention, coverage).sum()


@register_term
class CoverageLoss(Term):
    """:func:`coverage_loss` as a term, for any model that returns attention weights."""

    name = "coverage_loss"
    description = "weight of the penalty on repeated attention to the same source positions"

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """See :meth:`Term.value`; over all target words."""
        counted = sample["target"].ne(self.task.target_dictionary.pad())
        return coverage_loss(self.attended(extra["attn"][0]), counted), counted.sum()
