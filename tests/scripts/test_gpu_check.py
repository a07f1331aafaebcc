"""scripts/gpu_check.sh: which commands it runs, and what a failure does, by an interpreter that only notes them."""

import os
import subprocess

import pytest
from helpers_scripts import SCRIPTS, load_script

NOTING = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> {notes}
[[ "$1" != -c ]] || echo a_card
[[ -z "{failing}" || "$*" != *"{failing}"* ]]
"""


@pytest.fixture
def run(tmp_path):
    """The function ``run(*arguments, failing="")``, which returns the exit status, the commands and all output."""

    def run(*arguments, failing=""):
        python, notes = tmp_path / "python", tmp_path / "notes"
        python.write_text(NOTING.format(notes=notes, failing=failing), encoding="utf-8")
        python.chmod(0o755)
        notes.write_text("", encoding="utf-8")
        command = ["bash", str(SCRIPTS / "gpu_check.sh"), *arguments, str(tmp_path / "work")]
        environment = {**os.environ, "PYTHON": str(python)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, notes.read_text(encoding="utf-8").splitlines(), done.stdout + done.stderr

    return run


def named(commands, name):
    return [number for number, command in enumerate(commands) if name in command]


def test_kernels_are_timed_first_and_tested_last_and_each_part_is_reported(run):
    status, commands, output = run()
    assert status == 0, output
    names = ("distributions.py", "training_speed.py", "half_precision.py", "-m pytest")
    parts = [named(commands, name) for name in names]
    assert [len(part) for part in parts] == [1, 3, 1, 1]
    order = sorted(sum(parts, []))
    assert order[0] == parts[0][0] and order[-1] == parts[-1][0]
    assert [number + 1 for number in order] == named(commands, "gpu_report.py")
    assert all("--output scripts/benchmark/results/a_card.json" in commands[number + 1] for number in order)


def test_a_dry_run_is_the_real_run_reduced(run):
    _, real, _ = run()
    _, dry, _ = run("--dry-run")
    benchmarks = [line for line in dry if "--reduce" in line]
    assert len(benchmarks) == 5
    expected = [line.replace("--device cuda", "--device cpu").replace("--reduce 1 ", "--reduce 16 ") for line in real]
    assert benchmarks == [line for line in expected if "--reduce" in line]


def test_a_part_that_fails_leaves_the_others(run):
    whole, found = run()[1], run(failing="half_precision.py")
    assert found[0] == 1 and found[1] == whole
    assert "error: failed: training in float16: " in found[2]


def test_there_are_enough_formulas_for_the_batches(run, tmp_path):
    step = next(line for line in run()[1] if "training_speed.py" in line).split()
    names = ("--source-length", "--batch-size", "--batches")
    length, size, batches = (int(step[step.index(name) + 1]) for name in names)
    load_script("prepare/tree_transduction.py").main(["--dest", str(tmp_path)])
    formulas = (tmp_path / "train.prefix").read_text(encoding="utf-8").splitlines()
    assert sum(len(formula.split()) == length for formula in formulas) >= size * batches
