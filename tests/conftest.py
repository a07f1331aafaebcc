"""Fixtures shared by all tests: a tiny parallel corpus, and a way to run fairseq's commands."""

import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from fairseq_commands import FairseqCommands

# Tests run in several processes and their tensors are small: threads of one would only wait for those of the others.
# torch, which reads this when it is imported, is not imported yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Corpus(NamedTuple):
    """Where a parallel corpus lies: `raw/train.src` …, and its binarised form in `bin`."""

    raw: Path
    bin: Path
    source: str
    target: str


@pytest.fixture(scope="session")
def run_fairseq():
    """The function `run_fairseq(command, *args, stdin="", cwd=None, env=None)`, returning stdout and stderr as one."""
    commands = FairseqCommands()
    yield commands
    commands.close()


@pytest.fixture(scope="module")
def forked_python(run_fairseq):
    """``sys.executable`` starts programs in processes that have imported fairseq already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", run_fairseq.python)
        yield


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
def tiny_corpus(run_fairseq, tmp_path_factory):
    """A deterministic reversal corpus; 20 and 100 sentences are no multiples of fairseq's batch size multiple, 8."""
    root = tmp_path_factory.mktemp("corpus")
    corpus = Corpus(raw=root / "raw", bin=root / "bin", source="src", target="tgt")
    corpus.raw.mkdir()
    rng = random.Random(20)
    for split, count in (("train", 120), ("valid", 20), ("test", 100)):
        _write_split(corpus.raw / split, list(_reversal_pairs(rng, count)))
    run_fairseq(
        "preprocess", "--source-lang", corpus.source, "--target-lang", corpus.target,
        "--trainpref", corpus.raw / "train", "--validpref", corpus.raw / "valid", "--testpref", corpus.raw / "test",
        "--destdir", corpus.bin, "--joined-dictionary", "--workers", "1",
    )  # fmt: skip
    return corpus
