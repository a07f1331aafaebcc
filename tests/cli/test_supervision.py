"""The commands of docs/supervision.md, as they stand there, on the reversal corpus."""

import re
import shutil

import pytest
from documents import ROOT, commands

SIZES = (
    "encoder-embed-dim",
    "encoder-hidden-size",
    "decoder-embed-dim",
    "decoder-hidden-size",
    "decoder-out-embed-dim",
)
# What makes the page's trainings small.
SMALL = ["--cpu", "--no-epoch-checkpoints", "--max-epoch", "4", "--max-tokens", "300", "--lr", "0.02"]
SMALL += [word for size in SIZES for word in (f"--{size}", "24")]


def readme_commands(program):
    """The commands of the page that call `program`, split into words."""
    return [command for command in commands(ROOT / "docs" / "supervision.md") if command[0] == program]


def last_logged(output, name):
    """Values of `name` at the ends of the epochs of training, and of validation."""
    training = re.findall(rf"\| train \| .*?\| {name} ([0-9.]+)", output)
    validation = re.findall(rf"\| valid on .*?\| {name} ([0-9.]+)", output)
    return [float(value) for value in training], [float(value) for value in validation]


@pytest.fixture(scope="module")
def corpus(tiny_corpus, run_fairseq, tmp_path_factory):
    """A folder as the page's: sentences in de and en, their alignments and heads, and what is binarised of them."""
    folder = tmp_path_factory.mktemp("supervised")
    for split in ("train", "valid"):
        for ours, readme in (("src", "de"), ("tgt", "en")):
            shutil.copy(str(tiny_corpus.raw / f"{split}.{ours}"), str(folder / f"{split}.{readme}"))
        lengths = [len(line.split()) for line in (folder / f"{split}.de").read_text().splitlines()]
        # Every fifth sentence has no alignment.
        links = [" ".join(f"{n - 1 - i}-{i}" for i in range(n)) if k % 5 else "" for k, n in enumerate(lengths)]
        (folder / f"{split}.align").write_text("\n".join(links) + "\n")
        heads = [" ".join(map(str, range(n))) for n in lengths]
        (folder / f"{split}.heads").write_text("\n".join(heads) + "\n")
    (preprocess,) = readme_commands("fairseq-preprocess")
    run_fairseq("preprocess", *preprocess[1:], cwd=folder)
    (copy,) = readme_commands("cp")
    for split in ("train", "valid"):
        shutil.copy(*(str(folder / name.replace("train", split)) for name in copy[1:]))
    return folder


def train(run_fairseq, corpus, number, *more):
    command = readme_commands("fairseq-train")[number][1:]
    command[command.index("--user-dir") + 1] = ROOT / "fairseq_structattn"
    return run_fairseq("train", *command, *SMALL, *more, cwd=corpus)


@pytest.mark.slow
def test_guided_alignment_with_coverage(run_fairseq, corpus):
    coverage = ["--attention-coverage", "fertility", "--coverage-loss", "0.1", "--attention-entropy", "0.01"]
    output = train(run_fairseq, corpus, 0, *coverage)
    training, validation = last_logged(output, "guided_alignment")
    assert len(training) == len(validation) == 4
    assert training[-1] < training[0] and validation[-1] < validation[0]
    for name in ("coverage_loss", "attention_entropy"):
        assert [len(values) for values in last_logged(output, name)] == [4, 4]
    translated = run_fairseq(
        "generate", "bin", "--user-dir", ROOT / "fairseq_structattn", "--path", "guided/checkpoint_best.pt",
        "--gen-subset", "valid", "--cpu", "--print-alignment", "hard", cwd=corpus,
    )  # fmt: skip
    assert len(re.findall(r"^A-\d+", translated, re.MULTILINE)) == 20


@pytest.mark.slow
def test_tree_supervision(run_fairseq, corpus):
    training, validation = last_logged(train(run_fairseq, corpus, 1), "tree_supervision")
    assert len(training) == len(validation) == 4
    assert training[-1] < training[0] and validation[-1] < validation[0]
    translated = run_fairseq(
        "generate", "bin", "--user-dir", ROOT / "fairseq_structattn", "--path", "supervised/checkpoint_best.pt",
        "--gen-subset", "valid", "--cpu", cwd=corpus,
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+", translated, re.MULTILINE)) == 20


def test_a_crossing_tree_ends_the_training_with_its_line(run_fairseq, corpus, tmp_path):
    path = corpus / "bin" / "train.heads.de"
    before = path.read_text()
    lines = before.splitlines()
    number = next(k for k, line in enumerate(lines) if len(line.split()) == 4)
    lines[number] = "0 4 1 1"
    try:
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(RuntimeError, match=rf"train\.heads\.de, line {number + 1}: its arcs 1 → 3 and 4 → 2 cross"):
            train(run_fairseq, corpus, 1, "--save-dir", tmp_path)
    finally:
        path.write_text(before)
