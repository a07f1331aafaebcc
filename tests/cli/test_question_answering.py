"""Questions about generated stories, from raw files to what is selected: fairseq-train, -validate, and the README."""

import itertools
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import checkpoint_utils

import fairseq_structattn  # noqa: F401  (repairs the loading of checkpoints)

ROOT = Path(__file__).resolve().parents[2]
from helpers_scripts import load_script  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_python")

PACKAGE = ROOT / "fairseq_structattn"
PEOPLE, PLACES, THINGS = ("Ann", "Bob", "Cid"), ("hall", "yard", "attic"), ("milk", "ball")


def stories(seed, count):
    """Someone takes a thing and goes somewhere: where is it? Two facts lead to the answer, others stand between."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        people, things = chance.sample(PEOPLE, 2), chance.sample(THINGS, 2)
        facts = [f"{who} took the {what}." for who, what in zip(people, things)]
        facts += [f"{who} went to the {where}." for who, where in zip(people, chance.sample(PLACES, 2))]
        order = chance.sample(facts[:2], 2) + chance.sample(facts[2:], 2)
        asked = chance.randrange(2)
        lines += [f"{number} {fact}" for number, fact in enumerate(order, 1)]
        place = facts[2 + asked].split()[-1].rstrip(".")
        supporting = " ".join(str(order.index(facts[part + asked]) + 1) for part in (0, 2))
        lines.append(f"5 Where is the {things[asked]}? \t{place}\t{supporting}")
    return "".join(line + "\n" for line in lines)


def training(data, folder, arch, *options):
    return (
        "train", data, "--user-dir", PACKAGE, "--task", "structattn_babi", "--arch", arch, "--save-dir", folder,
        "--criterion", "structattn_question_answering", "--optimizer", "sgd", "--lr", "0.5", "--clip-norm", "2",
        "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric", "--no-epoch-checkpoints",
        "--batch-size", "20", "--required-batch-size-multiple", "1", "--num-workers", "0", "--cpu",
        "--log-format", "simple", *options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("babi")
    for split, seed, count in (("train", 1, 600), ("test", 2, 100)):
        (root / f"qa2_made_{split}.txt").write_text(stories(seed, count))
    load_script("prepare/babi.py").main(["--corpus", str(root), "--task", "2", "--dest", str(root / "data")])
    return root / "data"


@pytest.fixture(scope="module")
def trained(run_fairseq, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    run_fairseq(*training(data, folder, "structattn_memn2n_chain", "--max-epoch", "40"))
    return folder / "checkpoint_best.pt"


def test_chain_learns_answers_and_finds_the_facts_that_it_was_not_told(run_fairseq, data, trained):
    log = run_fairseq(
        "validate", data, "--user-dir", PACKAGE, "--task", "structattn_babi", "--path", trained, "--batch-size", "30",
        "--valid-subset", "test", "--required-batch-size-multiple", "1", "--cpu",
    )  # fmt: skip
    found = {name: float(value) for name, value in re.findall(r"\| (\w*accuracy) ([0-9.]+)", log.splitlines()[-1])}
    assert found["accuracy"] > 95
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained)])
    task.load_dataset("test")
    batch = task.dataset("test").collater(list(range(100)))
    facts = model.eval()(**batch["net_input"])[1].facts
    exact = (facts == batch["supporting"]).all(1).double().mean()
    assert found["fact_accuracy"] == pytest.approx(100 * float(exact))
    # Answers do not tell which of the two facts comes first.
    either = facts.sort(1).values == batch["supporting"].sort(1).values
    assert either.all(1).double().mean() > 0.7


@pytest.mark.slow
def test_resumed_training_ends_bit_for_bit_like_an_uninterrupted_one(run_fairseq, data, tmp_path):
    options = ("--linear-start-epochs", "2")
    run_fairseq(*training(data, tmp_path / "whole", "structattn_memn2n", *options, "--max-epoch", "4"))
    for stop in (("--max-update", "20"), ("--max-epoch", "3"), ("--max-epoch", "4")):
        run_fairseq(*training(data, tmp_path / "parts", "structattn_memn2n", *options, *stop))
    whole, parts = (
        torch.load(str(tmp_path / name / "checkpoint_last.pt"), weights_only=False)["model"]
        for name in ("whole", "parts")
    )
    assert not whole["linear"]
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name


def test_readme(trained):
    text = (ROOT / "scripts" / "experiments" / "babi" / "README.md").read_text(encoding="utf-8")
    lines = text.split("From Python:\n\n")[1].split("\n")
    indented = itertools.takewhile(lambda line: line.startswith("    ") or not line, lines)
    program = "\n".join(line[4:] for line in indented)
    program = program.replace("babi/chain/checkpoint_best.pt", str(trained))
    done = subprocess.run([sys.executable, "-c", program], cwd=str(ROOT), stdout=subprocess.PIPE, text=True, check=True)
    printed = done.stdout.splitlines()
    assert len([line for line in printed if re.match(r"ann|bob|cid", line)]) == 2 and printed[-1] in PLACES
