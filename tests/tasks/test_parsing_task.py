"""The task of the parser: sentences without their ends, and what is missing."""

from argparse import Namespace

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.tasks import TASK_REGISTRY

import fairseq_structattn  # noqa: F401  (registers the task)

SENTENCES, HEADS = ["a b c", "b", "c a"], ["2 0 2", "0", "2 0"]


@pytest.fixture
def data(tmp_path):
    """A folder as scripts/prepare/conllu.py writes it."""
    words = Dictionary()
    prefix = str(tmp_path / "train.words-None.words")
    builder = MMapIndexedDatasetBuilder(prefix + ".bin", dtype=np.int32)
    for sentence in SENTENCES:
        builder.add_item(words.encode_line(sentence, add_if_not_exist=True))
    builder.finalize(prefix + ".idx")
    words.save(str(tmp_path / "dict.words.txt"))
    (tmp_path / "train.heads.words").write_text("".join(line + "\n" for line in HEADS))
    return tmp_path


def task(data):
    cfg = Namespace(data=str(data), max_positions=10, dataset_impl=None)
    return TASK_REGISTRY["structattn_parsing"].setup_task(cfg)


def test_a_batch(data):
    made = task(data)
    made.load_dataset("train")
    dataset, pad = made.dataset("train"), made.source_dictionary.pad()
    batch = dataset.collater([dataset[index] for index in (1, 0, 2)])
    assert batch["id"].tolist() == [0, 2, 1] and batch["ntokens"] == 6
    first = made.source_dictionary.index("a")
    assert batch["net_input"]["src_tokens"].tolist() == [
        [first, first + 1, first + 2],
        [first + 2, first, pad],
        [first + 1, pad, pad],
    ]
    assert batch["source_heads"].tolist() == [[2, 0, 2], [2, 0, -1], [0, -1, -1]]
    assert batch["source_heads_path"].endswith("train.heads.words") and batch["source_heads_complete"] is True
    assert dataset.sizes.tolist() == [3, 1, 2]


def test_what_is_missing_is_named(data):
    with pytest.raises(FileNotFoundError, match="there is no split valid"):
        task(data).load_dataset("valid")
    (data / "train.heads.words").write_text("2 0\n0\n2 0\n")
    with pytest.raises(ValueError, match="train.heads.words, line 1: 2 heads, but the source sentence has 3 words"):
        task(data).load_dataset("train")
    (data / "train.heads.words").unlink()
    with pytest.raises(FileNotFoundError, match="train.heads.words"):
        task(data).load_dataset("train")
    (data / "dict.words.txt").unlink()
    with pytest.raises(FileNotFoundError, match="give the folder from scripts/prepare/conllu.py"):
        task(data)
