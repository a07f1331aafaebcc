"""Every Triton kernel compiles in every configuration in use, for the architectures we name, without spilling."""

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


@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile_without_spills(module, tmp_path):
    # A process of its own, because Triton interprets in this one.
    environment = dict(os.environ, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path), PYTHONPATH=str(PACKAGE.parent))
    run = subprocess.run(
        [sys.executable, str(SCRIPT), module],
        env=environment,
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    compiled = [json.loads(line) for line in run.stdout.splitlines()]
    assert compiled and {entry["capability"] for entry in compiled} == {80, 90}
    assert [entry for entry in compiled if entry["spill_stores"] or entry["spill_loads"] or entry["stack"]] == []
