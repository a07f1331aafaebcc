"""Kernels that numba compiles for the CPU, and the threads that run them.

numba's own parallel loops need an OpenMP or TBB library on the machine; without one, numba uses a work queue that
aborts the process when two Python threads enter it, as autograd's may. So each kernel here is a serial loop over some
items of a batch that lets go of the interpreter lock, and a pool of ``torch.get_num_threads()`` threads shares them.
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

# Enough to share out unequal items, few enough for the cost of a call.
PARTS_PER_THREAD = 4
OBJECTS_PER_COLLECTION = 50000


@functools.lru_cache(maxsize=None)
def available() -> bool:
    """Whether numba can be imported; a release too old for the installed numpy cannot."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def kernel(function: Callable) -> Callable:
    """Decorator: compile at the first call, of which the user is told, and keep the machine code on disk.

    For the sake of vector instructions, sums may be reordered, and a division by 0 raises nothing; nothing is assumed
    about infinities or NaN.
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
    """Let Python look for unused cycles of objects less often: numba makes so many objects that it would look through
    all those of PyTorch again and again, for a tenth of the time."""
    from numba.core.compiler_lock import global_compiler_lock

    # One thread at a time compiles, and no other takes the change for what was there before.
    with global_compiler_lock:
        before = gc.get_threshold()
        # 0: no collections at all.
        gc.set_threshold(before[0] and max(before[0], OBJECTS_PER_COLLECTION), *before[1:])
        try:
            yield
        finally:
            gc.set_threshold(*before)


def subroutine(function: Callable) -> Callable:
    """Decorator: a part of kernels, compiled and kept with each of them. It may take other subroutines as arguments.

    Python itself cannot call it, but for ``py_func``.
    """
    return _part(function)


def inlined(function: Callable) -> Callable:
    """Decorator: a small subroutine that becomes part of the loop that calls it, so that the loop can be vectorised."""
    return _part(function, forceinline=True)


def _part(function: Callable, **options) -> Callable:
    from . import numba_subroutines

    compiler = _compiler(pipeline_class=numba_subroutines.SubroutineCompiler, **numba_subroutines.OPTIONS, **options)
    return numba_subroutines.for_kernels_only(compiler(function))


def _compiler(**options) -> Callable:
    import numba

    # It reports each step of a compilation to whoever listens to all messages, as fairseq's tools do.
    logging.getLogger("numba").setLevel(logging.WARNING)
    return numba.njit(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy", **options)


def kernel_if_available(function: Callable) -> Callable:
    """Decorator: :func:`kernel` where there is numba; elsewhere the function stays as it is, at the speed of Python."""
    return kernel(function) if available() else function


def subroutine_if_available(function: Callable) -> Callable:
    """Decorator: likewise :func:`subroutine`."""
    return subroutine(function) if available() else function


def over_batch(kernel: Callable, batch: int, *arguments) -> None:
    """Call ``kernel(first, stride, *arguments)`` so often that all items ``range(first, batch, stride)`` are treated.

    Threads take parts as they come: one that has to wait for a processor, as PyTorch's own threads keep theirs busy for
    a while after an operation, leaves the work to the others. Items are dealt out to the parts in turn, so that a batch
    sorted by length is shared out evenly.
    """
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
    """Threads that do the same work as the caller; fewer, or none, where Python starts no more of them."""
    helpers = []
    try:
        for _ in range(count):
            helpers.append(_pool(count).submit(work))
    except RuntimeError:
        # The main thread has ended, or the system has no thread left. The caller does alone what nobody else takes.
        pass
    return helpers


@functools.lru_cache(maxsize=None)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="structattn")


if hasattr(os, "register_at_fork"):
    # The threads of a parent process do not exist in its forked children.
    os.register_at_fork(after_in_child=_pool.cache_clear)
