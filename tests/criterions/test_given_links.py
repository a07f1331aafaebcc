"""Alignments of a whole data set: links to words that there are not, what is counted, and what options do to them."""

import logging
from argparse import Namespace

import numpy as np
import pytest
import torch
from building import DICTIONARY, build, sentences
from fairseq.data import (
    AppendTokenDataset,
    LanguagePairDataset,
    ListDataset,
    PrependTokenDataset,
    StripTokenDataset,
    TruncateDataset,
)

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy, given_links
from fairseq_structattn.criterions.given_links import check_alignments
from fairseq_structattn.tasks.cut_alignments import CutAlignments
from fairseq_structattn.tasks.word_counts import word_counts

CFG = Namespace(source_lang="de", target_lang="en", train_subset="train", data="bin", load_alignments=True)
SOURCE, TARGET = [5, 3, 8], [4, 4, 6]  # words
LINKS = [[(0, 0), (4, 3)], [], [(7, 5)]]


def side(words, seed):
    made = sentences([count + 1 for count in words], seed)
    return ListDataset(made, np.array([len(sentence) for sentence in made]))


def truncated(source, length):
    stripped = TruncateDataset(StripTokenDataset(source, DICTIONARY.eos()), length - 1)
    return AppendTokenDataset(stripped, DICTIONARY.eos())


def pairs(links=LINKS, source=None, **options):
    """A data set as fairseq's translation task makes it."""
    source, target = source or side(SOURCE, 0), side(TARGET, 1)
    flat = [torch.tensor(each, dtype=torch.int).flatten() for each in links]
    alignments = ListDataset(flat, [len(each) for each in flat])
    sides = (source, source.sizes, DICTIONARY, target, target.sizes, DICTIONARY)
    return LanguagePairDataset(*sides, align_dataset=alignments, **options)


def check(data, required=True):
    check_alignments(CFG, "train", data, required)


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("options", [{}, {"left_pad_source": False}, {"num_buckets": 2}, {"pad_to_multiple": 8}])
def test_sentences_with_links_are_counted(options, chunk, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(given_links, "CHUNK", chunk)
    check(pairs(**options))
    assert caplog.records[-1].message == "--guided-alignment: 2 of 3 sentences of train have alignments"
    check(pairs([[], [], []], **options))
    assert "0 of 3" in caplog.records[-1].message and caplog.records[-1].levelname == "WARNING"


@pytest.mark.parametrize(
    "links, message",
    [
        (
            [[], [(2, 3), (3, 0)], []],
            "line 2: link 3-0 points outside the sentences, whose words are 0 to 2 and 0 to 3",
        ),
        (
            [[], [], [(0, 6)]],
            "line 3: link 0-6 points outside .* 0 to 7 and 0 to 5. Alignments must be of the sentences",
        ),
        ([[(-1, 0)], [], []], "line 1: link -1-0 points"),
        ([[(1, 1), (5, 4)], [(1, 2)], []], "line 1: link 5-4 .* as if counted from 1: subtract 1 from both numbers"),
        ([[(1, 1), (2, 4)], [(1, 2)], [(8, 1)]], "line 1: link 2-4 .* counted from 1"),
        ([[(1, 1), (9, 4)], [(1, 2)], []], "line 1: link 9-4 .* Alignments must be"),
        ([[(0, 0)], []], r"train\.align\.de-en: alignments of 2 sentences, but the data has 3"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"num_buckets": 1}])
def test_links_that_point_outside_are_named_with_their_line(links, message, options):
    with pytest.raises(ValueError, match=message):
        check(pairs(links, **options))


def test_links_that_may_be_counted_from_1_are_told_of(caplog):
    check(pairs([[(1, 1), (2, 2)], [], [(1, 2)]]))
    assert "no link is one of a first word, 0: are words counted from 1?" in caplog.records[0].message
    caplog.clear()
    check(pairs([[(0, 1)], [(1, 1)], []]))
    assert not caplog.records


@pytest.mark.parametrize("options", [{"left_pad_source": False}, {"num_buckets": 2}, {"pad_to_multiple": 8}])
def test_the_term_does_not_depend_on_how_batches_are_padded(options):
    def term(data):
        task = Namespace(target_dictionary=DICTIONARY, cfg=CFG, datasets={"train": data})
        criterion = StructuredLabelSmoothedCrossEntropy(task, False, 0.0, guided_alignment=1.0)
        with torch.no_grad():
            return criterion(build("structattn_rnn_crf"), data.collater([data[index] for index in range(3)]))[2]

    expected, log = term(pairs()), term(pairs(**options))
    torch.testing.assert_close(log["guided_alignment"], expected["guided_alignment"], atol=1e-4, rtol=0)
    assert log["guided_alignment_words"] == expected["guided_alignment_words"] == 3


def test_whoever_has_no_alignments(caplog):
    caplog.set_level(logging.INFO)
    data = pairs()
    data.align_dataset = None
    with pytest.raises(FileNotFoundError, match="no alignments train.align.de-en in bin: .* --align-suffix"):
        check(Namespace(dataset=data))
    check(data, required=False)
    check_alignments(CFG, "valid", data, required=True)
    assert [record.message for record in caplog.records[-2:]] == [
        f"--guided-alignment: {split} has no alignments, its term is 0" for split in ("train", "valid")
    ]


def test_links_of_what_is_truncated_are_left_out(caplog):
    caplog.set_level(logging.INFO)
    data = pairs(source=truncated(side(SOURCE, 0), 5))
    assert word_counts(data.src).tolist() == [4, 3, 4] and word_counts(data.src, cut=False).tolist() == SOURCE
    with pytest.raises(ValueError, match="cuts off words of 2 sentences .* add --task structattn_translation"):
        check(data)
    data.align_dataset = CutAlignments(data.align_dataset, word_counts(data.src))
    check(data)
    assert "1 of 3 sentences" in caplog.records[-1].message
    batch = data.collater([data[index] for index in range(3)])
    source = batch["net_input"]["src_tokens"]
    # The one link that is left: the first words of the first sentence.
    ((column, word),) = batch["alignments"].tolist()
    row = batch["id"].tolist().index(0)
    assert source[row, column] == data.src[0][0] and batch["target"].flatten()[word] == data.tgt[0][0]
    # The file itself is right or wrong whatever is cut.
    wrong = pairs([[(5, 0)], [], []], source=truncated(side(SOURCE, 0), 5))
    wrong.align_dataset = CutAlignments(wrong.align_dataset, word_counts(wrong.src))
    with pytest.raises(ValueError, match="line 1: link 5-0"):
        check(wrong)


def test_words_that_are_moved_are_refused():
    with pytest.raises(ValueError, match="--prepend-bos"):
        check(pairs(source=PrependTokenDataset(side(SOURCE, 0), DICTIONARY.bos())))
    check(pairs(source=AppendTokenDataset(side(SOURCE, 0), DICTIONARY.bos())))


def test_every_split_is_checked_before_the_first_update_and_only_once(caplog):
    caplog.set_level(logging.INFO)
    task = Namespace(target_dictionary=DICTIONARY, cfg=CFG, datasets={"valid": pairs(), "train": pairs()})
    criterion, model = (
        StructuredLabelSmoothedCrossEntropy(task, False, 0.0, guided_alignment=1.0),
        build("structattn_rnn"),
    )
    data = task.datasets["train"]
    batch = data.collater([data[1]])
    _, _, log = criterion(model, batch)
    assert log["guided_alignment"] == 0 and log["guided_alignment_words"] == 0
    criterion(model, batch)
    assert [record.message.split()[-3] for record in caplog.records if "sentences of" in record.message] == [
        "valid",
        "train",
    ]
    # The next shard.
    task.datasets["train"] = pairs([[], [(3, 0)], []])
    with pytest.raises(ValueError, match="line 2: link 3-0"):
        criterion(model, batch)


def test_options_without_a_weight_are_told_of(caplog):
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace(load_alignments=True, load_heads=True))
    StructuredLabelSmoothedCrossEntropy(task, False, 0.0)
    assert [record.message.split()[0] for record in caplog.records] == ["--load-alignments", "--load-heads"]
