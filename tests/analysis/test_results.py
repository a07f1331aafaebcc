"""Files of results and the tables made from them."""

import argparse
import json

import pytest

from fairseq_structattn.analysis import results


def row(**changed):
    made = {"system": "crf", "setting": "small", "seed": 1, "split": "test", "metric": "bleu", "value": 30.0}
    return {**made, **changed}


def test_rows_are_added_and_replaced(tmp_path):
    path = str(tmp_path / "results.json")
    results.add_rows(path, "bash run.sh", [row(), row(seed=2, value=31.0)])
    results.add_rows(path, "bash run.sh", [row(value=32.0)])
    content = results.read_results(path)
    assert [(made["seed"], made["value"]) for made in content["rows"]] == [(1, 32.0), (2, 31.0)]
    assert content["command"] == "bash run.sh" and content["machine"]
    assert content["versions"]["torch"] and content["versions"]["python"]


@pytest.mark.parametrize("benchmark", (False, True))
def test_rows_of_another_machine_keep_it(tmp_path, monkeypatch, benchmark):
    path = str(tmp_path / "results.json")

    def measure(machine, *rows):
        monkeypatch.setattr(results, "machine", lambda: machine)
        if benchmark:
            content = {"command": "run", "versions": results.versions(), "machine": machine, "rows": list(rows)}
            results.replace_rows(path, content, ("system", "seed"))
        else:
            results.add_rows(path, "run", list(rows))
        return results.read_results(path)

    measure("old", row(), row(seed=2), row(seed=3))
    content = measure("new", row(seed=2, value=31.0))
    assert {made["seed"]: results.source_of(made, content)["machine"] for made in content["rows"]} == {
        1: "old", 2: "new", 3: "old",
    }  # fmt: skip
    lines = results.table(content).splitlines()
    numbers = {"old": "1", "new": "2"} if content["rows"][0]["seed"] == 1 else {"old": "2", "new": "1"}
    assert lines[0].endswith("| source |") and lines[2].endswith("| 1, 2 |")
    for machine, number in numbers.items():
        (line,) = [line for line in lines if line.endswith(f"; {machine}.  ")]
        assert lines[lines.index(line) - 1] == f"{number}: `run`  "
    back = measure("old", row(seed=2))
    assert not any("made_with" in made for made in back["rows"]) and "source" not in results.table(back)


def test_table_of_a_benchmark_tells_the_source_of_each_row():
    other = {"command": "run", "versions": {"torch": "1"}, "machine": "a"}
    rows = [{"job": "step", "ratio": 1.0, "made_with": other}, {"job": "walk", "ratio": None}]
    lines = results.table({"command": "run", "versions": {"torch": "2"}, "machine": "b", "rows": rows}).splitlines()
    assert lines[0] == "| job | ratio | source |"
    assert lines[2:4] == ["| step | 1.0 | 1 |", "| walk | – | 2 |"]
    assert lines[5:] == ["1: `run`  ", "torch 1; a.  ", "2: `run`  ", "torch 2; b.  "]


def test_table_shows_means_over_seeds():
    rows = [row(), row(seed=2, value=34.0), row(split="train", metric="epochs", value=7)]
    rows.append(row(metric="bleu_signature", value="nrefs:1"))
    text = results.table({"command": "run", "versions": {"torch": "2"}, "machine": "two cores", "rows": rows})
    lines = text.splitlines()
    assert lines[0] == "| system | setting | seeds | bleu (test) | epochs (train) |"
    assert lines[2] == "| crf | small | 1, 2 | 32.0 ± 2.8 | 7 |"
    assert "`run`" in text and "torch 2; two cores." in text and "BLEU: `nrefs:1`" in text


def test_table_of_a_benchmark_has_its_own_columns():
    rows = [{"job": "step", "system": "lstm", "words_per_second": 10, "ratio": 1.0}]
    text = results.table({"command": "run", "versions": {}, "machine": "", "rows": rows})
    assert text.splitlines()[0] == "| job | system | words per second | ratio |"
    assert text.splitlines()[2] == "| step | lstm | 10 | 1.0 |"


def test_table_goes_between_the_markers(tmp_path):
    path, readme = tmp_path / "results.json", tmp_path / "README.md"
    results.add_rows(str(path), "run", [row()])
    readme.write_text(f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    results.write_table(argparse.Namespace(results=str(path), readme=str(readme)))
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "| crf |" in text
    readme.write_text("nothing to replace")
    with pytest.raises(ValueError, match="to put the table between"):
        results.write_table(argparse.Namespace(results=str(path), readme=str(readme)))


def test_score_reads_bleu_and_the_epochs_of_the_log(tmp_path):
    log, bleu, path = tmp_path / "train.log", tmp_path / "bleu.json", tmp_path / "results.json"
    epochs = [{"epoch": epoch, "train_wps": str(wps), "train_train_wall": str(wall)} for epoch, wps, wall in
              ((1, 100, 50), (2, 300, 70), (3, 200, 60))]  # fmt: skip
    valid = [{"epoch": epoch, "valid_bleu": bleu, "valid_nll_loss": nll} for epoch, bleu, nll in
             ((1, "9.5", "4.1"), (2, "30.2", "2.2"), (3, "30.1", "2.1"))]  # fmt: skip
    lines = [json.dumps(line) for line in ({"epoch": 1, "wps": "5"}, *epochs, *valid, epochs[-1])]
    log.write_text("\n".join(["{'_name': None}", "Start iterating over samples", *lines]) + "\n")
    bleu.write_text('{"bleu": 30.5, "signature": "nrefs:1", "confidence95": 1.5}')
    arguments = argparse.Namespace(
        results=str(path), system="crf", setting="small", seed=1, split="test", bleu=str(bleu), train_log=str(log),
        command="run",
    )  # fmt: skip
    results.score(arguments)
    values = {(made["split"], made["metric"]): made["value"] for made in results.read_results(str(path))["rows"]}
    assert values == {
        ("valid", "bleu"): 30.2, ("valid", "nll"): 2.2, ("test", "bleu"): 30.5, ("test", "bleu_signature"): "nrefs:1",
        ("test", "bleu_confidence95"): 1.5, ("train", "seconds_per_epoch"): 60.0,
        ("train", "target_words_per_second"): 200, ("train", "epochs"): 3,
    }  # fmt: skip
    log.write_text('{"epoch": 1}\n')
    with pytest.raises(ValueError, match="no epoch was finished"):
        results.score(arguments)
