"""How all shell scripts answer --help and wrong calls: without doing anything."""

import os
import shutil
import subprocess

import pytest
from helpers_scripts import SCRIPTS

ROOT = SCRIPTS.parent
FILES = sorted(path.relative_to(ROOT) for path in SCRIPTS.rglob("*.sh"))
SOURCED = ("usage.sh", "queue.sh")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The scripts, in a place where nothing can be installed and where any file that is made is seen."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(str(SCRIPTS), str(root / "scripts"), ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    return root


def files(root):
    return sorted(str(path) for path in root.rglob("*"))


def call(copy, path, *arguments):
    before = files(copy)
    environment = {**os.environ, "PYTHON": "false", "VIRTUAL_ENV": "", "CONDA_PREFIX": "", "HOME": str(copy)}
    command = ["bash", str(path), *arguments]
    done = subprocess.run(command, cwd=str(copy), env=environment, capture_output=True, text=True, timeout=60)
    assert files(copy) == before
    return done


def test_there_are_scripts():
    assert len(FILES) >= 9 and all((ROOT / "scripts" / name).exists() for name in ("quickstart.sh", "usage.sh"))


@pytest.mark.parametrize("arguments", (["--help"], ["-h"], ["somewhere", "--help"], ["--nonsense", "--help"]))
@pytest.mark.parametrize("path", FILES, ids=str)
def test_help_prints_the_head_of_the_script_and_does_nothing(copy, path, arguments):
    done = call(copy, path, *arguments)
    assert done.returncode == 0 and done.stderr == ""
    lines = (copy / path).read_text(encoding="utf-8").splitlines()
    lines = lines[1:] if lines[0].startswith("#!") else lines
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    assert done.stdout.splitlines() == [line[1:].replace(" ", "", 1) for line in lines[:end]]
    if path.name not in SOURCED:
        assert f"bash {path}" in done.stdout


@pytest.mark.parametrize("option", ("--nonsense", "-x"))
@pytest.mark.parametrize("path", FILES, ids=str)
def test_unknown_options_are_refused_by_name(copy, path, option):
    done = call(copy, path, option)
    assert done.returncode == 2 and done.stdout == ""
    assert f"error: unknown option {option}; see: bash {path} --help" in done.stderr


@pytest.mark.parametrize(
    "path, arguments, message",
    [
        ("quickstart.sh", ["one", "two"], "unexpected argument 'two'"),
        ("install.sh", ["plot", "python3", "more"], "unexpected argument 'more'"),
        ("test.sh", ["python3", "more", "--", "-x"], "unexpected argument 'more'"),
        ("gpu_check.sh", ["one", "--dry-run", "two"], "unexpected argument 'two'"),
        ("prepare/small_parallel_enja.sh", ["--dest"], "--dest needs a value"),
        ("prepare/small_parallel_enja.sh", ["one", "--words", "two"], "unexpected argument 'two'"),
        ("experiments/queue.sh", [], "it is there to be sourced"),
    ],
)
def test_other_wrong_calls_are_refused(copy, path, arguments, message):
    done = call(copy, f"scripts/{path}", *arguments)
    assert done.returncode == 2 and message in done.stderr


def test_what_belongs_to_another_program_is_left_to_it():
    program = f'. {SCRIPTS}/usage.sh; structattn_usage file "-- --dest=" 1 "$@"; echo "$#"'
    for arguments in (["a", "--", "-x", "--help", "b"], ["--dest", "--odd", "a"]):
        done = subprocess.run(["bash", "-c", program, "bash", *arguments], capture_output=True, text=True)
        assert done.stdout == f"{len(arguments)}\n" and done.returncode == 0, done.stderr
