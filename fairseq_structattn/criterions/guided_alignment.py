"""Guided alignment: attention learns from word alignments that another tool has made."""

import torch
from torch import Tensor

from fairseq_structattn.distributions import StructuredDistribution


def guided_alignment_loss(posterior: StructuredDistribution, alignment: Tensor) -> Tensor:
    """Cross entropy of attention with given alignments, summed over the batch, in nats.

    With softmax attention that is Σ_t Σ_i −A_{t,i} log α_{t,i}, where the links A of a target word sum to 1 (Chen et
    al., "Guided Alignment Training for Topic-Aware Neural Machine Translation", AMTA 2016; Garg et al., "Jointly
    Learning to Align and Translate with Transformer Models", EMNLP 2019, section 4.2). Where attention marks any number
    of positions, as a chain and sigmoid do, the aligned ones are the structure to learn, and it is
    Σ_t −log p(z_t = marks of A_t). For the cross entropy with their weights divided by the sum would be content with
    the aligned position at μ = 1 among others that are at μ = 1 as well, where no gradient is left to tell them apart.

    A word without links costs nothing. No logarithm is taken of a probability where the potentials tell more, so that
    a position of weight 0 is pulled up with full force, see
    :meth:`~fairseq_structattn.distributions.structured.StructuredDistribution.alignment_log_prob`. What the
    distribution forbids altogether cannot be learned, and is left out.

    Args:
        posterior: over source positions, of batch shape ``[batch, tgt_len]``
        alignment: A, ``[batch, tgt_len, src_len]``, in sentences padded on the right
    """
    # A tree over the source has no </s>, which is aligned to nothing.
    cost = -posterior.alignment_log_prob(alignment[..., : posterior.max_length])
    return cost.masked_fill(cost.isinf(), 0).sum()


def alignment_matrix(links: Tensor, link_weights: Tensor, src_tokens: Tensor, tgt_len: int, padding: int) -> Tensor:
    """The alignments of a batch of fairseq as shares of source positions.

    Args:
        links: ``[links, 2]``: column of `src_tokens`, and row of the target words of all sentences one after the other
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
