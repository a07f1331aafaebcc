"""Kernels that numba compiles for the CPU, and the threads that run them.

numba's own parallel loops need an OpenMP or TBB library on the machine; without one, numba uses a work queue that
aborts the process when two Python threads enter it, as autograd's may. So each kernel here is a serial loop over some
items of a batch that releases the interpreter lock, and a pool of ``torch.get_num_threads()`` threads shares the items.
"""

import contextlib
import functools
import gc
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterator, List

import torch

from .numba_cache import KernelCache

# Enough parts to balance unequal items, few enough that the cost of a call does not matter.
PARTS_PER_THREAD = 4
OBJECTS_PER_COLLECTION = 50000


@functools.lru_cache(maxsize=None)
def available() -> bool:
    """Whether numba can be imported, which fails if it is too old for the installed numpy."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def kernel(function: Callable) -> Callable:
    """Decorator: compile at the first call, which is reported to the user, and keep the machine code on disk.

    To allow vector instructions, sums may be reordered and division by 0 does not raise. Numbers may be infinite or
    NaN.
    """
    compiled = _compiler(no_cfunc_wrapper=True)(function)
    compiled._cache = KernelCache(compiled)
    compile_for_arguments = compiled._compile_for_args

    def compile_quickly(*arguments, **named):
        with _rare_collections():
            return compile_for_arguments(*arguments, **named)

    compiled._compile_for_args = compile_quickly
    return compiled


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Run the cyclic garbage collector less often: numba creates so many objects that the collector would scan all
    objects of PyTorch again and again, for a tenth of the compile time."""
    from numba.core.compiler_lock import global_compiler_lock

    # Under numba's compiler lock no other thread reads the changed threshold as the original one.
    with global_compiler_lock:
        before = gc.get_threshold()
        # A threshold of 0 means that collection is off, and stays.
        gc.set_threshold(before[0] and max(before[0], OBJECTS_PER_COLLECTION), *before[1:])
        try:
            yield
        finally:
            gc.set_threshold(*before)


def subroutine(function: Callable) -> Callable:
    """Decorator: a subroutine of kernels, compiled and cached with each of them. Its arguments may be subroutines too.

    Python cannot call it, except its ``py_func``.
    """
    return _part(function)


def inlined(function: Callable) -> Callable:
    """Decorator: a small subroutine inlined into the loop that calls it, so that the loop can be vectorised."""
    return _part(function, forceinline=True)


def _part(function: Callable, **options) -> Callable:
    from . import numba_subroutines

    compiler = _compiler(pipeline_class=numba_subroutines.SubroutineCompiler, **numba_subroutines.OPTIONS, **options)
    return numba_subroutines.for_kernels_only(compiler(function))


def _compiler(**options) -> Callable:
    import numba

    # numba logs each step of a compilation, which fairseq's tools would print.
    logging.getLogger("numba").setLevel(logging.WARNING)
    return numba.njit(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy", **options)


def kernel_if_available(function: Callable) -> Callable:
    """Decorator: :func:`kernel` if numba is installed; otherwise the function stays in Python."""
    return kernel(function) if available() else function


def subroutine_if_available(function: Callable) -> Callable:
    """Decorator: :func:`subroutine` if numba is installed; otherwise the function stays in Python."""
    return subroutine(function) if available() else function


def over_batch(kernel: Callable, batch: int, *arguments) -> None:
    """Call ``kernel(first, stride, *arguments)``, which treats items ``range(first, batch, stride)``, for all items.

    Threads take one part after the other, so a thread that waits for a processor (PyTorch's own threads stay busy for a
    while after an operation) leaves its work to the others. Items are assigned to the parts in turn, so that a batch
    sorted by length is divided evenly.
    """
    if batch == 0:
        return
    workers = min(torch.get_num_threads(), batch)
    parts = min(PARTS_PER_THREAD * workers, batch) if workers > 1 else 1
    remaining = iter(range(parts))

    def work() -> None:
        for part in remaining:
            kernel(part, parts, *arguments)

    helpers = _helpers(work, workers - 1)
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def _helpers(work: Callable, count: int) -> List[Future]:
    """Threads that do the same work as the caller: ``count``, or fewer if Python cannot start so many."""
    helpers = []
    try:
        for _ in range(count):
            helpers.append(_pool(count).submit(work))
    except RuntimeError:
        # The main thread has ended, or the system has no thread left. The caller does the remaining work alone.
        pass
    return helpers


@functools.lru_cache(maxsize=None)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="structattn")


if hasattr(os, "register_at_fork"):
    # The threads of a parent process do not exist in its forked children.
    os.register_at_fork(after_in_child=_pool.cache_clear)
