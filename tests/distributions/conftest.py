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


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=("multi", "single"))
def roots(request):
    return request.param


@pytest.fixture
def backend(request, monkeypatch):
    """The backend in force, for tests marked by :mod:`contract`."""
    from fairseq_structattn.distributions import use_backend
    from fairseq_structattn.distributions.kernels import numba_compile

    if request.param == "without-numba":
        monkeypatch.setattr(numba_compile, "available", lambda: False)
        yield request.param
        return
    with use_backend(request.param):
        yield request.param


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that a kernel leaves as it was allocated shows as NaN, or as 7."""

    def poison(allocate):
        def allocate_and_fill(*args, **options):
            tensor = allocate(*args, **options)
            return tensor.fill_(float("nan") if tensor.is_floating_point() else 7)

        return allocate_and_fill

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
