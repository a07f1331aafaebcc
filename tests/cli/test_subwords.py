"""Subwords of sentencepiece, from raw text to a model that somebody else can use; BLEU is sacrebleu's all the way."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple

import pytest

pytest.importorskip("fairseq")
sentencepiece = pytest.importorskip("sentencepiece")

import sacrebleu  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_python")

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "fairseq_structattn"
SIZES = "--encoder-embed-dim 32 --encoder-hidden-size 32 --encoder-layers 1 --decoder-embed-dim 32"
SIZES += " --decoder-hidden-size 32 --decoder-layers 1 --decoder-out-embed-dim 32"
NUMBERS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}

# One process: most of the time of a command goes into importing fairseq.
DRIVER = """
import contextlib, importlib, json, sys
for job in json.load(sys.stdin):
    sys.argv = [job["command"]] + job["args"]
    with open(job["output"], "w") as output, contextlib.redirect_stdout(output):
        importlib.import_module("fairseq_cli." + job["command"]).cli_main()
"""


class Project(NamedTuple):
    """A corpus in raw text, what was made of it, and the folder of a model trained on it."""

    raw: Path
    data: Path
    model: Path

    def lines(self, name: str) -> List[str]:
        return (self.raw / name).read_text(encoding="utf-8").splitlines()


def write_corpus(folder: Path) -> None:
    """Counting aloud: raw text, with capitals, commas and full stops stuck to the words."""
    rng = random.Random(7)
    folder.mkdir()
    for split, count in (("train", 200), ("valid", 10), ("test", 30)):
        pairs = [[rng.choice(list(NUMBERS)) for _ in range(rng.randint(2, 5))] for _ in range(count)]
        german = [", ".join(words).capitalize() + "." for words in pairs]
        english = [", ".join(NUMBERS[word] for word in words).capitalize() + "." for words in pairs]
        (folder / f"{split}.de").write_text("\n".join(german) + "\n", encoding="utf-8")
        (folder / f"{split}.en").write_text("\n".join(english) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory, run_fairseq):
    root = tmp_path_factory.mktemp("subwords")
    project = Project(root / "raw", root / "data", root / "model")
    write_corpus(project.raw)
    command = [sys.executable, str(REPOSITORY / "scripts" / "prepare" / "parallel_corpus.py")]
    command += [
        "--source-lang",
        "de",
        "--target-lang",
        "en",
        "--dest",
        str(project.data),
        "--joint-sentencepiece",
        "50",
    ]
    command += ["--character-coverage", "1.0"]
    for split in ("train", "valid", "test"):
        command += [f"--{split}", str(project.raw / split)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run_fairseq(
        "train", project.data / "bin", "--source-lang", "de", "--target-lang", "en", "--user-dir", PACKAGE,
        "--arch", "structattn_rnn_crf", *SIZES.split(),
        "--encoder-bidirectional", "--decoder-start", "bridge", "--optimizer", "adam", "--lr", "0.02",
        "--batch-size", "8", "--max-epoch", "15", "--clip-norm", "1", "--cpu", "--dropout", "0",
        "--criterion", "structattn_label_smoothed_cross_entropy", "--no-epoch-checkpoints", "--disable-validation",
        "--save-dir", project.model,
    )  # fmt: skip
    return project


@pytest.fixture(scope="module")
def outputs(project, tmp_path_factory) -> Dict[str, str]:
    """What fairseq-generate and fairseq-interactive print, in three ways to come to words."""
    folder = tmp_path_factory.mktemp("outputs")
    bin_dir, model = str(project.data / "bin"), ["--path", str(project.model / "checkpoint_last.pt"), "--cpu"]
    model += ["--user-dir", str(PACKAGE), "--beam", "3", "--max-len-b", "30"]
    pieces = ["--bpe", "sentencepiece", "--sentencepiece-model", str(project.data / "sentencepiece.model")]
    calls = {
        "removed": ("generate", ["--remove-bpe", "sentencepiece", "--scoring", "sacrebleu"]),
        "decoded": ("generate", [*pieces, "--scoring", "sacrebleu"]),
        "interactive": ("interactive", [*pieces, "--input", str(project.raw / "test.de")]),
    }
    jobs = [
        {"command": command, "args": [bin_dir, *model, *extra], "output": str(folder / name)}
        for name, (command, extra) in calls.items()
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(jobs),
        text=True,
        check=True,
        env=environment,
        capture_output=True,
    )
    return {name: (folder / name).read_text(encoding="utf-8") for name in calls}


def translations(output: str, letter: str) -> List[str]:
    found = re.findall(rf"^{letter}-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    return [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]


def test_dictionaries_hold_the_pieces_of_the_model_and_no_others(project):
    model = sentencepiece.SentencePieceProcessor(model_file=str(project.data / "sentencepiece.model"))
    pieces = {model.id_to_piece(number) for number in range(50)} - {"<unk>", "<s>", "</s>"}
    counted = [line.split(" ") for line in (project.data / "bin" / "dict.en.txt").read_text("utf-8").splitlines()]
    assert {piece for piece, _ in counted if not piece.startswith("madeupword")} == pieces
    counts = [int(count) for _, count in counted]
    assert counts == sorted(counts, reverse=True)
    assert (project.data / "bin" / "dict.de.txt").read_bytes() == (project.data / "bin" / "dict.en.txt").read_bytes()
    text = (project.data / "train.en").read_text("utf-8").split() + (project.data / "train.de").read_text(
        "utf-8"
    ).split()
    assert counted[0] == [max(set(text), key=text.count), str(max(map(text.count, set(text))))]


def test_every_way_to_words_gives_the_same_translations(project, outputs):
    words = translations(outputs["removed"], "H")
    assert len(words) == 30 and any(", " in line for line in words) and not any("\u2581" in line for line in words)
    assert translations(outputs["decoded"], "D") == words
    assert translations(outputs["interactive"], "D") == words


def test_fairseq_and_score_bleu_agree_with_sacrebleu_by_hand(project, outputs, tmp_path):
    by_hand = sacrebleu.corpus_bleu(translations(outputs["removed"], "H"), [project.lines("test.en")])
    assert 0 < by_hand.score < 100
    for name in ("removed", "decoded"):
        printed = re.search(r"beam=3: BLEU = ([\d.]+) ([\d./]+)", outputs[name])
        precisions = "/".join(f"{precision:.1f}" for precision in by_hand.precisions)
        assert printed.groups() == (f"{by_hand.score:.2f}", precisions)
        (tmp_path / name).write_text(outputs[name], encoding="utf-8")
        command = [sys.executable, "-m", "fairseq_structattn.analysis.score_bleu"]
        command += ["--generated", str(tmp_path / name), "--reference", str(project.raw / "test.en")]
        command += ["--output", str(tmp_path / "bleu.json")]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads((tmp_path / "bleu.json").read_text())
        assert found["bleu"] == round(by_hand.score, 2) and found["details"] == str(by_hand)
        assert done.stdout.startswith(f"BLEU {by_hand.score:.2f} on 30 sentences")


def test_a_folder_translates_raw_text_wherever_it_lies(project, outputs, tmp_path):
    """Checkpoint, dictionaries and sentencepiece in one folder; all that it was made from is gone."""
    made = tmp_path / "made"
    made.mkdir()
    shutil.copy(project.model / "checkpoint_last.pt", made / "model.pt")
    for language in ("de", "en"):
        shutil.copy(project.data / "bin" / f"dict.{language}.txt", made)
    shutil.copy(project.data / "sentencepiece.model", made / "sentencepiece.bpe.model")
    moved = tmp_path / "elsewhere" / "release"
    moved.parent.mkdir()
    made.rename(moved)
    hidden = project.data.rename(tmp_path / "hidden")
    try:
        translate = (
            "import json, sys\n"
            "from fairseq_structattn.models import StructuredAttentionRNN\n"
            "model = StructuredAttentionRNN.from_pretrained(sys.argv[1], bpe='sentencepiece')\n"
            "print('translations', json.dumps(model.translate(json.load(sys.stdin), beam=3, max_len_b=30)))\n"
        )
        settings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
        sources = json.dumps(project.lines("test.de"))
        done = subprocess.run(
            [sys.executable, "-c", translate, str(moved)],
            input=sources, stdout=subprocess.PIPE, text=True, cwd=str(tmp_path), env=settings, check=True,
        )  # fmt: skip
    finally:
        hidden.rename(project.data)
    line = next(line for line in done.stdout.splitlines() if line.startswith("translations "))
    assert json.loads(line[len("translations ") :]) == translations(outputs["removed"], "H")
