"""Labelled pairs of sentences: what is read, what is refused in it, and what batches hold."""

from argparse import Namespace

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.tasks import TASK_REGISTRY

import fairseq_structattn  # noqa: F401  (registers the task)

PAIRS = [("a dog runs", "a dog", "yes"), ("a cat", "a cat sleeps here", "no"), ("dog", "", "yes")]
HEADS = {"premise": ["2 3 0", "2 0", "0"], "hypothesis": ["2 0", "2 3 0 -1", ""]}


@pytest.fixture
def data(tmp_path):
    """A folder as scripts/prepare/snli.py writes it."""
    words, labels = Dictionary(), Dictionary()
    for pair in PAIRS:
        for side in pair[:2]:
            words.encode_line(side, append_eos=False, add_if_not_exist=True)
        labels.add_symbol(pair[2])
    words.save(str(tmp_path / "dict.premise.txt"))
    labels.save(str(tmp_path / "dict.label.txt"))
    for split in ("train", "valid"):
        for place, side in enumerate(("premise", "hypothesis")):
            prefix = str(tmp_path / f"{split}.premise-hypothesis.{side}")
            builder = MMapIndexedDatasetBuilder(prefix + ".bin", dtype=np.int32)
            for pair in PAIRS:
                builder.add_item(words.encode_line(pair[place], add_if_not_exist=False))
            builder.finalize(prefix + ".idx")
        (tmp_path / f"{split}.label").write_text("".join(pair[2] + "\n" for pair in PAIRS))
    return tmp_path


def task(data, **options):
    settings = {"data": str(data), "load_heads": False, "max_positions": 10, "dataset_impl": None, **options}
    return TASK_REGISTRY["structattn_sentence_pair"].setup_task(Namespace(**settings))


def write_heads(data, split="train", **changes):
    for side, lines in {**HEADS, **changes}.items():
        (data / f"{split}.heads.{side}").write_text("".join(line + "\n" for line in lines))


def test_a_batch(data):
    made = task(data)
    made.load_dataset("train")
    dataset = made.dataset("train")
    batch = dataset.collater([dataset[index] for index in (1, 2, 0)])
    words, pad = made.source_dictionary, made.source_dictionary.pad()
    expected = {"premise": [["a", "cat"], ["dog"], ["a", "dog", "runs"]]}
    expected["hypothesis"] = [["a", "cat", "sleeps", "here"], [], ["a", "dog"]]
    for side, sentences in expected.items():
        rows = [[words.index(word) for word in sentence] for sentence in sentences]
        width = max(map(len, rows))
        assert batch["net_input"][side].tolist() == [row + [pad] * (width - len(row)) for row in rows]
    assert batch["target"].tolist() == [1, 0, 0] and batch["id"].tolist() == [1, 2, 0]
    assert (batch["nsentences"], batch["ntokens"]) == (3, 12)
    assert "premise_heads" not in batch["net_input"] and "heads_path" not in batch
    assert dataset.collater([]) == {}


def test_heads_of_both_sides(data):
    write_heads(data)
    made = task(data, load_heads=True)
    made.load_dataset("train")
    made.load_dataset("valid")
    train, valid = made.dataset("train"), made.dataset("valid")
    batch = train.collater([train[index] for index in (1, 2)])
    assert batch["net_input"]["premise_heads"].tolist() == [[2, 0], [0, -1]]
    assert batch["net_input"]["hypothesis_heads"].tolist() == [[2, 3, 0, -1], [-1] * 4]
    assert [path.rsplit("/", 1)[1] for path in batch["heads_path"]] == ["train.heads.premise", "train.heads.hypothesis"]
    assert batch["heads_complete"] == [True, False]
    assert "heads_path" not in valid.collater([valid[0]])


def test_sizes_and_batches(data):
    made = task(data)
    made.load_dataset("train")
    dataset = made.dataset("train")
    assert [dataset.size(index) for index in range(3)] == [(3, 2), (2, 4), (1, 0)]
    assert [dataset.num_tokens(index) for index in range(3)] == dataset.num_tokens_vec([0, 1, 2]).tolist() == [4, 5, 2]
    with data_utils.numpy_seed(1):
        assert dataset.ordered_indices().tolist() == [2, 0, 1]
    kept, left_out = dataset.filter_indices_by_size(dataset.ordered_indices(), (3, 3))
    assert kept.tolist() == [2, 0] and left_out == [1]
    batches = made.get_batch_iterator(dataset, max_tokens=10, max_positions=(10, 10)).next_epoch_itr(shuffle=False)
    assert sorted(index for batch in batches for index in batch["id"].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda data: (data / "train.label").write_text("yes\nmaybe\nyes\n"),
            "train.label, line 2: 'maybe' is no label",
        ),
        (
            lambda data: (data / "train.label").write_text("yes\nno\n"),
            "train.label: 2 lines, but the data has 3 premises",
        ),
        (lambda data: write_heads(data, premise=["2 3 0", "2 3", "0"]), "train.heads.premise, line 2: head 3"),
        (lambda data: write_heads(data, hypothesis=["0", "2 3 0 -1", ""]), "train.heads.hypothesis, line 1: 1 heads"),
        (lambda data: (data / "dict.label.txt").write_text("yes 3\n"), "dict.label.txt: fewer than two labels"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(data, change, message):
    write_heads(data)
    change(data)
    with pytest.raises(ValueError) as error:
        task(data, load_heads=True).load_dataset("train")
    assert message in str(error.value)


def test_what_is_missing_is_named(data):
    with pytest.raises(FileNotFoundError, match="there is no split test"):
        task(data).load_dataset("test")
    with pytest.raises(FileNotFoundError, match="--load-heads: no file .*train.heads.premise"):
        task(data, load_heads=True).load_dataset("train")
    (data / "dict.label.txt").unlink()
    with pytest.raises(
        FileNotFoundError, match="no file .*dict.label.txt: give the folder from scripts/prepare/snli.py"
    ):
        task(data)


def test_the_number_of_the_epoch_is_kept(data):
    made = task(data)
    made.begin_epoch(3, None)
    assert made.epoch == 3
    assert made.target_dictionary is made.source_dictionary and made.max_positions() == (10, 10)
