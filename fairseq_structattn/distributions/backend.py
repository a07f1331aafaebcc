"""Which implementation of the inference algorithms runs.

``auto`` (the default) takes the fastest implementation that the device, the dtype and the potentials allow. ``cuda``
insists on the Triton kernels, ``cpu`` on the kernels compiled for the CPU. ``reference`` is the specification in plain
PyTorch, which is slower; ``paper`` is the backward pass of Kim et al. (2017), which is slower still. The environment
variable ``STRUCTATTN_BACKEND`` sets the backend of a process, :func:`use_backend` that of a block of code.

A model's package has a module for each kind of implementation, all with the same functions. This module is the one
place that chooses among them: a distribution calls :func:`implementation` once for each inference.
"""

import functools
import importlib
import importlib.util
import logging
import os
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Dict, Iterator, List, Optional, Tuple

import torch

from .kernels import numba_compile, triton_launch

BACKENDS = ("auto", "cuda", "cpu", "reference", "paper")
# Candidate modules of a model's package for each kind of implementation; the first that exists is used. ``plain`` runs
# under ``auto`` where no kernels can. A model without kernels for GPUs computes in plain PyTorch there.
MODULES = {
    "cuda": ("cuda", "reference"),
    "cpu": ("cpu",),
    "plain": ("log_odds", "reference"),
    "reference": ("reference",),
    "paper": ("signed_log", "reference"),
}
ENVIRONMENT_VARIABLE = "STRUCTATTN_BACKEND"

logger = logging.getLogger(__name__)

_loaded: Dict[str, ModuleType] = {}
_override: ContextVar[Optional[str]] = ContextVar("structattn_backend", default=None)
# The blocks open in the main thread. Each has an identity because tasks of an event loop may close them in any order.
_of_main_thread: List[Tuple[object, str]] = []


def current_backend() -> str:
    """The current backend: that of the innermost :func:`use_backend`, else ``STRUCTATTN_BACKEND``, else ``auto``.

    Raises:
        ValueError: ``STRUCTATTN_BACKEND`` holds an unknown name.
    """
    override = _override.get()
    if override is not None:
        return override
    for _, name in reversed(tuple(_of_main_thread)):
        return name
    return _checked(os.environ.get(ENVIRONMENT_VARIABLE) or "auto", ENVIRONMENT_VARIABLE)


def implementation(package: str, device: torch.device) -> ModuleType:
    """The module of a model's package that computes on ``device`` under the current backend.

    Args:
        package: name of the package, such as ``fairseq_structattn.distributions.linear_chain``.
        device: device of the potentials.

    Raises:
        ValueError, ImportError, RuntimeError: as :func:`kind_of_implementation`.
    """
    return _loaded[_load(package, kind_of_implementation(device))]


def prefers_float32(device: torch.device) -> bool:
    """Whether the implementation for ``device`` is faster in float32, as the GPU kernels are."""
    return kind_of_implementation(device) == "cuda"


def kind_of_implementation(device: torch.device) -> str:
    """The key of :data:`MODULES` for tensors on ``device`` under the current backend.

    Under ``auto``, a GPU on which the kernels cannot run computes in plain PyTorch, after one warning that says why.

    Raises:
        ValueError: the current backend needs another device.
        ImportError: the current backend needs a package that is not installed.
        RuntimeError: the current backend is ``cuda``, and something else keeps the kernels from running.
    """
    backend = current_backend()
    if backend in ("reference", "paper"):
        return backend
    if backend == "auto":
        return device.type if _is_usable(device) else "plain"
    if backend == "cpu" and not numba_compile.available():
        raise ImportError("backend 'cpu' needs numba: pip install numba, or choose 'auto' or 'reference'")
    if backend == "cuda":
        if not triton_launch.available():
            raise ImportError("backend 'cuda' needs triton: pip install triton, or choose 'auto' or 'reference'")
        if device.type == "cuda" and triton_launch.obstacle(device) is not None:
            raise RuntimeError(
                f"backend 'cuda' cannot run its kernels: {triton_launch.obstacle(device)}; or choose 'auto' or "
                "'reference'"
            )
    interpreted = backend == "cuda" and device.type == "cpu" and triton_launch.interpreted()
    if device.type != backend and not interpreted:
        way_out = " (or set TRITON_INTERPRET=1 before Triton is imported)" if backend == "cuda" else ""
        raise ValueError(
            f"backend '{backend}' cannot compute on {device}; move the tensors{way_out} or choose 'auto' or 'reference'"
        )
    return backend


def _load(package: str, kind: str) -> str:
    """Import a module into ``_loaded`` and return its name, since ``torch.compile`` treats no module as a constant."""
    name = _name(package, kind)
    if name not in _loaded:
        _loaded[name] = importlib.import_module(name)
    return name


@functools.lru_cache(maxsize=None)
def _name(package: str, kind: str) -> str:
    names = (f"{package}.{name}" for name in MODULES[kind])
    return next(name for name in names if importlib.util.find_spec(name))


# torch.compile cannot read a context variable, so the functions below are evaluated once, when it compiles. This is
# torch.compiler.assume_constant_result without the seconds that importing it costs.
for function in (current_backend, kind_of_implementation, _load):
    function._dynamo_marked_constant = True  # type: ignore[union-attr]


def _is_usable(device: torch.device) -> bool:
    if device.type == "cpu":
        return numba_compile.available()
    if device.type != "cuda":
        return False
    obstacle = triton_launch.obstacle(device)
    if obstacle is not None:
        _warn(obstacle)
    return obstacle is None


@functools.lru_cache(maxsize=None)
def _warn(obstacle: str) -> None:
    """Warn once for each obstacle."""
    logger.warning("Structured attention runs in plain PyTorch on this GPU, several times slower: %s", obstacle)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run a block with the backend ``name``. A backward pass uses the backend under which its quantity was computed.

    While a block of the main thread is open, it also governs every other thread (of a pool, a data loader, autograd)
    that has no open block of its own. A block of another thread governs that thread alone. Threads that it starts
    inherit the backend through ``contextvars.copy_context().run``.

    A function of ``torch.compile`` keeps the backend under which it was compiled.

    Raises:
        ValueError: ``name`` is not one of ``auto``, ``cuda``, ``cpu``, ``reference``, ``paper``.
    """
    token = _override.set(_checked(name, "use_backend"))
    block = (object(), name)
    if threading.current_thread() is threading.main_thread():
        _of_main_thread.append(block)
    try:
        yield
    finally:
        _override.reset(token)
        if block in _of_main_thread:
            _of_main_thread.remove(block)


def _checked(name: str, origin: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{origin}: unknown backend {name!r}; choose one of: {', '.join(BACKENDS)}")
    return name
