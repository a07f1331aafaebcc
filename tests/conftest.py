"""Fixtures shared by all tests: a tiny parallel corpus, and a way to run fairseq's commands."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

# Tests run in several processes and their tensors are small: threads of one would only wait for those of the others.
# torch, which reads this when it is imported, is not imported yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")

OUTPUT_TAIL = 4000


class Corpus(NamedTuple):
    """Where a parallel corpus lies: `raw/train.src` …, and its binarised form in `bin`."""

    raw: Path
    bin: Path
    source: str
    target: str


def _run_fairseq(command, *args, stdin="", cwd=None, env=None):
    """Run fairseq's `command` ("train", "generate", "hydra_train" …) in a process of its own; return what it printed.

    A process per command, since fairseq keeps its registries, its logging and its hydra state in globals.
    """
    # On a machine with GPUs, --cpu alone does not keep fairseq from counting them as workers.
    settings = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    settings.update(env or {})
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_cli." + command] + [str(arg) for arg in args],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=None if cwd is None else str(cwd),
        env=settings,
    )
    if done.returncode != 0:
        tail = done.stdout[-OUTPUT_TAIL:]
        raise RuntimeError(f"fairseq {command} ended with {done.returncode}:\n{tail}")
    return done.stdout


@pytest.fixture(scope="session")
def run_fairseq():
    """The function `run_fairseq(command, *args, stdin="", cwd=None, env=None)`, returning stdout and stderr as one."""
    return _run_fairseq


def _write_split(prefix, pairs):
    for language, side in (("src", 0), ("tgt", 1)):
        text = "".join(" ".join(pair[side]) + "\n" for pair in pairs)
        Path(f"{prefix}.{language}").write_text(text, encoding="utf-8")


def _reversal_pairs(rng, count):
    """Sentences of one to eight words with their mirror images: learnable, and the right alignment is known."""
    words = [f"w{number:02d}" for number in range(20)]
    for _ in range(count):
        sentence = [rng.choice(words) for _ in range(rng.randint(1, 8))]
        yield sentence, sentence[::-1]


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """A deterministic reversal corpus; 20 and 100 sentences are no multiples of fairseq's batch size multiple, 8."""
    root = tmp_path_factory.mktemp("corpus")
    corpus = Corpus(raw=root / "raw", bin=root / "bin", source="src", target="tgt")
    corpus.raw.mkdir()
    rng = random.Random(20)
    for split, count in (("train", 120), ("valid", 20), ("test", 100)):
        _write_split(corpus.raw / split, list(_reversal_pairs(rng, count)))
    _run_fairseq(
        "preprocess", "--source-lang", corpus.source, "--target-lang", corpus.target,
        "--trainpref", corpus.raw / "train", "--validpref", corpus.raw / "valid", "--testpref", corpus.raw / "test",
        "--destdir", corpus.bin, "--joined-dictionary", "--workers", "1",
    )  # fmt: skip
    return corpus
