"""Guided alignment: supervision of attention by word alignments of another tool."""

import logging
from typing import Any, Mapping, Tuple

import torch
from torch import Tensor, nn

from fairseq_structattn.criterions.checked_data import CheckedData
from fairseq_structattn.criterions.given_links import check_alignments
from fairseq_structattn.criterions.terms import Term, nothing, register_term
from fairseq_structattn.distributions import StructuredDistribution

logger = logging.getLogger(__name__)


def guided_alignment_loss(posterior: StructuredDistribution, alignment: Tensor) -> Tensor:
    """Cross entropy of attention with given alignments, summed over the batch, in nats.

    With softmax attention the loss is Σ_t Σ_i −A_{t,i} log α_{t,i}, where the links A of a target word sum to 1 (Chen
    et al., "Guided Alignment Training for Topic-Aware Neural Machine Translation", AMTA 2016; Garg et al., "Jointly
    Learning to Align and Translate with Transformer Models", EMNLP 2019, section 4.2). A chain or sigmoid selects any
    number of positions; the loss is then Σ_t −log p(z_t = indicator of the links A_t). The cross entropy with
    normalised weights would not do: once the aligned position and others have μ = 1, no gradient separates them.

    A word without links costs nothing. Log-probabilities are computed from potentials, not from probabilities, so that
    a position whose weight underflows to 0 has its full gradient, see
    :meth:`~fairseq_structattn.distributions.structured.StructuredDistribution.alignment_log_prob`. Links that the
    distribution excludes cannot be learned, and are left out.

    Args:
        posterior: distribution over source positions, of batch shape ``[batch, tgt_len]``
        alignment: A, ``[batch, tgt_len, src_len]``, in sentences padded on the right
    """
    # A tree over the source has no position for </s>, which is not aligned.
    cost = -posterior.alignment_log_prob(alignment[..., : posterior.max_length])
    return cost.masked_fill(cost.isinf(), 0).sum()


def alignment_matrix(links: Tensor, link_weights: Tensor, src_tokens: Tensor, tgt_len: int, padding: int) -> Tensor:
    """The alignments of a batch of fairseq as target distributions over source positions.

    Args:
        links: ``[links, 2]``: column of `src_tokens`, and row among the concatenated target words of all sentences
        link_weights: 1 / number of links of the target word, ``[links]``
        src_tokens: ``[batch, src_len]``, padded on either side
        tgt_len: length of a target sentence, with padding
        padding: index of the padding symbol

    Returns:
        ``[batch, tgt_len, src_len]``, the columns of sentences padded on the right; zeros for words without links
    """
    batch, src_len = src_tokens.shape
    left_padding = src_tokens.ne(padding).cumsum(1).eq(0).sum(1)
    columns, words = links.unbind(1)
    sentences = torch.div(words, tgt_len, rounding_mode="floor")
    matrix = torch.zeros(batch * tgt_len, src_len, device=src_tokens.device)
    positions = (words, columns - left_padding[sentences])
    return matrix.index_put(positions, link_weights.float(), accumulate=True).view(batch, tgt_len, src_len)


@register_term
class GuidedAlignment(Term):
    """:func:`guided_alignment_loss` as a term; all alignments of the data are checked before the first update.

    Raises:
        ValueError: no ``--load-alignments``
    """

    name = "guided_alignment"
    description = "weight of the cross entropy of attention with the word alignments of the data (--load-alignments)"
    needs_distribution = True

    def __init__(self, task, options: Mapping[str, Any]):
        super().__init__(task, options)
        if not getattr(task.cfg, "load_alignments", False):
            raise ValueError(f"--guided-alignment {self.weight} needs word alignments: add --load-alignments")
        self._checked = CheckedData(task)

    @classmethod
    def skipped(cls, task) -> None:
        """Warns of alignments that are loaded but not used."""
        if getattr(task.cfg, "load_alignments", False):
            logger.warning("--load-alignments is not used: its weight, --guided-alignment, is 0")

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """See :meth:`Term.value`; over the target words that have an alignment."""
        posterior, target = self.attended(extra["posterior"]), sample["target"]
        for split, data in self._checked.unseen():
            check_alignments(self.task.cfg, split, data, required=model.training)
        links = sample.get("alignments")
        if links is None:
            return nothing(target)
        weights, source = sample["align_weights"], sample["net_input"]["src_tokens"]
        padding = self.task.target_dictionary.pad()
        alignment = alignment_matrix(links, weights, source, target.size(1), padding)
        return guided_alignment_loss(posterior, alignment), weights.sum()
