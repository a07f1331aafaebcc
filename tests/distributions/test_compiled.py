"""The machinery of compiled kernels: threads, forks, a machine without numba."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from fairseq_structattn.distributions import compiled, triton_kernels, use_backend
from fairseq_structattn.distributions.backend import compiled_for

numba = pytest.importorskip("numba")


@pytest.fixture(params=(1, 3))
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@compiled.kernel
def count(first, stride, items):
    for item in range(first, len(items), stride):
        items[item] += 1


@pytest.mark.parametrize("batch", (0, 1, 2, 3, 10))
def test_each_item_is_treated_once(threads, batch):
    items = np.zeros(batch)
    compiled.over_batch(count, batch, items)
    assert (items == 1).all()


def test_several_threads_may_call_at_once(threads):
    batches = [np.zeros(50) for _ in range(8)]

    def call(items):
        for _ in range(100):
            compiled.over_batch(count, len(items), items)

    callers = [threading.Thread(target=call, args=(items,)) for items in batches]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((items == 100).all() for items in batches)


def test_an_error_in_any_thread_arrives(threads):
    def broken(first, stride):
        if first == stride - 1:
            raise RuntimeError("in the last thread")

    with pytest.raises(RuntimeError, match="in the last thread"):
        compiled.over_batch(broken, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_its_own_threads():
    program = (
        "import os, sys, torch\n"
        "from fairseq_structattn.distributions import compiled\n"
        "torch.set_num_threads(2)\n"
        "done = lambda first, stride: None\n"
        "compiled.over_batch(done, 2)\n"
        "child = os.fork()\n"
        "compiled.over_batch(done, 2)\n"
        "sys.exit(os.waitpid(child, 0)[1] if child else 0)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_functions_stay_plain_where_there_is_no_numba(monkeypatch):
    assert compiled.kernel_if_available(lambda: None).py_func() is None
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert compiled.kernel_if_available(len) is len


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_backend_decides_by_device(monkeypatch):
    monkeypatch.setattr(triton_kernels, "available", lambda: True)
    assert compiled_for(CPU) == "cpu"
    assert compiled_for(GPU) == "cuda"
    assert compiled_for(torch.device("meta")) is None
    with use_backend("reference"):
        assert compiled_for(CPU) is compiled_for(GPU) is None
    with use_backend("cpu"):
        assert compiled_for(CPU) == "cpu"
        with pytest.raises(ValueError, match="'cpu' cannot compute on cuda; move the tensors or choose"):
            compiled_for(GPU)


def test_backend_cuda_computes_on_the_cpu_only_under_the_interpreter(monkeypatch):
    monkeypatch.setattr(triton_kernels, "available", lambda: True)
    with use_backend("cuda"):
        assert compiled_for(GPU) == "cuda"
        monkeypatch.setattr(triton_kernels, "interpreted", lambda: True)
        assert compiled_for(CPU) == "cuda"
        monkeypatch.setattr(triton_kernels, "interpreted", lambda: False)
        with pytest.raises(ValueError, match="'cuda' cannot compute on cpu; .*TRITON_INTERPRET=1.*'reference'"):
            compiled_for(CPU)
    monkeypatch.setattr(triton_kernels, "interpreted", lambda: True)
    assert compiled_for(CPU) == "cpu"


@pytest.mark.parametrize("value", ("0", "1"))
def test_interpreted_is_what_was_set_when_triton_was_imported(value):
    pytest.importorskip("triton")
    program = (
        "import os, triton\n"
        "from fairseq_structattn.distributions import triton_kernels\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "print(triton_kernels.interpreted())\n"
    )
    command, environment = [sys.executable, "-c", program], dict(os.environ, TRITON_INTERPRET=value)
    printed = subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.PIPE).stdout
    assert printed.decode().strip() == str(value == "1")


def test_next_power_of_two():
    assert [triton_kernels.next_power_of_two(number) for number in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]


def test_plain_pytorch_serves_without_triton(monkeypatch):
    monkeypatch.setattr(triton_kernels, "available", lambda: False)
    assert compiled_for(GPU) is None
    with use_backend("cuda"), pytest.raises(ImportError, match="pip install triton"):
        compiled_for(GPU)


def test_plain_pytorch_serves_without_numba(monkeypatch):
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert compiled_for(CPU) is None
    with use_backend("cpu"), pytest.raises(ImportError, match="pip install numba"):
        compiled_for(CPU)
