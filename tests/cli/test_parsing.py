"""The parser alone with fairseq's commands: CoNLL-U is prepared, learned, validated and scored."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from two_processes import check_processes_stay_equal_and_every_parameter_learns

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ("--user-dir", ROOT / "fairseq_structattn", "--task", "structattn_parsing")


def write_trees(path, count, seed):
    """A verb is the root; each noun hangs on it, each adjective on the noun behind it."""
    rng = random.Random(seed)
    with open(str(path), "w") as file:
        for _ in range(count):
            words = [word for _ in range(rng.randint(1, 3)) for word in [*rng.choices("xy", k=rng.randint(0, 2)), "n"]]
            words.insert(len(words), "v")
            heads = [len(words) if word == "n" else 0 if word == "v" else words.index("n", place) + 1
                     for place, word in enumerate(words)]  # fmt: skip
            for number, (word, head) in enumerate(zip(words, heads), 1):
                file.write(f"{number}\t{word}\t_\t_\t_\t_\t{head}\tdep\t_\t_\n")
            file.write("\n")


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    folder, call = tmp_path_factory.mktemp("treebank"), []
    for seed, (split, count) in enumerate((("train", 200), ("valid", 20), ("test", 20))):
        write_trees(folder / f"{split}.conllu", count, seed)
        call += [f"--{split}", str(folder / f"{split}.conllu")]
    script = [sys.executable, str(ROOT / "scripts" / "prepare" / "conllu.py")]
    subprocess.run([*script, *call, "--dest", str(folder)], check=True)
    return folder


@pytest.mark.slow
def test_from_trees_to_scores(treebank, tmp_path, run_fairseq):
    output = run_fairseq(
        "train", treebank / "bin", *PLUGIN, "--arch", "structattn_parser", "--embed-dim", "16", "--affixes",
        "--parser-hidden-size", "16", "--dropout", "0.1", "--criterion", "structattn_parsing", "--optimizer", "adam",
        "--lr", "0.01", "--max-tokens", "200", "--max-epoch", "6", "--best-checkpoint-metric", "uas",
        "--maximize-best-checkpoint-metric", "--save-dir", tmp_path / "parser", "--no-epoch-checkpoints", "--cpu",
        "--num-workers", "0", "--log-format", "json",
    )  # fmt: skip
    records = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"valid_uas"' in line]
    assert len(records) == 6 and float(records[-1]["valid_uas"]) > 80
    best = tmp_path / "parser" / "checkpoint_best.pt"
    script = [sys.executable, "-m", "fairseq_structattn.analysis.attachment_scores", "--path", str(best)]
    script += ["--data", str(treebank / "bin"), "--words", str(treebank / "test.words")]
    script += ["--heads", str(treebank / "test.heads.words"), "--output", str(tmp_path / "scores.json")]
    subprocess.run(script, check=True)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["risk"]["directed"] > 80 > scores["right-branching"]["directed"]
    script = [sys.executable, "-m", "fairseq_structattn.analysis.parse_sentences", "--path", str(best)]
    script += ["--data", str(treebank / "bin"), "--words", str(treebank / "test.words")]
    subprocess.run([*script, "--output", str(tmp_path / "heads")], check=True)
    found = [line.split() for line in (tmp_path / "heads").read_text().splitlines()]
    assert [len(line) for line in found] == [len(line.split()) for line in (treebank / "test.words").open()]


@pytest.mark.slow
def test_two_processes(treebank, tmp_path):
    options = [
        treebank / "bin", *PLUGIN, "--arch", "structattn_parser", "--embed-dim", 8, "--affixes",
        "--parser-hidden-size", 8, "--criterion", "structattn_parsing", "--optimizer", "adam", "--lr", 0.01,
        "--max-tokens", 100, "--max-update", 3, "--cpu", "--disable-validation", "--save-dir", tmp_path / "saved",
    ]  # fmt: skip
    check_processes_stay_equal_and_every_parameter_learns(options, "pytorch_ddp", tmp_path)
