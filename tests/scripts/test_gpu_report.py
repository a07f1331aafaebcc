"""scripts/benchmark/gpu_report.py: which bars are met, from results as the other benchmarks write them."""

import json

import pytest
from helpers_scripts import load_script

gpu_report = load_script("benchmark/gpu_report.py")

TESTS = '<testsuites><testsuite tests="10" failures="{}" errors="0" skipped="2"></testsuite></testsuites>'
CHAIN = {"job": "binary chain", "batch": 100_000, "length": 200}
TREES = {"batch": 256, "length": 64}


def results(rows):
    return {"command": "", "versions": {"torch": "2"}, "machine": "a card", "rows": rows}


def times(forward, both, ratio=1.0, library="fairseq_structattn", backend="cuda", **job):
    measured = {"forward_ms": forward, "forward_backward_ms": both, "ratio": ratio}
    return {"library": library, "backend": backend, **measured, **job}


def step(baseline, system, ratio, precision=""):
    return {"job": f"training step against {baseline}{precision}", "system": system, "ratio": ratio}


def updates(last, made=200):
    row = {"job": "200 updates", "system": "crf", "precision": "fp16", "updates": made}
    return {**row, "first_loss": 8.0, "last_loss": last}


@pytest.fixture
def work(tmp_path):
    kernels = [
        times(0.3, 0.5, **CHAIN),
        times(0.2, 0.4, library="copy", backend="", **CHAIN),
        times(0.3, 0.9, job="projective tree", **TREES),
        times(9.0, 36.0, 40.0, library="torch-struct", backend="", job="projective tree", **TREES),
        times(0.3, 1.25, job="spanning tree", **TREES),
    ]
    speed = [
        step("lstm", "luong_general", 2.0, ", fp16"),
        step("lstm", "luong_general", 4.5),
        step("luong_general", "crf", 0.8),
        step("flat", "tree", 0.9, ", 32 sentences of 40 words"),
        step("flat", "tree_nonprojective", 0.8, ", 32 sentences of 40 words"),
    ]
    for name, rows in zip(gpu_report.PARTS, (kernels, speed, [updates(5.0), updates(None), updates(5.0, 150)])):
        (tmp_path / f"{name}.json").write_text(json.dumps(results(rows)), encoding="utf-8")
    (tmp_path / "tests.xml").write_text(TESTS.format(0), encoding="utf-8")
    return tmp_path


def test_bars_are_judged_by_what_was_measured(work):
    rows = gpu_report.report(str(work))["rows"]
    assert [(row["found"], row["met"]) for row in rows] == [
        (0, "yes"),  # failed tests
        (8, "yes"),  # passed tests
        (0.5, "yes"),  # chains
        (1.5, "yes"),  # against copying
        (0.9, "yes"),  # projective trees
        (40.0, "no"),  # against torch-struct
        (1.25, "no"),  # spanning trees
        (4.5, "yes"),  # luong_general against lstm, in float32
        (1.25, "no"),  # crf
        (1.11, "yes"),  # tree
        (1.25, "no"),  # tree_nonprojective
        (0.625, "yes"),  # training held
        ("not finite", "no"),  # the loss was not finite
        ("not finite", "no"),  # it collapsed after 150 updates
    ]


def test_failed_tests_and_missing_measurements_show(work):
    (work / "tests.xml").write_text(TESTS.format(1), encoding="utf-8")
    (work / "distributions.json").unlink()
    rows = gpu_report.report(str(work))["rows"]
    assert [row["met"] for row in rows[:7]] == ["no", "yes", None, None, None, None, None]


def test_a_run_that_was_cut_off_is_reported_as_far_as_it_came(work):
    for name in ("tests.xml", "training_speed.json", "half_precision.json"):
        (work / name).unlink()
    report = gpu_report.report(str(work))
    assert [row["met"] for row in report["rows"]] == [None, None, "yes", "yes", "yes", "no", "no"] + [None] * 4
    (work / "distributions.json").unlink()
    report = gpu_report.report(str(work))
    assert report["machine"] and not any(row["met"] for row in report["rows"])


def test_the_report_is_written_with_where_it_comes_from(work, capsys, monkeypatch):
    output = work / "results" / "card.json"
    monkeypatch.setattr("sys.argv", ["gpu_report.py", str(work), "--output", str(output)])
    gpu_report.main()
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["machine"] == "a card" and written["tests"]["passed"] == 8
    assert len(written["distributions"]) == 5 and len(written["half_precision"]) == 3
    assert "| 100,000 chains of 200, forward and backward, ms | ≤ 0.6 | 0.5 | yes |" in capsys.readouterr().out
