"""Pairs of sentences with fairseq's commands: prepared, trained with given trees at first, validated."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from two_processes import check_processes_stay_equal_and_every_parameter_learns

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = "--embed-dim 8 --hidden-size 8 --parser-hidden-size 4 --init-std 0.3 --dropout 0".split()


def write_pairs(folder, split, count, seed):
    """A pair is alike if its first words are the same; each word hangs on the one before it."""
    rng = random.Random(seed)
    lines = {"premise": [], "hypothesis": [], "label": []}
    for _ in range(count):
        sides = [[rng.choice("abc"), *rng.choices("uvw", k=rng.randint(0, 3))] for _ in range(2)]
        lines["premise"].append(" ".join(sides[0]))
        lines["hypothesis"].append(" ".join(sides[1]))
        lines["label"].append("same" if sides[0][0] == sides[1][0] else "other")
    for name, written in lines.items():
        (folder / f"{split}.{name}").write_text("\n".join(written) + "\n")
    return ",".join(str(folder / f"{split}.{name}") for name in lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "raw").mkdir()
    sources = [write_pairs(folder / "raw", *split) for split in (("train", 200, 1), ("valid", 30, 2), ("test", 30, 3))]
    call = [word for pair in zip(("--train", "--valid", "--test"), sources) for word in pair]
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "prepare" / "snli.py"), *call, "--dest", str(folder)], check=True
    )
    for side in ("premise", "hypothesis"):
        sentences = (folder / f"train.{side}").read_text().splitlines()
        heads = [" ".join(map(str, range(len(sentence.split())))) for sentence in sentences]
        (folder / "bin" / f"train.heads.{side}").write_text("\n".join(heads) + "\n")
    return folder / "bin"


@pytest.mark.slow
def test_training_and_validation(data, tmp_path, run_fairseq):
    output = run_fairseq(
        "train", data, "--user-dir", ROOT / "fairseq_structattn", "--task", "structattn_sentence_pair", "--load-heads",
        "--arch", "structattn_decomposable_tree", *OPTIONS, "--criterion", "structattn_sentence_pair",
        "--tree-supervision", "0.1", "--tree-supervision-epochs", "2", "--optimizer", "adam", "--lr", "0.02",
        "--batch-size", "20", "--max-epoch", "6", "--best-checkpoint-metric", "accuracy",
        "--maximize-best-checkpoint-metric", "--save-dir", tmp_path, "--no-epoch-checkpoints", "--cpu",
        "--num-workers", "0", "--log-format", "json",
    )  # fmt: skip
    records = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"train_accuracy"' in line]
    assert len(records) == 6
    # What counted before stays in the log of fairseq, as nothing.
    assert [float(record["train_tree_supervision"] or 0) > 0 for record in records] == [True] * 2 + [False] * 4
    assert float(records[-1]["train_label_loss"]) < 0.8 * float(records[0]["train_label_loss"])
    output = run_fairseq(
        "validate", data, "--user-dir", ROOT / "fairseq_structattn", "--task", "structattn_sentence_pair",
        "--path", tmp_path / "checkpoint_best.pt", "--valid-subset", "test", "--batch-size", "30", "--cpu",
        "--log-format", "json",
    )  # fmt: skip
    (record,) = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"test_accuracy"' in line]
    assert 50 < float(record["test_accuracy"]) <= 100


@pytest.mark.slow
def test_two_processes(data, tmp_path):
    options = [
        data, "--user-dir", ROOT / "fairseq_structattn", "--task", "structattn_sentence_pair", "--load-heads", *OPTIONS,
        "--arch", "structattn_decomposable_tree", "--arc-score", "biaffine", "--criterion", "structattn_sentence_pair",
        "--tree-supervision", "0.1", "--optimizer", "structattn_adagrad", "--lr", "0.02", "--batch-size", "10",
        "--max-update", "3", "--cpu", "--disable-validation", "--save-dir", tmp_path / "saved",
    ]  # fmt: skip
    check_processes_stay_equal_and_every_parameter_learns(options, "pytorch_ddp", tmp_path)
