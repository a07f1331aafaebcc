"""Every Triton kernel compiles in every configuration in use without spilling, and leaves room for other programs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_structattn

triton = pytest.importorskip("triton")

PACKAGE = Path(fairseq_structattn.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("distributions/*/cuda.py")
)
SCRIPT = Path(__file__).parent / "offline_compile.py"
# Programs of so many warps that a multiprocessor runs at the same time, at least.
PROGRAMS = {
    "linear_chain": {1: 16, 2: 8, 4: 4, 8: 1},
    "projective_tree": {1: 16, 4: 4, 8: 2},
    "spanning_tree": {1: 16, 4: 3, 8: 1},
}
# Of kernels for spanning trees that keep less in registers: on blocks in memory; without exponents and derivatives.
BLOCKED, PLAIN = {8: 2, 16: 1}, {4: 4, 8: 2}


@pytest.mark.parametrize("capabilities", ((90, 80), pytest.param((100, 75), marks=pytest.mark.slow)))
@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile_without_spills_and_leave_room(module, capabilities, tmp_path):
    # A process of its own, because Triton interprets in this one.
    environment = dict(os.environ, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path), PYTHONPATH=str(PACKAGE.parent))
    run = subprocess.run(
        [sys.executable, str(SCRIPT), module, *map(str, capabilities)],
        env=environment,
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    compiled = [json.loads(line) for line in run.stdout.splitlines()]
    assert compiled and {entry["capability"] for entry in compiled} == set(capabilities)
    assert [entry for entry in compiled if entry["spill_stores"] or entry["spill_loads"] or entry["stack"]] == []
    assert [entry for entry in compiled if entry["programs"] < expected(module, entry)[entry["warps"]]] == []
    if module.split(".")[-2] == "projective_tree":
        check_loops([entry for entry in compiled if entry["capability"] == capabilities[0]])


def expected(module, entry):
    """Programs by warps."""
    if "COLUMNS" in entry:
        return BLOCKED
    if entry.get("PLAIN") and not entry["kernel"].endswith("tangents"):
        return PLAIN
    return PROGRAMS[module.split(".")[-2]]


def check_loops(compiled):
    """Without exponents, the loops over split points take two thirds of the instructions at most."""
    for scaled in (entry for entry in compiled if entry.get("PLAIN") is False):
        (plain,) = (e for e in compiled if e.get("PLAIN") and all(e[key] == scaled[key] for key in ("kernel", "SPANS")))
        assert len(plain["loops"]) == len(scaled["loops"]) == 2
        assert all(short < 0.67 * long for short, long in zip(plain["loops"], scaled["loops"]))
