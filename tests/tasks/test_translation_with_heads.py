"""Heads of source words: the file beside the data, what is refused in it, and where they end in batches."""

import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig

import fairseq_structattn  # noqa: F401  (registers the task)
from fairseq_structattn.tasks.source_heads import SourceHeads


def read(tmp_path, text, words):
    path = tmp_path / "train.heads.src"
    path.write_text(text)
    return SourceHeads(str(path), words)


def test_heads_of_a_file(tmp_path):
    heads = read(tmp_path, "2 0\n\n-1  3 0\n", [2, 0, 3])
    assert [heads[index].tolist() for index in range(len(heads))] == [[2, 0], [], [-1, 3, 0]]


@pytest.mark.parametrize(
    "text, message",
    [
        ("2 0\n1 x 0\n", "line 2: '1 x 0' has something else than whole numbers"),
        ("2 0\n2 1.5 0\n", "line 2: '2 1.5 0' has something else than whole numbers"),
        ("2 0\n2 0\n", "line 2: 2 heads, but the source sentence has 3 words"),
        ("2 0\n0 4 1\n", "line 2: head 4; heads of 3 words lie between -1 and 3"),
        ("2 -2\n0 1 1\n", "line 1: head -2; heads of 2 words lie between -1 and 2"),
        ("2 0\n0 2 1\n", "line 2: word 2 is its own head"),
        ("2 0\n", "1 lines, but the data has 2 sentences"),
        ("2 0\n0 1 1\n\n", "3 lines, but the data has 2 sentences"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ValueError, match="train.heads.src") as error:
        read(tmp_path, text, [2, 3])
    assert message in str(error.value)


def test_bytes_that_are_no_heads(tmp_path):
    path = tmp_path / "train.heads.src"
    path.write_bytes(b"\xef\xbb\xbf2 0\r\n0\r\n")
    assert SourceHeads(str(path), [2, 1]).flat.tolist() == [2, 0, 0]
    path.write_bytes(b"2 0\n\xff\xfe\n")
    with pytest.raises(ValueError, match="train.heads.src, line 2: .* has something else than whole numbers"):
        SourceHeads(str(path), [2, 1])


@pytest.fixture
def data(tiny_corpus, tmp_path):
    """The corpus with heads for training: word k hangs on word k − 1."""
    shutil.copytree(str(tiny_corpus.bin), str(tmp_path / "bin"))
    lines = (tiny_corpus.raw / "train.src").read_text().splitlines()
    heads = [" ".join(map(str, range(len(line.split())))) for line in lines]
    (tmp_path / "bin" / "train.heads.src").write_text("\n".join(heads) + "\n")
    return tmp_path / "bin"


def task(data, **options):
    cfg = TranslationConfig()
    settings = {name: getattr(cfg, name) for name in cfg.__dataclass_fields__}
    settings.update(
        data=str(data), train_subset="train", dataset_impl=None, required_seq_len_multiple=1, load_heads=True
    )
    return TASK_REGISTRY["structattn_translation"].setup_task(Namespace(**{**settings, **options}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"left_pad_source": False},
        {"num_batch_buckets": 3},
        {"required_seq_len_multiple": 8},
        {"truncate_source": True, "max_source_positions": 9},
    ],
)
def test_batches_have_the_heads_of_their_sentences(data, options):
    made = task(data, **options)
    made.load_dataset("train")
    dataset = made.dataset("train")
    batches = [batch for batch in made.get_batch_iterator(dataset, max_tokens=200).next_epoch_itr(shuffle=False)]
    assert sum(batch["nsentences"] for batch in batches) == 120
    for batch in batches:
        assert batch["source_heads_path"].endswith("train.heads.src") and batch["source_heads_complete"] is True
        words = batch["net_input"]["src_tokens"].ne(made.source_dictionary.pad()).sum(1) - 1
        assert batch["source_heads"].shape == (batch["nsentences"], words.max())
        expected = torch.arange(int(words.max())).expand_as(batch["source_heads"])
        padding = torch.arange(int(words.max())) >= words.unsqueeze(1)
        assert torch.equal(batch["source_heads"], expected.masked_fill(padding, -1))


@pytest.mark.parametrize("options", [{}, {"left_pad_source": False}, {"num_batch_buckets": 3}])
def test_heads_are_cut_with_their_sentences(data, options):
    lines = (data / "train.heads.src").read_text().splitlines()
    # The last word, which may be cut off, is the head of the first.
    lines = [" ".join([str(len(words)), *words[1:]]) if len(words) > 1 else "0" for words in map(str.split, lines)]
    (data / "train.heads.src").write_text("\n".join(lines) + "\n")
    made = task(data, truncate_source=True, max_source_positions=5, **options)
    made.load_dataset("train")
    dataset = made.dataset("train")
    for index, line in enumerate(lines):
        heads, kept = [int(head) for head in line.split()], min(len(line.split()), 4)
        batch = dataset.collater([dataset[index]])
        assert batch["net_input"]["src_tokens"].ne(made.source_dictionary.pad()).sum() == kept + 1
        assert batch["source_heads"].tolist() == [[head if head <= kept else -1 for head in heads[:kept]]]


def test_heads_of_data_in_several_files_are_refused(data):
    for path in list(data.glob("train.src-tgt.*")):
        shutil.copy(str(path), str(path).replace("train.src-tgt", "train1.src-tgt"))
    with pytest.raises(ValueError, match=r"--load-heads: the data of train lies in several files \(train, train1"):
        task(data, upsample_primary=2).load_dataset("train", combine=True)


def test_shards_have_their_own_heads(data, tmp_path):
    shutil.copytree(str(data), str(tmp_path / "second"))
    (tmp_path / "second" / "train.heads.src").write_text((data / "train.heads.src").read_text().replace("1", "-1"))
    made = task(f"{data}:{tmp_path / 'second'}")
    for epoch, path in ((1, data), (2, tmp_path / "second"), (3, data)):
        made.load_dataset("train", epoch=epoch)
        assert made.dataset("train").heads.path == str(path / "train.heads.src")


def test_only_the_split_to_train_on_needs_them(data):
    made = task(data)
    made.load_dataset("valid")
    assert "source_heads" not in made.dataset("valid").collater([made.dataset("valid")[0]])
    (data / "train.heads.src").unlink()
    with pytest.raises(FileNotFoundError, match="--load-heads: no file .*train.heads.src"):
        made.load_dataset("train")


def test_without_the_option_it_is_fairseqs_task(data):
    made = task(data, load_heads=False)
    made.load_dataset("train")
    assert "source_heads" not in made.dataset("train").collater([made.dataset("train")[0]])


def test_a_task_that_comes_with_a_checkpoint_does_without_heads(data):
    (data / "train.heads.src").unlink()
    made = task(data)
    with pytest.raises(FileNotFoundError, match="--load-heads: no file"):
        made.load_dataset("train")
    loaded = type(made).setup_task(made.cfg, from_checkpoint=True)
    loaded.load_dataset("train")
    assert len(loaded.dataset("train")) == 120
