"""Data in several folders: what supervises is checked in all of them at once."""

import shutil
from argparse import Namespace

import pytest
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationConfig

from fairseq_structattn.criterions.checked_data import CheckedData
from fairseq_structattn.criterions.given_trees import check_trees
from fairseq_structattn.criterions.shards import shards
from fairseq_structattn.distributions import ProjectiveTree


@pytest.fixture
def task(tiny_corpus, tmp_path):
    """With heads in two folders; in the second two words of a sentence have each other for a head."""
    lines = (tiny_corpus.raw / "train.src").read_text().splitlines()
    heads = [list(range(len(line.split()))) for line in lines]
    wrong = next(number for number, line in enumerate(heads) if len(line) > 1)
    for folder in ("first", "second"):
        shutil.copytree(str(tiny_corpus.bin), str(tmp_path / folder))
        (tmp_path / folder / "train.heads.src").write_text("".join(" ".join(map(str, line)) + "\n" for line in heads))
        heads[wrong][0] = 2
    cfg = TranslationConfig()
    settings = {name: getattr(cfg, name) for name in cfg.__dataclass_fields__}
    data = f"{tmp_path / 'first'}:{tmp_path / 'second'}"
    settings.update(data=data, train_subset="train", dataset_impl=None, required_seq_len_multiple=1, load_heads=True)
    made = TASK_REGISTRY["structattn_translation"].setup_task(Namespace(**settings))
    made.load_dataset("train", epoch=1, combine=True)
    return made, wrong + 1


def test_all_folders_are_looked_at_before_the_first_update(task):
    task, line = task
    loaded = task.datasets["train"]
    with pytest.raises(ValueError, match=rf"second/train\.heads\.src, line {line}: its arcs go round in a circle"):
        for _, data in CheckedData(task).unseen():
            check_trees(data, ProjectiveTree(loaded.heads[0].new_zeros(1, 2, 1).float()))
    assert task.datasets == {"train": loaded}


def test_one_folder_is_not_loaded_again(task):
    task, _ = task
    assert len(list(shards(task))) == 2
    task.cfg.data = task.cfg.data.split(":")[0]
    assert not list(shards(task)) and not list(shards(Namespace(cfg=task.cfg)))
