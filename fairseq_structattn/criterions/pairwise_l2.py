"""L2 penalty on the pairwise potentials of attention."""

from typing import Tuple

import torch
from torch import Tensor, nn

from fairseq_structattn.criterions.terms import Term, register_term
from fairseq_structattn.modules import StructuredAttention
from fairseq_structattn.modules.head_groups import PositionHeads


def pairwise_square_norm(model: nn.Module) -> Tensor:
    """``Σb²`` over the pairwise potentials of all attentions in `model`; 0 where there are none."""
    total = torch.zeros((), device=next(model.parameters()).device)
    for module in model.modules():
        if isinstance(module, (StructuredAttention, PositionHeads)) and "pairwise" in module.tables:
            total = total + module.tables["pairwise"].float().pow(2).sum()
    return total


@register_term
class PairwiseL2(Term):
    """``½ Σb²`` over the pairwise potentials ``b``: `weight` · b is added to the gradient of an update (Kim et al.
    2017, section 4.2), whatever the number of batches and processes of the update. fairseq divides the sum of their
    losses by the sum of their sample sizes, so each batch has the penalty times its own sample size.

    The paper's 0.005 belongs to a loss summed over the words of a sentence, as with ``sentence_avg``; with a mean over
    words the same balance is 0.005 divided by the number of words of a sentence.
    """

    name = "pairwise_l2"
    description = (
        "weight of the L2 penalty on the pairwise potentials of the attention (paper: 0.005 with --sentence-avg; "
        "for a mean over words, divide it by the number of words in a sentence)"
    )

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """See :meth:`Term.value`; over the sample size, in place of words."""
        sample_size = sample["target"].size(0) if self.options["sentence_avg"] else sample["ntokens"]
        return pairwise_square_norm(model) / 2 * sample_size, torch.as_tensor(sample_size)
