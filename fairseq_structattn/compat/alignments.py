"""Alignments: the output of `--print-alignment`."""

import functools
import re
import sys
import types
from typing import Any, List

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer

from .deciding import AtFirstUse, put_in_place

# Marks the end of a row of weights inside fairseq-interactive.
ROW_END = "\0"


def repair_generated_alignment():
    """Alignments of translations that end in an IndexError.

    Symptom: `--print-alignment` ends in "list index out of range" when a search finds fewer translations of a sentence
    than the beam is wide, and in "Dimension out of range" for a model without attention.
    Detection, at the first use: a search with beam 4 over a vocabulary without words, where only two translations of
    one word exist, ends in this error.
    Repair: all translations that were found are aligned; a model without attention is an error that says so. Models
    that align by a second pass (`transformer_align`) are left to fairseq.
    """
    decision = AtFirstUse("alignments of translations", counts_on_full_beams)
    put_in_place(SequenceGeneratorWithAlignment, "generate", lambda stock: aligning_what_is_there(stock, decision))


class Anyword(torch.nn.Module):
    """A model with a uniform distribution over words and uniform attention to the source."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    def forward(self, tokens=None, prev_output_tokens=None, src_tokens=None):
        tokens = prev_output_tokens if tokens is None else tokens
        attention = torch.ones(*tokens.shape, 1 if src_tokens is None else src_tokens.size(1))
        return torch.zeros(*tokens.shape, self.words), {"attn": [attention]}

    def get_normalized_probs(self, output, log_probs, sample=None):
        return output[0]


def counts_on_full_beams():
    words = Dictionary()
    generator = SequenceGeneratorWithAlignment([Anyword(len(words))], words, beam_size=4, max_len_b=1)
    source = torch.tensor([[words.eos()]])
    try:
        generator.generate(None, {"net_input": {"src_tokens": source, "src_lengths": torch.tensor([1])}})
    except IndexError:
        return True
    return False


def aligning_what_is_there(stock, decision):
    @functools.wraps(stock)
    @torch.no_grad()
    def generate(self, models, sample, **kwargs):
        aligns_again = any(getattr(model, "full_context_alignment", False) for model in self.model.models)
        if aligns_again or not decision.is_needed():
            return stock(self, models, sample, **kwargs)
        found = self._generate(sample, **kwargs)
        for source, hypotheses in zip(sample["net_input"]["src_tokens"].cpu(), found):
            for hypothesis in hypotheses:
                attention, target = hypothesis["attention"].cpu(), hypothesis["tokens"].cpu()
                if attention.dim() != 2:
                    raise _no_alignment()
                # The generator has the weights as [src_len, tgt_len], and for a model without attention an empty list.
                hypothesis["alignment"] = self.extract_alignment(attention.t(), source, target, self.pad, self.eos)
        return found

    return generate


def _no_alignment():
    return ValueError("--print-alignment, --replace-unk: the model has no attention, so nothing is aligned; do without")


def repair_scored_alignment():
    """Soft alignments of references.

    Symptom: `--score-reference --print-alignment soft` ends in "expected str instance, int found"; and with a model
    without attention, `--score-reference --print-alignment` ends in "'NoneType' object is not iterable".
    Detection, at the first use: asked for a soft alignment, the scorer answers with pairs of integers.
    Repair: rows of weights, like those of the generator; a model without attention is an error that says so.
    """
    decision = AtFirstUse("alignments of references", scores_with_hard_alignments)
    put_in_place(SequenceScorer, "generate", lambda stock: _with_soft_alignments(stock, decision))


def scores_with_hard_alignments():
    words = Dictionary()
    tokens = torch.tensor([[words.unk(), words.eos()]])
    sample = {"net_input": {"src_tokens": tokens, "prev_output_tokens": tokens.flip(1)}, "target": tokens}
    ((hypothesis,),) = SequenceScorer(words, compute_alignment="soft").generate([Anyword(len(words))], sample)
    return hypothesis["alignment"] == [(0, 0)]


def _with_soft_alignments(stock, decision):
    @functools.wraps(stock)
    def generate(self, models, sample, **kwargs):
        scored = stock(self, models, sample, **kwargs)
        if not self.compute_alignment or not decision.is_needed():
            return scored
        for row, (hypothesis,) in enumerate(scored):
            if hypothesis["attention"] is None:
                raise _no_alignment()
            if self.compute_alignment == "soft":
                source, target = sample["net_input"]["src_tokens"][row], sample["target"][row]
                weights = hypothesis["attention"], source, target
                hypothesis["alignment"] = utils.extract_soft_alignment(*weights, self.pad, self.eos)
        return scored

    return generate


def repair_interactive_alignment():
    """Soft alignments in `fairseq-interactive`.

    Symptom: with `--print-alignment soft` it ends in "too many values to unpack".
    Detection: none is needed; a version that supports soft alignments prints the same with the repair.
    Repair: the pair that it prints or joins is a row and a mark, and its `print` removes the marks. The module is
    loaded already, under its own name or as `__main__`; if it is not loaded, nothing is done.
    """
    modules: List[Any] = list(sys.modules.values())
    for module in modules:
        name = getattr(getattr(module, "__spec__", None), "name", None)
        if name == "fairseq_cli.interactive" and module.utils is utils:
            module.utils = _UtilsWithRows("utils")
            module.print = _print_without_marks


class _UtilsWithRows(types.ModuleType):
    def __getattr__(self, name):
        return getattr(utils, name)

    @staticmethod
    def post_process_prediction(*args, **kwargs):
        tokens, text, alignment = utils.post_process_prediction(*args, **kwargs)
        is_soft = isinstance(alignment, list) and any(isinstance(row, list) for row in alignment)
        return tokens, text, [(",".join(row), ROW_END) for row in alignment] if is_soft else alignment


def _print_without_marks(text, *args, **kwargs):
    print(re.sub(f"[-,]{ROW_END}", "", text) if isinstance(text, str) else text, *args, **kwargs)
