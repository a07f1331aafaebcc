"""What an encoder gives to the decoder, held once for all hypotheses of a sentence."""

from functools import reduce
from itertools import groupby
from math import gcd
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_structattn.distributions import StructuredDistribution
from fairseq_structattn.modules.attention import AttentionSource


class EncoderOutput(NamedTuple):
    """A batch of source sentences, right-padded whatever the padding of ``src_tokens``.

    Beam search asks for each sentence several times, and for another order after each word. Hypotheses of a sentence
    that follow each other share it, so that nothing is copied until a sentence is finished.

    Attributes:
        source: the source side of attention. Its values are the states ``[sentences, src_len, source_dim]``, 0 on
            padding; without attention, so are its keys
        left_padding: number of padding symbols before each sentence in ``src_tokens``, ``[sentences]``
        finals: final state of each encoder layer, ``[sentences, layers, final_dim]``
        heads: the distribution over the heads of the words, or over binary trees, if the encoder was asked for it
        beam: number of hypotheses of each sentence; the batch of the decoder has the first `beam` rows for the first
            sentence, and so on
    """

    source: AttentionSource
    left_padding: Tensor
    finals: Tensor
    heads: Optional[StructuredDistribution] = None
    beam: int = 1

    def reorder(self, new_order: Tensor) -> "EncoderOutput":
        """The rows of the decoder's batch with the indices `new_order` ``[new_batch]``, without the distribution over
        heads. The indices are read: a GPU has just been waited for by the search that chose them."""
        sentences = (row // self.beam for row in new_order.tolist())
        runs = [(sentence, sum(1 for _ in rows)) for sentence, rows in groupby(sentences)]
        beam = reduce(gcd, (length for _, length in runs), 0) or 1
        kept = [sentence for sentence, length in runs for _ in range(length // beam)]
        if kept == list(range(self.left_padding.size(0))):
            return self._replace(heads=None, beam=beam)
        return self._select(new_order.new_tensor(kept), beam)

    def expanded(self) -> "EncoderOutput":
        """The same with one sentence for each row of the decoder's batch."""
        if self.beam == 1:
            return self
        sentences = torch.arange(self.left_padding.size(0), device=self.left_padding.device)
        return self._select(sentences.repeat_interleave(self.beam), 1)

    def _select(self, sentences: Tensor, beam: int) -> "EncoderOutput":
        left_padding, finals = (part.index_select(0, sentences) for part in (self.left_padding, self.finals))
        return EncoderOutput(self.source.reorder(sentences), left_padding, finals, None, beam)
