"""scripts/benchmark/distributions.py: other libraries' layouts, errors and growth, without those libraries."""

import json
from pathlib import Path

import pytest
import torch
from helpers_scripts import load_script

from fairseq_structattn.distributions import ProjectiveTree

benchmark = load_script("benchmark/distributions.py")
CPU = torch.device("cpu")


def test_layouts_of_trees_there_and_back():
    arcs = torch.randn(2, 4, 3) * ProjectiveTree(torch.zeros(2, 4, 3)).arc_mask
    square = benchmark._to_torch_struct(arcs)
    assert square[1, 0, 2] == arcs[1, 1, 2] and square[1, 2, 2] == arcs[1, 0, 2]
    assert torch.equal(benchmark._from_torch_struct(square), arcs)
    full = benchmark._to_supar(arcs)
    assert full[1, 3, 1] == arcs[1, 1, 2] and full[1, 3, 0] == arcs[1, 0, 2]
    assert torch.equal(benchmark._from_supar(full), arcs)


def test_spans_lie_between_places():
    spans = torch.randn(2, 3, 3).triu()
    between = benchmark._between_words(spans)
    assert between.shape == (2, 4, 4) and between[1, 0, 3] == spans[1, 0, 2]
    assert torch.equal(between[:, :-1, 1:], spans)


def system(marginals):
    return benchmark.System([torch.ones(3)], torch.arange(3.0), marginals, benchmark.identity)


def test_errors_are_those_of_marginals_and_gradients():
    exact = system(lambda scores: scores**2).run(CPU)[:2]
    assert benchmark._error(system(lambda scores: scores**2), exact, CPU) == 0
    assert abs(benchmark._error(system(lambda scores: scores**2 + 0.25), exact, CPU) - 0.25) < 1e-6
    assert benchmark._error(system(lambda scores: scores**3), exact, CPU) == 2  # 3 · 2 in place of 2 · 2
    assert benchmark._error(system(lambda scores: scores * float("nan")), exact, CPU) is None
    assert benchmark._error(system(lambda scores: torch.linalg.inv(torch.zeros(3, 3)) * scores), exact, CPU) is None


def test_growth_is_a_power_of_the_length(capsys):
    rows = [
        {"job": "chain", "library": "x", "backend": "cpu", "batch": batch, "length": length, "forward_backward_ms": ms}
        for batch, length, ms in ((4, 25, 2.0), (4, 50, 7.0), (2, 100, 16.0))
    ]
    benchmark.print_growth(rows)
    assert "16.0 times from n = 25 to 100, n^2.00" in capsys.readouterr().out
    benchmark.print_growth([{**row, "length": 25} for row in rows])
    assert capsys.readouterr().out == ""


def test_a_reduced_job_has_the_shape_of_the_job():
    jobs = {(job.name, job.length): job.reduced(16).shape for job in benchmark.JOBS["cpu"] + benchmark.JOBS["cuda"]}
    assert jobs["binary chain", 200] == (24, 12)
    assert jobs["chain of 25 states", 20] == (1, 1, 25, 25)
    assert jobs["projective tree", 64] == (1, 5, 4) and jobs["binary tree", 200] == (1, 12, 12)
    assert all(job.reduced(1) == job for job in benchmark.JOBS["cuda"])


def test_peak_memory_is_that_of_the_run(monkeypatch):
    def draw(job, batch, device):
        def marginals(scores):
            torch.ones(batch * 5_000_000)
            return scores**2

        return {"big": system(marginals)}

    monkeypatch.setattr(benchmark.Job, "draw", draw)
    assert 50 < benchmark.measure_peak(benchmark.Job("any", None, (4,)), "big", CPU) < 120


def test_a_job_measured_again_replaces_its_rows(tmp_path):
    path = str(tmp_path / "results.json")
    row = {"job": "chain", "batch": 4, "length": 25, "library": "x", "forward_ms": 2.0}
    benchmark.write(path, [row])
    benchmark.write(path, [{**row, "length": 50}])
    benchmark.write(path, [{**row, "forward_ms": 1.0}])
    rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    found = [(made["length"], made["forward_ms"]) for made in rows]
    assert found == [(50, 2.0), (25, 1.0)]


@pytest.mark.parametrize("output", (None, "new/results.json"))
def test_files_are_written_when_one_is_named_only(tmp_path, monkeypatch, output, capsys):
    row = {"job": "tiny", "batch": 4, "length": 25, "library": "x", "backend": "", "forward_backward_ms": 2.0}
    monkeypatch.setattr(benchmark, "measure", lambda jobs, number, *others: [{**row, "job": number}])
    monkeypatch.setattr(benchmark, "replace_rows", lambda path, content, same: written.append((path, content["rows"])))
    written = []
    output = output and str(tmp_path / output)
    benchmark.main(["--jobs", "tiny", "--device", "cpu", *(["--output", output] if output else [])])
    rows = [(output, [{**row, "job": number}]) for number in range(len(benchmark.JOBS["tiny"]))]
    assert written == (rows if output else [])
    with pytest.raises(SystemExit):
        benchmark.main(["--jobs", "tiny", "--output", str(tmp_path)])
    assert f"--output '{tmp_path}': a folder" in capsys.readouterr().err
