"""Repairs of alignments: the defect each is for, that it repairs it, and that it leaves a healthy version alone."""

import argparse
import importlib.machinery
import sys
import types

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import utils  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.sequence_generator import SequenceGeneratorWithAlignment  # noqa: E402
from fairseq.sequence_scorer import SequenceScorer  # noqa: E402

from fairseq_structattn.compat import alignments  # noqa: E402
from fairseq_structattn.compat.deciding import AtFirstUse  # noqa: E402


@pytest.fixture
def stock_alignment(monkeypatch):
    """What the installed fairseq does without our repairs."""
    for owner in (SequenceGeneratorWithAlignment, SequenceScorer):
        monkeypatch.setattr(owner, "generate", getattr(owner.generate, "__wrapped__", owner.generate))


def _scored(kind):
    words = Dictionary()
    tokens = torch.tensor([[words.unk(), words.unk(), words.eos()]])
    sample = {"net_input": {"src_tokens": tokens, "prev_output_tokens": tokens}, "target": tokens}
    ((hypothesis,),) = SequenceScorer(words, compute_alignment=kind).generate([alignments.Anyword(len(words))], sample)
    return hypothesis["alignment"]


def test_alignments_are_repaired_when_wrong_and_only_then(stock_alignment):
    stock = SequenceGeneratorWithAlignment.generate, SequenceScorer.generate
    assert alignments.counts_on_full_beams() and alignments.scores_with_hard_alignments()
    alignments.repair_generated_alignment()
    alignments.repair_scored_alignment()
    repaired = SequenceGeneratorWithAlignment.generate, SequenceScorer.generate
    assert not set(stock) & set(repaired)
    assert not alignments.counts_on_full_beams() and not alignments.scores_with_hard_alignments()
    alignments.repair_generated_alignment()
    alignments.repair_scored_alignment()
    assert repaired == (SequenceGeneratorWithAlignment.generate, SequenceScorer.generate)


def test_alignments_of_references_are_of_the_kind_asked_for():
    assert _scored("hard") == [(0, 0), (0, 1)]
    assert _scored("soft") == [["1.000000"] * 3] * 3
    assert _scored(None) is None


def test_models_that_align_by_a_second_pass_are_left_to_fairseq():
    asked = []
    decision = AtFirstUse("", lambda: pytest.fail("there was nothing to decide"))
    generate = alignments.aligning_what_is_there(lambda self, models, sample: asked.append(sample), decision)
    generate(
        argparse.Namespace(model=argparse.Namespace(models=[argparse.Namespace(full_context_alignment=True)])), 0, 1
    )
    assert asked == [1]


def _interactive(monkeypatch, main):
    module = types.ModuleType("interactive")
    module.__spec__ = importlib.machinery.ModuleSpec("fairseq_cli.interactive", None)
    module.main, module.utils = main, utils
    monkeypatch.setitem(sys.modules, "interactive_under_test", module)
    alignments.repair_interactive_alignment()
    return module


def _prints_pairs(alignment):
    return " ".join("{}-{}".format(src, tgt) for src, tgt in alignment)  # noqa: UP032


def _prints_either(alignment):
    if all(isinstance(row, tuple) and isinstance(row[0], int) for row in alignment):
        return _prints_pairs(alignment)
    return " ".join(",".join(row) for row in alignment)


@pytest.mark.parametrize("main", [_prints_pairs, _prints_either])
@pytest.mark.parametrize(
    "alignment, line",
    [([(0, 0), (2, 1)], "0-0 2-1"), ([["0.1", "0.9"], ["1.0", "0.0"]], "0.1,0.9 1.0,0.0"), ([], ""), ([["1"]], "1")],
    ids=["hard", "soft", "none", "one"],
)
def test_interactive_prints_either_kind_of_alignment(monkeypatch, capsys, alignment, line, main):
    module = _interactive(monkeypatch, main)
    _, _, given = module.utils.post_process_prediction(torch.tensor([2]), "", alignment, None, Dictionary())
    module.print(f"A-0\t{main(given)}")
    assert capsys.readouterr().out == f"A-0\t{line}\n"
    assert module.utils.strip_pad is utils.strip_pad
