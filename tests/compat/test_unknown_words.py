"""Repair of `--replace-unk`: which words of the source stand for unknown ones, whatever tells that they are aligned."""

from argparse import Namespace

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import utils  # noqa: E402
from fairseq.data import Dictionary  # noqa: E402
from fairseq.tasks import FairseqTask  # noqa: E402
from fairseq.tasks.translation import TranslationTask  # noqa: E402

from fairseq_structattn.compat import alignments, unknown_words  # noqa: E402

WORDS = Dictionary()
for number in range(3):
    WORDS.add_symbol(f"w{number}@@" if number else "w0")
HYPOTHESIS = torch.tensor([WORDS.unk(), WORDS.index("w1@@"), WORDS.unk(), WORDS.unk(), WORDS.eos()])
HARD = [(2, 0), (0, 1), (1, 2), (0, 3)]
SOFT = [["0.1", "0.1", "0.2", "0.6"], ["1", "0", "0", "0"], ["0", "0.7", "0.1", "0.2"], ["1", "0", "0", "0"]]


@pytest.fixture
def stock(monkeypatch):
    """What the installed fairseq does without our repair."""
    for owner, name in (
        (utils, "load_align_dict"), (utils, "post_process_prediction"), (FairseqTask, "build_generator")
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)


def replaced(alignment, align_dict, remove_bpe=None):
    arguments = HYPOTHESIS, "neu@@ haus eins", alignment, align_dict, WORDS, remove_bpe, {WORDS.eos()}
    return utils.post_process_prediction(*arguments)[1]


def test_the_installed_version_has_the_defect_and_loses_it(stock):
    with pytest.raises(TypeError):
        replaced(HARD, {})
    with pytest.raises(FileNotFoundError):
        utils.load_align_dict("@@ ")
    unknown_words.repair_unknown_words()
    assert replaced(HARD, {}) == "eins w1@@ haus neu@@"
    assert utils.load_align_dict("@@ ") == {} and utils.load_align_dict(None) is None


@pytest.mark.parametrize("alignment", [HARD, SOFT], ids=["hard", "soft"])
def test_words_are_those_that_are_aligned(alignment):
    assert replaced(alignment, {}) == "eins w1@@ haus neu@@"
    assert replaced(alignment, {"eins": "one"}) == "one w1@@ haus neu@@"
    assert replaced(alignment, {}, "@@ ") == "eins w1haus neu"
    assert replaced(alignment, None) == "<unk> w1@@ <unk> <unk>"


def test_without_alignment_words_stay_unknown():
    assert replaced([], {}) == "<unk> w1@@ <unk> <unk>"
    assert replaced([(3, 0)], {}) == "<unk> w1@@ <unk> <unk>"  # </s>, which is no word


def test_dictionaries_are_read(tmp_path):
    (tmp_path / "words").write_text("eins one\n")
    assert utils.load_align_dict(str(tmp_path / "words")) == {"eins": "one"}


@pytest.mark.parametrize(
    "options, extract",
    [
        ({}, None),
        ({"replace_unk": "@@ "}, utils.extract_hard_alignment),
        ({"replace_unk": "", "print_alignment": "soft"}, utils.extract_soft_alignment),
    ],
    ids=["not asked for", "hard", "soft"],
)
def test_translations_are_aligned_for_it(options, extract):
    task = TranslationTask(Namespace(), WORDS, WORDS)
    generator = task.build_generator([alignments.Anyword(len(WORDS))], Namespace(**options))
    assert getattr(generator, "extract_alignment", None) is extract
