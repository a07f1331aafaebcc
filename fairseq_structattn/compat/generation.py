"""Generation: options of the search that have no effect, or another than they promise."""

import functools
import math

import torch
from fairseq.data import Dictionary
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch, LengthConstrainedBeamSearch, Sampling
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from .alignments import Anyword
from .deciding import AtFirstUse, put_in_place


def repair_ngram_blocking():
    """N-grams that repeat.

    Symptom: without fairseq's CUDA extension `--no-repeat-ngram-size 3` translates to "w5 w5 w5 w5": the earlier words
    are compared with the end of the buffer, which is padding until the longest translation is reached. If the buffer is
    full, size 1 forbids nothing.
    Detection, at the first use: after the words "5 6 5" in a wider buffer, the blocker of size 2 allows 6.
    Repair: the last words of the hypothesis are compared. The only allowed word, such as a word of `--prefix-size`, is
    never forbidden.
    """
    decision = AtFirstUse("n-grams that repeat", lets_ngrams_repeat)
    put_in_place(NGramRepeatBlock, "_no_repeat_ngram", lambda stock: _blocking(stock, decision))


def lets_ngrams_repeat():
    words = torch.tensor([[2, 5, 6, 5, 1, 1]])
    scores = NGramRepeatBlock(2, use_extension=False)(words, torch.zeros(1, 8), bsz=1, beam_size=1, step=3)
    return scores[0, 6].item() > -math.inf


def _blocking(stock, decision):
    @functools.wraps(stock)
    def block(self, *args, **kwargs):
        return (_block_repeated_ngrams if decision.is_needed() else stock)(self, *args, **kwargs)

    return block


def _block_repeated_ngrams(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
    context = self.no_repeat_ngram_size - 1
    # The first token only starts the sentence.
    words = tokens[:, 1 : step + 1]
    if words.size(1) <= context:
        return lprobs
    ngrams = words.unfold(1, context + 1, 1)
    repeated = (ngrams[..., :context] == words[:, words.size(1) - context :].unsqueeze(1)).all(-1)
    banned = torch.zeros_like(lprobs, dtype=torch.bool)
    rows, places = repeated.nonzero(as_tuple=True)
    banned[rows, ngrams[rows, places, context]] = True
    has_choice = (lprobs > -math.inf).sum(1, keepdim=True) > 1
    return lprobs.masked_fill_(banned & has_choice, -math.inf)


def repair_diverse_beams():
    """Groups of diverse beams.

    Symptom: `--diverse-beam-groups` ends in "index 97 is out of bounds", or applies the penalty of one sentence to
    another: the overlap of the groups is stored by position in the batch, and looked up by number in the data.
    Detection, at the first use: a batch of sentences 7 and 3 of the data.
    Repair: the overlap is looked up by position.
    """
    decision = AtFirstUse("groups of diverse beams", looks_up_by_number)
    put_in_place(DiverseBeamSearch, "step", lambda stock: _looking_up_by_place(stock, decision))


def looks_up_by_number():
    words = Dictionary()
    search, scores = DiverseBeamSearch(words, 2, 0.5), torch.zeros(2, 2, len(words))
    numbers = torch.tensor([7, 3])
    try:
        search.step(0, scores, None, None, numbers)
        search.step(1, scores, torch.zeros(2, 2, 1), None, numbers)
    except IndexError:
        return True
    return False


def _looking_up_by_place(stock, decision):
    @functools.wraps(stock)
    def search_step(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None):
        if not decision.is_needed():
            return stock(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)
        if original_batch_idxs is None:
            original_batch_idxs = torch.arange(len(lprobs), device=lprobs.device)
        if step == 0:
            self.numbers = original_batch_idxs
        places = original_batch_idxs.unsqueeze(1).eq(self.numbers).long().argmax(1)
        return stock(self, step, lprobs, scores, prev_output_tokens, places)

    return search_step


def repair_sampling():
    """Samples when all allowed words have a probability near 0.

    Symptom: `--sampling` ends in "invalid multinomial distribution" if only one word is allowed (the last `</s>` of a
    long translation, or a word of `--prefix-size`) and its probability is 0 in floating point, for instance with a
    small `--temperature`; `--sampling-topk` ends in "selected index k out of range" if there are fewer words.
    Detection, at the first use: either error.
    Repair: the probabilities of such words are scaled so that the largest is 1; `--sampling-topk` takes all words.
    """
    decision = AtFirstUse("samples of what is next to impossible", fails_to_sample)
    put_in_place(Sampling, "step", lambda stock: _sampling_whatever_is_allowed(stock, decision))


def fails_to_sample():
    return _fails(Sampling(Dictionary())) or _fails(Sampling(Dictionary(), sampling_topk=100))


def _fails(search):
    scores = torch.full((1, 1, search.vocab_size), -math.inf)
    scores[..., search.eos] = -1000
    try:
        search.step(0, scores, None)
    except RuntimeError:
        return True
    return False


def _sampling_whatever_is_allowed(stock, decision):
    @functools.wraps(stock)
    def search_step(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None):
        if not decision.is_needed():
            return stock(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)
        self.sampling_topk = min(self.sampling_topk, lprobs.size(-1))
        best = lprobs.max(-1, keepdim=True)[0]
        vanishing = (best < math.log(torch.finfo(torch.float32).tiny)) & (best > -math.inf)
        lprobs = lprobs - best.masked_fill(~vanishing, 0)
        return stock(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)

    return search_step


def repair_source_length():
    """Translations as long as their sources.

    Symptom: with `--match-source-len` a sentence of five words has a translation of six, because its `</s>` is counted.
    Detection, at the first use: the translation of a sentence of one word has two words.
    Repair: the length is reduced by one if sentences end in `</s>` and their lengths include it.
    """
    decision = AtFirstUse("translations as long as their sources", counts_ends)
    put_in_place(SequenceGenerator, "_generate", lambda stock: _noticing_ends(stock, decision))
    put_in_place(SequenceGenerator, "finalize_hypos", _finalizing_by_words)
    put_in_place(LengthConstrainedBeamSearch, "set_src_lengths", _setting_words)


def counts_ends():
    words = Dictionary()
    words.add_symbol("word")
    search = LengthConstrainedBeamSearch(words, min_len_a=1, min_len_b=0, max_len_a=1, max_len_b=0)
    generator = SequenceGenerator([Anyword(len(words))], words, search_strategy=search, match_source_len=True)
    source = torch.tensor([[words.index("word"), words.eos()]])
    ((hypothesis,),) = generator.generate(None, {"net_input": {"src_tokens": source, "src_lengths": torch.tensor([2])}})
    return len(hypothesis["tokens"]) > 2


def _noticing_ends(stock, decision):
    @functools.wraps(stock)
    def generate(self, sample, *args, **kwargs):
        source, lengths = (sample["net_input"].get(name) for name in ("src_tokens", "src_lengths"))
        is_asked = self.match_source_len or self.should_set_src_lengths
        if source is not None and lengths is not None and is_asked and decision.is_needed():
            self.search.ends = int(source.eq(self.eos).any(1).all().item())
        return stock(self, sample, *args, **kwargs)

    return generate


def _finalizing_by_words(stock):
    @functools.wraps(stock)
    def finalize_hypos(
        self, step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, beam_size, attn, src_lengths, max_len
    ):
        src_lengths = src_lengths - getattr(self.search, "ends", 0)
        return stock(
            self, step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, beam_size, attn, src_lengths, max_len
        )

    return finalize_hypos


def _setting_words(stock):
    @functools.wraps(stock)
    def set_src_lengths(self, src_lengths):
        stock(self, src_lengths - getattr(self, "ends", 0))

    return set_src_lengths
