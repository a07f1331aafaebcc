"""Machine code that outlives the process: kept in the user's cache folder, and taken from there by every checkout.

numba keeps it beside the sources, where an uninstallation leaves it, by the content of a single file. Here a file is
named by all that its code depends on: what the kernel and its subroutines, and theirs, do, the constants that they
name, how they are compiled, the types of the arguments, the processor, and the versions of Python, numba, llvmlite and
numpy. So nothing is compiled again because something else has changed, and processes that compile the same kernel at
the same time write the same file, beside it and moved into place.

Folder: ``$STRUCTATTN_CACHE``, else ``$NUMBA_CACHE_DIR``, else ``fairseq_structattn`` in the user's cache folder
(``$XDG_CACHE_HOME`` or ``~/.cache``; ``~/Library/Caches``; ``%LOCALAPPDATA%``). It may be deleted at any time. Where it
cannot be written, code is compiled by every process anew.
"""

import functools
import hashlib
import logging
import os
import pickle
import sys
import tempfile
import time
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Iterator, Optional, Tuple

# fairseq may import the package by another name.
PACKAGE = __name__.split(".")[0]
FOLDER = "fairseq_structattn"
DIGEST_BYTES = 32
# Of one kernel: what has not been used for so long goes when something new comes, and so does the oldest of too many.
DAYS_UNUSED = 30
MOST_FILES = 32

logger = logging.getLogger(__name__)


class KernelCache:
    """What a dispatcher of numba asks for machine code before it compiles (numba's ``FunctionCache`` is another).

    Args:
        dispatcher: of the kernel, with its options
    """

    def __init__(self, dispatcher):
        self._dispatcher = dispatcher

    @property
    def cache_path(self) -> Optional[str]:
        """The folder of this kernel, ``None`` where none can be had."""
        top = folder()
        name = f"{self._dispatcher.py_func.__module__}.{self._dispatcher.py_func.__qualname__}"
        return str(top / name) if top else None

    def load_overload(self, signature, target_context):
        """The compiled kernel for ``signature``, or ``None`` if it has to be compiled, of which the user is told."""
        from numba.core.compiler import CompileResult

        target_context.refresh()
        if self.cache_path is not None:
            try:
                payload = _read(self._path(signature, target_context.codegen()))
                return CompileResult._rebuild(target_context, *payload)
            except FileNotFoundError:
                pass
            # Whatever is wrong with a file, to compile is always possible.
            except Exception as error:
                logger.debug("machine code that cannot be read: %r", error)
        tell()
        return None

    def save_overload(self, signature, result) -> None:
        """Keep what was compiled for ``signature``; quietly not, where it cannot be."""
        from numba.core.serialize import dumps

        if self.cache_path is None or result.library.has_dynamic_globals:
            return
        try:
            _write(self._path(signature, result.codegen), dumps(result._reduce()))
            _prune(Path(self.cache_path))
        except OSError as error:
            logger.debug("cannot keep machine code: %s", error)

    def flush(self) -> None:
        """Forget all code of this kernel."""
        if self.cache_path is not None:
            for path in Path(self.cache_path).glob("*.bin"):
                _remove(path)

    def enable(self) -> None:
        """Part of what numba expects."""

    disable = enable

    def _path(self, signature, codegen) -> Path:
        parts = (repr(signature), repr(codegen.magic_tuple()), stamp(self._dispatcher))
        return Path(self.cache_path) / (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] + ".bin")


def folder() -> Optional[Path]:
    """Where machine code is kept, made if need be, or ``None`` if nothing can be written there."""
    from numba.core import config
    from numba.misc.appdirs import AppDirs

    chosen = os.environ.get("STRUCTATTN_CACHE") or config.CACHE_DIR
    return _writable(chosen or AppDirs(appname=FOLDER, appauthor=False).user_cache_dir)


@functools.lru_cache(maxsize=None)
def _writable(path: str) -> Optional[Path]:
    # A tilde that is still there belongs to a user without a home.
    if path.startswith("~"):
        return None
    try:
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return None
    return Path(path).absolute()


@functools.lru_cache(maxsize=None)
def tell() -> None:
    """Say, once in a process, that kernels are being compiled and where the machine code will be."""
    message = "compiling kernels for this processor, which takes some seconds"
    if folder() is None:
        message += " in every process: no place to keep them can be written to, STRUCTATTN_CACHE may name one"
    else:
        message += f" the first time only; they are kept in {folder()}"
    if logger.hasHandlers():
        logger.info(message)
    else:
        print(f"{FOLDER}: {message}", file=sys.stderr, flush=True)


def stamp(dispatcher) -> str:
    """A digest of all that decides about a kernel's machine code, but for its arguments' types and the processor."""
    parts = set(_versions())
    seen, waiting = {id(dispatcher)}, [dispatcher]
    while waiting:
        value = waiting.pop()
        function = _function_of(value)
        for option, choice in getattr(value, "targetoptions", {}).items():
            parts.add(f"option {function.__qualname__} {option} {_description(choice)}")
        parts.add(f"code {_code(function.__code__)!r} {function.__defaults__!r}")
        for name, used in _used_by(function):
            if _function_of(used) is None:
                parts.add(f"constant {name} {_description(used)}")
            elif id(used) not in seen:
                seen.add(id(used))
                waiting.append(used)
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _versions() -> Iterator[str]:
    import llvmlite
    import numba
    import numpy

    yield f"python {sys.implementation.cache_tag}"
    for module in (numba, llvmlite, numpy):
        yield f"{module.__name__} {module.__version__}"


def _function_of(value) -> Optional[FunctionType]:
    """The function of this package behind a dispatcher, an intrinsic or itself; ``None`` for anything else."""
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    # numba's own functions come with its version.
    own = isinstance(function, FunctionType) and (value is not function or _is_own(function.__module__))
    return function if own else None


def _is_own(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def _code(code: CodeType) -> Tuple:
    """What a function does, wherever it stands in whatever file."""
    constants = [_code(part) if isinstance(part, CodeType) else _description(part) for part in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _used_by(function: FunctionType) -> Iterator[Tuple[str, Any]]:
    """Names and values of the globals and of the enclosing variables that a function may use."""
    names = set(_names(function.__code__))
    scopes = [function.__globals__]
    for name in names & set(function.__globals__):
        value = function.__globals__[name]
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            scopes.append(vars(value))
    for scope in scopes:
        yield from ((name, scope[name]) for name in names & set(scope))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        yield name, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _description(value) -> str:
    """The same in every process: without addresses, and without the order of a set."""
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_description, value)))
    if hasattr(value, "tobytes"):
        return f"{value.dtype} {value.shape} {value.tobytes()!r}"
    if isinstance(value, (FunctionType, ModuleType, type)):
        return f"{getattr(value, '__module__', '')}.{value.__name__}"
    # How numba treats values of a type of this package is written beside the type.
    where = type(value).__module__
    return repr(value) + (_digest(sys.modules[where].__file__) if _is_own(where) else "")


@functools.lru_cache(maxsize=None)
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _read(path: Path):
    """What :func:`_write` was given; an error if that is not what is there."""
    content = path.read_bytes()
    digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if digest != hashlib.sha256(data).digest():
        raise ValueError(f"{path} is damaged")
    _touch(path)
    return pickle.loads(data)


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        # Somebody else's, such as an image's: never pruned by this user either.
        pass


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(temporary, path)
    except BaseException:
        _remove(Path(temporary))
        raise


def _prune(place: Path) -> None:
    dated = []
    for path in place.iterdir():
        try:
            dated.append((path.stat().st_mtime, path))
        except OSError:
            continue
    limit = time.time() - DAYS_UNUSED * 24 * 3600
    for number, (date, path) in enumerate(sorted(dated, reverse=True)):
        if date < limit or number >= MOST_FILES:
            _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
