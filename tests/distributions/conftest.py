"""Where there is no GPU, Triton's kernels run in its interpreter, and tests marked ``gpu`` are skipped."""

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    # Triton reads this when it is imported, which nothing has done yet.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None and not HAS_GPU:
        pytest.skip("needs a CUDA device")
