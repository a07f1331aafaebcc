"""Tests of precision on the instructions of an older processor, where oneDNN has fewer kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = "ONEDNN_MAX_CPU_ISA"


@pytest.mark.slow
def test_precision_without_avx512():
    if os.environ.get(LIMIT):
        pytest.skip(f"runs under {LIMIT}={os.environ[LIMIT]} already")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "precision", "-p", "no:cacheprovider"]
    files = ["tests/modules/test_lstm.py", "tests/modules/test_repeated_product.py", "tests/models/test_rnn.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command + files,
        cwd=str(ROOT),
        env={**environment, LIMIT: "AVX2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
