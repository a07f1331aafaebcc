"""scripts/experiments/babi: what is trained and what is not made again, and what of it is reported."""

import json
import subprocess

import pytest
from helpers_scripts import SCRIPTS, load_script

HERE = SCRIPTS / "experiments" / "babi"
report = load_script("experiments/babi/report.py")
trainings = load_script("experiments/babi/trainings.py")


def row(task=2, system="chain", setting="published", seed=1, valid=90.0, loss=1.0, test=80.0, facts=50.0, **others):
    return {
        **{"task": task, "system": system, "setting": setting, "seed": seed, "fingerprint": "f"},
        **{"valid_accuracy": valid, "valid_loss": loss, "test_accuracy": test, "test_fact_accuracy": facts},
        **{"command": "bash run.sh", "versions": {"torch": "2"}, "machine": "a machine", "seconds": 9.0, **others},
    }


def test_the_start_is_chosen_on_held_out_questions_and_facts_are_means_of_the_better_half():
    starts = [
        row(seed=1, valid=90.0, loss=0.5, test=70.0, facts=10.0),
        row(seed=2, valid=92.0, loss=0.9, test=60.0, facts=20.0),
        row(seed=3, valid=92.0, loss=0.8, test=65.0, facts=40.0),
        row(seed=4, valid=80.0, loss=0.1, test=99.0, facts=99.0),
    ]
    assert report.reported(starts, 2) == (65.0, 30.0, 4)
    assert report.reported(starts[:1], 2) == (70.0, 10.0, 1)
    assert report.reported([], 2) == (None, None, 0)
    assert report.reported(starts, 7) == (65.0, None, 4)


def test_published_averages_are_those_of_the_paper():
    heads, _, *lines = report.table([], "published").splitlines()
    assert len(lines) == 13
    assert lines[-1] == "| average | – | 81.4 | – | 39.6 |  | – | 81.0 | – | 53.7 |  | – | 73.8 | – | 17.4 |  |"
    assert lines[0].startswith("| 2 two supporting facts | – | 87.3 | – | 46.8 | 0 | – | 84.7 | – | 81.8 | 0 |")


def test_averages_need_every_task_and_rows_made_again_replace_older_ones():
    rows = [row(task=task, test=1.0, fingerprint="old") for task in trainings.STEPS]
    rows += [row(task=task, test=50.0 + task, facts=float(task)) for task in trainings.STEPS]
    rows = report.latest(rows)
    last = report.table(rows, "published").splitlines()[-1]
    assert "| 61.9 | 81.0 | 12.8 | 53.7 |" in last
    assert "| – | 81.0 | – | 53.7 |" in report.table(rows[:-1], "published").splitlines()[-1]


def test_report_is_written_between_the_marks_of_the_readme(tmp_path):
    results, readme = tmp_path / "results.jsonl", tmp_path / "README.md"
    results.write_text("".join(json.dumps(one) + "\n" for one in (row(), row(machine="another"))))
    readme.write_text("before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n")
    report.main(["--results", str(results), "--readme", str(readme)])
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "Setting `published`:" in text and "`bash run.sh`  \ntorch 2; another.  " in text


@pytest.fixture
def data(tmp_path):
    """The data of two tasks, and the starts that were trained instead of being trained."""
    for folder in ("qa2", "qa3", "together"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for name in ("dict.txt", "train.jsonl", "valid.jsonl", "test.jsonl"):
            (tmp_path / "data" / folder / name).write_text(f"{folder} {name}")
    return tmp_path


def train(data, monkeypatch, *arguments):
    trained = []

    def run(start, *places):
        trained.append(start)
        return [row(**own) for own in start.identities]

    monkeypatch.setattr(trainings, "run", run)
    places = ["--data", data / "data", "--work", data / "runs", "--results", data / "new" / "results.jsonl"]
    trainings.main([*map(str, places), "--tasks", "2,3", *arguments])
    return [start.name for start in trained]


def test_finished_starts_are_not_made_again(data, monkeypatch, capsys):
    names = ("memn2n.published", "chain.published")
    first = ["qa2.memn2n.published-1", "qa3.memn2n.published-1", "qa2.chain.published-1", "qa3.chain.published-1"]
    assert train(data, monkeypatch, *names) == first
    assert "qa3.chain.published-1, task 3: answers 80.0 %, facts 50.0 %" in capsys.readouterr().out
    assert train(data, monkeypatch, *names) == []
    assert train(data, monkeypatch, "chain.published", "--seeds", "1 2") == [name[:-1] + "2" for name in first[2:]]
    rows = trainings.read_rows(str(data / "new" / "results.jsonl"))
    assert len(rows) == 6 and {"machine", "versions", "command", "fingerprint"} <= set(rows[0])
    # Other data or options are another training.
    (data / "data" / "qa3" / "test.jsonl").write_text("changed")
    assert train(data, monkeypatch, *names) == [first[1], first[3]]
    monkeypatch.setitem(trainings.SETTINGS, "published", ["--lr", "1"])
    assert train(data, monkeypatch, *names) == first


def test_a_joint_start_has_a_row_for_each_task(data, monkeypatch):
    assert train(data, monkeypatch, "chain.joint") == ["together.chain.joint-1"]
    rows = trainings.read_rows(str(data / "new" / "results.jsonl"))
    assert [one["task"] for one in rows] == list(trainings.STEPS) and len({one["fingerprint"] for one in rows}) == 1
    assert train(data, monkeypatch, "chain.joint") == []
    start = trainings.Start(tuple(trainings.STEPS), "chain", "joint", 1)
    assert start.options[start.options.index("--steps") + 1] == "3"


def test_wrong_calls_and_broken_results_are_named(data, monkeypatch, capsys):
    wrong = {
        ("chain.fast",): "chain.fast: no SYSTEM.SETTING; systems memn2n, chain, unary_chain; settings published",
        ("chain.published", "--tasks", "1"): "--tasks 1: not one of 2, 3, 7",
        ("chain.published", "--seeds", "x"): "--seeds x: not numbers",
        ("chain.published", "--tasks", "2,7"): "qa7: no such folder",
    }
    for arguments, expected in wrong.items():
        with pytest.raises(SystemExit):
            train(data, monkeypatch, *arguments)
        assert expected in capsys.readouterr().err
    path = data / "results.jsonl"
    path.write_text(json.dumps(row()) + "\n{}\n")
    with pytest.raises(trainings.InputError, match="results.jsonl, line 2: not a row"):
        trainings.read_rows(str(path))


def test_run_asks_for_the_corpus_before_it_begins(tmp_path):
    command = ["bash", str(HERE / "run.sh"), str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--corpus" in done.stderr


@pytest.mark.slow
def test_a_start_is_what_fairseq_trains_whatever_was_trained_before(tmp_path, monkeypatch):
    pytest.importorskip("fairseq")
    prepare = load_script("prepare/babi.py")
    story = "1 Mary got milk.\n2 John left.\n3 Mary went home.\n4 Where is milk?\thome\t1 3\n"
    other = story.replace("home", "out").replace("Mary", "Ann")
    for split in ("train", "test"):
        (tmp_path / f"qa2_x_{split}.txt").write_text((story + other) * 10)
    prepare.main(["--corpus", str(tmp_path), "--task", "2", "--dest", str(tmp_path / "qa2")])
    options = "--optimizer sgd --lr 0.1 --clip-norm 1 --batch-size 4 --max-epoch 3"
    monkeypatch.setitem(trainings.SETTINGS, "published", options.split())
    starts = [trainings.Start((2,), "chain", "published", seed) for seed in (1, 2, 1)]
    rows = [trainings.run(start, str(tmp_path / "qa2"), str(tmp_path / "runs")) for start in starts]
    for (one,) in rows:
        assert one.pop("seconds") > 0
    assert rows[0] == rows[2] != rows[1]
    assert rows[0][0]["epoch"] in (1, 2, 3) and 0 <= rows[0][0]["test_fact_accuracy"] <= 100


@pytest.mark.slow
def test_one_model_is_measured_on_each_of_its_tasks(tmp_path, monkeypatch):
    pytest.importorskip("fairseq")
    prepare = load_script("prepare/babi.py")
    stories = {2: "1 Mary left.\n2 John sat.\n3 Who left?\tmary\t1 2\n", 3: "1 Ann sat.\n2 Who sat?\tann\t1\n"}
    for task, story in stories.items():
        for split in ("train", "test"):
            (tmp_path / f"qa{task}_x_{split}.txt").write_text(story * 10)
    data = tmp_path / "together"
    prepare.main(["--corpus", str(tmp_path), "--task", "2", "3", "--steps", "2", "1", "--dest", str(data)])
    options = "--optimizer sgd --lr 0.5 --clip-norm 1 --batch-size 4 --max-epoch 9"
    monkeypatch.setitem(trainings.SETTINGS, "joint", options.split())
    two, three = trainings.run(trainings.Start((2, 3), "chain", "joint", 1), str(data), str(tmp_path / "runs"))
    assert (two["task"], three["task"]) == (2, 3) and two["valid_accuracy"] == three["valid_accuracy"]
    assert three["test_fact_accuracy"] == 100  # one fact, so one choice
    checkpoint = str(tmp_path / "runs" / "together.chain.joint-1" / "checkpoint_best.pt")
    found = trainings.measure(checkpoint, str(data), ["qa2_test", "qa3_test"])
    assert [found[f"qa{task}_test"]["accuracy"] for task in (2, 3)] == [two["test_accuracy"], three["test_accuracy"]]


def test_published_averages_are_those_of_the_rows_but_for_one():
    for system, averages in report.PUBLISHED_AVERAGES.items():
        columns = [[value for value in column if value is not None] for column in report.PUBLISHED[system]]
        assert [len(column) for column in columns] == [12, 10]
        found = tuple(round(sum(column) / len(column), 1) for column in columns)
        assert found == (averages if system != "memn2n" else (81.4, 36.6))
