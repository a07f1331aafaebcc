"""The machinery of compiled kernels: threads, forks, a machine without numba."""

import contextvars
import os
import shutil
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fairseq_structattn.distributions import backend, use_backend
from fairseq_structattn.distributions.backend import current_backend, kind_of_implementation
from fairseq_structattn.distributions.kernels import numba_compile, triton_launch

numba = pytest.importorskip("numba")


@pytest.fixture(params=(1, 3))
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@numba_compile.kernel
def count(first, stride, items):
    for item in range(first, len(items), stride):
        items[item] += 1


@numba_compile.subroutine
def one_more(number):
    return number + 1


@numba_compile.kernel
def count_by_subroutine(first, stride, items):
    for item in range(first, len(items), stride):
        items[item] = one_more(items[item])


def test_subroutines_are_for_kernels_and_refuse_calls_from_python():
    for _ in range(2):
        with pytest.raises(TypeError, match="one_more is compiled as a part of kernels only"):
            one_more(1.0)
        items = np.zeros(3)
        numba_compile.over_batch(count_by_subroutine, 3, items)
        assert (items == 1).all()
    assert one_more.py_func(1.0) == 2.0


@pytest.mark.parametrize("batch", (0, 1, 2, 3, 10))
def test_each_item_is_treated_once(threads, batch):
    items = np.zeros(batch)
    numba_compile.over_batch(count, batch, items)
    assert (items == 1).all()


def test_several_threads_may_call_at_once(threads):
    batches = [np.zeros(50) for _ in range(8)]

    def call(items):
        for _ in range(100):
            numba_compile.over_batch(count, len(items), items)

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
        numba_compile.over_batch(broken, 10)


def test_threads_that_outlive_the_main_one_compute():
    program = (
        "import threading, time, torch\n"
        "from fairseq_structattn.distributions.kernels import numba_compile\n"
        "torch.set_num_threads(3)\n"
        "def work():\n"
        "    threading.main_thread().join()\n"
        "    items = []\n"
        "    numba_compile.over_batch(lambda first, stride: items.extend(range(first, 20, stride)), 20)\n"
        "    print(sorted(items) == list(range(20)), flush=True)\n"
        "threading.Thread(target=work).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stdout=subprocess.PIPE)
    assert done.stdout.decode().strip() == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_its_own_threads():
    program = (
        "import os, sys, torch\n"
        "from fairseq_structattn.distributions.kernels import numba_compile\n"
        "torch.set_num_threads(2)\n"
        "done = lambda first, stride: None\n"
        "numba_compile.over_batch(done, 2)\n"
        "child = os.fork()\n"
        "numba_compile.over_batch(done, 2)\n"
        "sys.exit(os.waitpid(child, 0)[1] if child else 0)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_functions_stay_plain_where_there_is_no_numba(monkeypatch):
    assert numba_compile.kernel_if_available(lambda: None).py_func() is None
    monkeypatch.setattr(numba_compile, "available", lambda: False)
    assert numba_compile.kernel_if_available(len) is len


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_backend_decides_by_device(monkeypatch):
    monkeypatch.setattr(triton_launch, "available", lambda: True)
    assert kind_of_implementation(CPU) == "cpu"
    assert kind_of_implementation(GPU) == "cuda"
    assert kind_of_implementation(torch.device("meta")) == "plain"
    with use_backend("reference"):
        assert kind_of_implementation(CPU) == kind_of_implementation(GPU) == "reference"
    with use_backend("cpu"):
        assert kind_of_implementation(CPU) == "cpu"
        with pytest.raises(ValueError, match="'cpu' cannot compute on cuda; move the tensors or choose"):
            kind_of_implementation(GPU)


WITHOUT_PAPER = ("binary_tree", "semi_markov", "spanning_tree")
WITHOUT_CUDA = [("cuda", "binary_tree"), ("cuda", "semi_markov")]


@pytest.mark.parametrize("model", ("binary_tree", "linear_chain", "projective_tree", "semi_markov", "spanning_tree"))
@pytest.mark.parametrize("name", backend.BACKENDS)
def test_modules_of_a_model_have_the_same_functions(model, name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(triton_launch, "interpreted", lambda: True)
    expected = {"auto": "cpu", "paper": "reference" if model in WITHOUT_PAPER else "signed_log"}.get(name, name)
    expected = "reference" if (name, model) in WITHOUT_CUDA else expected
    with use_backend(name):
        module = backend.implementation(f"fairseq_structattn.distributions.{model}", CPU)
    assert module.__name__.rpartition(".")[2] == expected
    assert all(callable(getattr(module, function)) for function in ("expectations", "argmax", "sample"))


def test_backend_cuda_computes_on_the_cpu_only_under_the_interpreter(monkeypatch):
    monkeypatch.setattr(triton_launch, "available", lambda: True)
    with use_backend("cuda"):
        assert kind_of_implementation(GPU) == "cuda"
        monkeypatch.setattr(triton_launch, "interpreted", lambda: True)
        assert kind_of_implementation(CPU) == "cuda"
        monkeypatch.setattr(triton_launch, "interpreted", lambda: False)
        with pytest.raises(ValueError, match="'cuda' cannot compute on cpu; .*TRITON_INTERPRET=1.*'reference'"):
            kind_of_implementation(CPU)
    monkeypatch.setattr(triton_launch, "interpreted", lambda: True)
    assert kind_of_implementation(CPU) == "cpu"


def test_a_block_of_the_main_thread_reaches_all_threads():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_backend).result() == "auto"
        with use_backend("cpu"):
            with use_backend("reference"):
                assert pool.submit(current_backend).result() == "reference"
                assert _in_new_thread(current_backend) == "reference"
            assert pool.submit(current_backend).result() == "cpu"
        assert pool.submit(current_backend).result() == "auto"


def test_blocks_of_two_threads_do_not_disturb_each_other():
    meeting, seen = threading.Barrier(2, timeout=30), {}

    def work(name):
        with use_backend(name):
            meeting.wait()
            seen[name] = current_backend(), contextvars.copy_context().run(current_backend)
            meeting.wait()
        seen[name + " after"] = current_backend()

    with use_backend("auto"):
        threads = [threading.Thread(target=work, args=(name,)) for name in ("reference", "cpu")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert current_backend() == "auto"
    assert seen == {
        "reference": ("reference",) * 2, "cpu": ("cpu",) * 2, "reference after": "auto", "cpu after": "auto",
    }  # fmt: skip


def test_blocks_may_be_closed_in_any_order():
    first, second = use_backend("cpu"), use_backend("reference")
    contexts = contextvars.copy_context(), contextvars.copy_context()
    contexts[0].run(first.__enter__)
    contexts[1].run(second.__enter__)
    contexts[0].run(first.__exit__, None, None, None)
    assert _in_new_thread(current_backend) == "reference"
    contexts[1].run(second.__exit__, None, None, None)
    assert _in_new_thread(current_backend) == "auto"


def _in_new_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def fresh_obstacles(monkeypatch):
    """What is known about GPUs is forgotten before and after, and there is Triton, not interpreting."""
    pytest.importorskip("triton")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(triton_launch, "interpreted", lambda: False)
    triton_launch.obstacle.cache_clear()
    backend._warn.cache_clear()
    yield
    triton_launch.obstacle.cache_clear()


OBSTACLES = {
    "Triton 2.1.0 is too old for them: pip install 'triton>=3.0'": lambda patch: patch(
        triton_launch, "_triton", lambda: types.SimpleNamespace(__version__="2.1.0")
    ),
    "finds none: install gcc or clang, or set CC": lambda patch: patch(shutil, "which", lambda name: None),
    "compute capability 6.1, and they need 7.0": lambda patch: (
        patch(torch.cuda, "is_available", lambda: True),
        patch(torch.cuda, "get_device_capability", lambda device: (6, 1)),
    ),
    "PyTorch for ROCm": lambda patch: patch(torch.version, "hip", "6.2"),
    "Triton is not installed: pip install triton": lambda patch: patch(triton_launch, "available", lambda: False),
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_auto_takes_plain_pytorch_after_one_warning_where_kernels_cannot_run(
    fresh_obstacles, monkeypatch, caplog, reason
):
    OBSTACLES[reason](monkeypatch.setattr)
    assert kind_of_implementation(GPU) == "plain"
    assert kind_of_implementation(GPU) == "plain"
    (record,) = caplog.records
    assert record.levelname == "WARNING" and reason in record.getMessage()
    with use_backend("cuda"), pytest.raises((RuntimeError, ImportError), match="choose 'auto' or 'reference'"):
        kind_of_implementation(GPU)


@pytest.mark.parametrize("version", ("3.0.0", "3.7.1+git1a2b", "10.0"))
def test_kernels_run_with_newer_releases_of_triton(fresh_obstacles, monkeypatch, version):
    monkeypatch.setattr(triton_launch, "_triton", lambda: types.SimpleNamespace(__version__=version))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/" + name)
    if not torch.cuda.is_available():
        assert kind_of_implementation(GPU) == "cuda"


@pytest.mark.parametrize("value", ("0", "1"))
def test_interpreted_is_what_was_set_when_triton_was_imported(value):
    pytest.importorskip("triton")
    program = (
        "import os, triton\n"
        "from fairseq_structattn.distributions.kernels import triton_launch\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "print(triton_launch.interpreted())\n"
    )
    command, environment = [sys.executable, "-c", program], dict(os.environ, TRITON_INTERPRET=value)
    printed = subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.PIPE).stdout
    assert printed.decode().strip() == str(value == "1")


def test_next_power_of_two():
    assert [triton_launch.next_power_of_two(number) for number in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]


def test_plain_pytorch_serves_without_triton(monkeypatch):
    monkeypatch.setattr(triton_launch, "available", lambda: False)
    triton_launch.obstacle.cache_clear()
    assert kind_of_implementation(GPU) == "plain"
    triton_launch.obstacle.cache_clear()
    with use_backend("cuda"), pytest.raises(ImportError, match="pip install triton"):
        kind_of_implementation(GPU)


def test_plain_pytorch_serves_without_numba(monkeypatch):
    monkeypatch.setattr(numba_compile, "available", lambda: False)
    assert kind_of_implementation(CPU) == "plain"
    with use_backend("cpu"), pytest.raises(ImportError, match="pip install numba"):
        kind_of_implementation(CPU)
