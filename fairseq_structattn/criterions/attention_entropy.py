"""Entropy of the attention distribution: a measure of its uncertainty."""

from typing import Tuple

from torch import Tensor, nn

from fairseq_structattn.criterions.terms import Term, register_term
from fairseq_structattn.distributions import StructuredDistribution


def attention_entropy(posterior: StructuredDistribution, counted: Tensor) -> Tensor:
    """Σ_t H(z_t), the exact entropy of the structures at each target step, summed over the batch, in nats.

    H(z) = log Z − ⟨θ, μ⟩ (Wainwright & Jordan, "Graphical Models, Exponential Families, and Variational Inference",
    2008, theorem 3.4). As a penalty it is entropy regularisation (Grandvalet & Bengio, NIPS 2004).

    Args:
        posterior: distribution over source positions, of batch shape ``[batch, tgt_len]``
        counted: mask of target words, False for padding, boolean ``[batch, tgt_len]``
    """
    return posterior.entropy().masked_fill(~counted, 0).sum()


@register_term
class AttentionEntropy(Term):
    """:func:`attention_entropy` as a term; a negative weight keeps attention spread out."""

    name = "attention_entropy"
    description = "weight of the entropy of the attention distribution: > 0 penalises it, < 0 rewards it"
    needs_distribution = True
    may_be_negative = True

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """See :meth:`Term.value`; over all target words."""
        counted = sample["target"].ne(self.task.target_dictionary.pad())
        return attention_entropy(self.attended(extra["posterior"]), counted), counted.sum()
