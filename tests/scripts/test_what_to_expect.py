"""scripts/what_to_expect.py: scores and times of made-up results, and what of a quickstart is kept."""

import json

import pytest
from helpers_scripts import load_script

script = load_script("what_to_expect.py")
PLACE = "before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n"


def write(path, *contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(content) + "\n" for content in contents), encoding="utf-8")


@pytest.fixture
def experiments(tmp_path):
    run = {"machine": "two cores", "epochs": [{"seconds": 100}, {"seconds": 140}]}
    for seed, bleu in ((1, 34.0), (2, 35.5)):
        write(tmp_path / f"enja/results/char.paper.chain-{seed}.json", {**run, "test": {"test": {"bleu": bleu}}})
    answer = {"task": 2, "system": "chain", "setting": "published", "test_accuracy": 80.0, "seconds": 50.0}
    others = {**answer, "system": "memn2n"}, {**answer, "task": 3}
    write(tmp_path / "babi/results.jsonl", {**answer, "machine": "a"}, *others)
    return tmp_path


def test_means_of_runs_and_what_was_not_run_is_left_out(experiments):
    found = list(script.recipes(str(experiments), str(experiments / "no.json")))
    lines = script.table(found, linked=True).splitlines()
    assert lines[0] == "| recipe | score | training | runs | machine |"
    assert lines[2] == "| the commands above, on 48,000 of the pairs | 34.75 BLEU | 4 min | 2 | two cores |"
    assert lines[3] == "| [questions about stories: bAbI, task 2](docs/stories.md) | 80 % right | 50 s | 1 | a |"
    assert len(lines) == 4


def test_pages_have_their_own_line(experiments, tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/stories.md"):
        (tmp_path / page).write_text(PLACE)
    monkeypatch.setattr(script, "QUICKSTART", str(tmp_path / "no.json"))
    monkeypatch.setattr(script, "EXPERIMENTS", str(experiments))
    script.main(["--dest", str(tmp_path)])
    page = (tmp_path / "docs" / "stories.md").read_text(encoding="utf-8").splitlines()
    assert page[0] == "before" and page[-1] == "after" and len(page) == 7
    assert page[4].startswith("| questions about stories: bAbI, task 2 | 80 % right | ")
    assert len((tmp_path / "README.md").read_text(encoding="utf-8").splitlines()) == 8


def test_a_finished_quickstart_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "QUICKSTART", str(tmp_path / "kept.json"))
    write(tmp_path / "quickstart" / "bleu.json", {"bleu": 99.5, "signature": "s"})
    log = tmp_path / "quickstart" / "train.log"
    log.write_text("… | done training in 42.7 seconds\n", encoding="utf-8")
    script.keep_quickstart(str(tmp_path / "quickstart"))
    (recipe,) = script.recipes(str(tmp_path), str(tmp_path / "kept.json"))
    assert recipe.line(linked=False).startswith("| quickstart: ") and "| 99.5 BLEU | 43 s | 1 | " in recipe.line(True)
    log.write_text("half of it\n")
    with pytest.raises(script.InputError, match=r"train\.log: not a training from beginning to end"):
        script.keep_quickstart(str(tmp_path / "quickstart"))
