"""scripts/experiments/long_sentences: how run.sh answers wrong calls, and the report of made-up runs."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from helpers_scripts import SCRIPTS, load_script

HERE = SCRIPTS / "experiments" / "long_sentences"
report = load_script("experiments/long_sentences/report.py")


def call(*arguments, **environment):
    settings = {**os.environ, "DATA": "", "PYTHON": "false", **environment}
    command = ["bash", str(HERE / "run.sh"), *map(str, arguments)]
    return subprocess.run(command, env=settings, capture_output=True, text=True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no train.lc.norm.tok.en in any folder: name it by DATA or --corpus"),
        (["nonsense"], "unknown system nonsense, choose from vanilla bahdanau luong_general crf"),
        (["--data", "x"], "unknown option --data"),
        (["--corpus"], "--corpus needs a value"),
    ],
)
def test_wrong_calls_are_answered(tmp_path, arguments, message):
    option = bool(arguments) and arguments[0].startswith("--")
    done = call(*([] if option else [tmp_path]), *arguments)
    assert done.returncode == (2 if option else 1) and message in done.stderr


def test_missing_files_of_the_corpus_are_named(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"train.lc.norm.tok.{language}").touch()
    for done in (call("--corpus", tmp_path, tmp_path / "work"), call(tmp_path / "work", DATA=str(tmp_path))):
        assert done.returncode == 1 and f"no val.lc.norm.tok.en in {tmp_path}" in done.stderr
        assert "https://github.com/multi30k/dataset" in done.stderr


def log(bleus):
    """As fairseq writes it: lines of text, and a record for each validation."""
    records = [{"epoch": 1, "wps": "5"}]
    records += [
        {"epoch": n, "valid_bleu": str(bleu), "valid_nll_loss": str(5 - n), "valid_num_updates": str(100 * n)}
        for n, bleu in enumerate(bleus, 1)
    ]
    return "Namespace()\n" + "".join(json.dumps(record) + "\n" for record in records)


def write(path: Path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def work(tmp_path):
    """Finished runs of two systems, one of which knows short sentences only, and one that is not finished."""
    rng = random.Random(3)
    for split, low, high in (("test", 5, 25), ("joined", 25, 80)):
        lengths = [rng.randint(low, high) for _ in range(80)]
        references = [" ".join(rng.choice("abcdefgh") for _ in range(length)) for length in lengths]
        write(tmp_path / "data" / f"{split}.en", references)
        write(tmp_path / "data" / f"{split}.de", references)
        for seed in (1, 2):
            knows = {"luong_general": 99, "vanilla": 12 + seed}
            for system, known in knows.items():
                write(
                    tmp_path / f"{system}-{seed}" / f"{split}.txt",
                    (f"H-{i}\t-1\t{' '.join(line.split()[:known])} x" for i, line in enumerate(references)),
                )
                (tmp_path / f"{system}-{seed}" / "train.log").write_text(log([10, 20 + seed, 15]))
    write(tmp_path / "crf-1" / "test.txt", ["unfinished"])
    return tmp_path


@pytest.fixture
def made(work, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    dest = tmp_path / "dest"
    write(dest / "README.md", ["before", "<!-- table: begin -->", "<!-- table: end -->", "after"])
    monkeypatch.setattr(report, "TESTED", report.TESTED._replace(samples=200))
    monkeypatch.setattr("sys.argv", ["report.py", str(work), "--command", "bash run.sh", "--dest", str(dest)])
    report.main()
    return dest


def test_report_has_both_test_sets_and_what_chose_the_checkpoint(work, made):
    rows = json.loads((made / "results.json").read_text(encoding="utf-8"))["rows"]
    found = {(row["system"], row["seed"], row["split"], row["metric"]): row["value"] for row in rows}
    assert {key[0] for key in found} == {"vanilla", "luong_general"}
    assert found["vanilla", 2, "valid", "bleu"] == 22 and found["vanilla", 2, "valid", "updates"] == 200
    assert found["vanilla", 1, "valid", "nll"] == 3
    assert found["luong_general", 1, "joined", "bleu@≥ 75"] > 90 > 40 > found["vanilla", 1, "joined", "bleu@≥ 75"]
    assert found["vanilla", 1, "test", "p@≥ 20"] < 0.05 and ("luong_general", 1, "test", "p@≥ 20") not in found
    counts = [value for key, value in found.items() if key[:3] == ("vanilla", 1, "test") and "sentences@" in key[3]]
    assert sum(counts) == 2 * 80  # of the buckets, and of all
    assert found["vanilla", 1, "joined", "lines"] == "H" and "200 trials" in found["vanilla", 1, "joined", "p_test"]
    lines = (made / "README.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "`bash run.sh`  " in lines
    assert any(line.startswith("| vanilla | 1, 2 | 21.5 | 3.00 | 200 |") for line in lines)
    spoken = [line.split("\t")[2] for line in (work / "vanilla-1" / "joined.txt").read_text().splitlines()]
    assert found["vanilla", 1, "joined", "repeated@all"] == report.repeated(spoken)
    assert found["vanilla", 1, "joined", "length_ratio@≥ 75"] < 0.2 < found["vanilla", 1, "joined", "length_ratio@< 30"]
    assert sum(line.startswith("| vanilla | ") for line in lines) == 4
    assert any("](test.png)" in line and "](joined.png)" in line for line in lines)
    assert (made / "test.png").stat().st_size > 5000 and (made / "joined.png").stat().st_size > 5000


def test_repeated_words_are_counted_within_a_translation():
    assert report.repeated(["a b c d a b c d", "a b c d", "x y"]) == round(100 * 1 / 6, 2)
    assert report.repeated(["a b"]) == 0


def test_work_without_a_finished_run_is_refused(tmp_path, monkeypatch):
    (tmp_path / "vanilla-1").mkdir()
    monkeypatch.setattr("sys.argv", ["report.py", str(tmp_path), "--dest", str(HERE)])
    with pytest.raises(SystemExit, match="no finished run"):
        report.main()


def test_log_without_validation_is_refused(tmp_path):
    (tmp_path / "train.log").write_text(log([]))
    with pytest.raises(ValueError, match="no validation was finished"):
        report.training(str(tmp_path / "train.log"))
