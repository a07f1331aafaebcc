"""Cache of machine code on disk, in the user's cache folder, shared by all checkouts.

numba's own cache lies beside the sources, where an uninstallation leaves it, and its key is the content of one source
file. Here the key is all that the machine code depends on: the code of the kernel and of all its subroutines, the
constants that they use, compiler options, argument types, the processor, and the versions of Python, numba, llvmlite
and numpy. So a kernel is compiled again only if one of these has changed. Processes that compile the same kernel at the
same time write the same file: each writes a temporary file and moves it into place.

Folder: ``$STRUCTATTN_CACHE``, else ``$NUMBA_CACHE_DIR``, else ``fairseq_structattn`` in the user's cache folder
(``$XDG_CACHE_HOME`` or ``~/.cache``; ``~/Library/Caches``; ``%LOCALAPPDATA%``). It may be deleted at any time. If it is
not writable, every process compiles anew.
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

# fairseq may import the package under another name.
PACKAGE = __name__.split(".")[0]
FOLDER = "fairseq_structattn"
DIGEST_BYTES = 32
# Limits for each kernel: saving a file deletes those unused for this long, and the oldest if there are too many.
DAYS_UNUSED = 30
MOST_FILES = 32

logger = logging.getLogger(__name__)


class KernelCache:
    """The cache of a numba dispatcher, in place of numba's ``FunctionCache``.

    Args:
        dispatcher: the kernel's dispatcher, with its options
    """

    def __init__(self, dispatcher):
        self._dispatcher = dispatcher

    @property
    def cache_path(self) -> Optional[str]:
        """The folder of this kernel; ``None`` if no cache folder is writable."""
        top = folder()
        name = f"{self._dispatcher.py_func.__module__}.{self._dispatcher.py_func.__qualname__}"
        return str(top / name) if top else None

    def load_overload(self, signature, target_context):
        """The compiled kernel for ``signature``; ``None``, after telling the user, if it has to be compiled."""
        from numba.core.compiler import CompileResult

        target_context.refresh()
        own_folder = self.cache_path
        if own_folder is not None:
            try:
                payload = _read(self._file(own_folder, signature, target_context.codegen()))
                return CompileResult._rebuild(target_context, *payload)
            except FileNotFoundError:
                pass
            # Whatever is wrong with a file, the kernel can be compiled.
            except Exception as error:
                logger.debug("machine code that cannot be read: %r", error)
        tell()
        return None

    def save_overload(self, signature, result) -> None:
        """Save the code compiled for ``signature``; failures are silent."""
        from numba.core.serialize import dumps

        own_folder = self.cache_path
        if own_folder is None or result.library.has_dynamic_globals:
            return
        try:
            _write(self._file(own_folder, signature, result.codegen), dumps(result._reduce()))
            _prune(Path(own_folder))
        except OSError as error:
            logger.debug("cannot keep machine code: %s", error)

    def flush(self) -> None:
        """Delete all code of this kernel."""
        own_folder = self.cache_path
        if own_folder is not None:
            for path in Path(own_folder).glob("*.bin"):
                _remove(path)

    def enable(self) -> None:
        """Does nothing; numba's interface requires it."""

    disable = enable

    def _file(self, own_folder: str, signature, codegen) -> Path:
        parts = (repr(signature), repr(codegen.magic_tuple()), stamp(self._dispatcher))
        return Path(own_folder) / (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] + ".bin")


def folder() -> Optional[Path]:
    """The cache folder, created if necessary; ``None`` if it is not writable."""
    from numba.core import config
    from numba.misc.appdirs import AppDirs

    chosen = os.environ.get("STRUCTATTN_CACHE") or config.CACHE_DIR
    return _writable(chosen or AppDirs(appname=FOLDER, appauthor=False).user_cache_dir)


@functools.lru_cache(maxsize=None)
def _writable(path: str) -> Optional[Path]:
    # A tilde remains if the user has no home folder.
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
    """Report, once in a process, that kernels are being compiled and where their code is saved."""
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
    """A digest of all that determines a kernel's machine code, except its argument types and the processor."""
    parts = set(_versions())
    seen, waiting = {id(dispatcher)}, [(dispatcher, dispatcher.py_func)]
    while waiting:
        value, function = waiting.pop()
        for option, choice in getattr(value, "targetoptions", {}).items():
            parts.add(f"option {function.__qualname__} {option} {_description(choice)}")
        parts.add(f"code {_code(function.__code__)!r} {function.__defaults__!r}")
        for name, used in _used_by(function):
            own = _function_of(used)
            if own is None:
                parts.add(f"constant {name} {_description(used)}")
            elif id(used) not in seen:
                seen.add(id(used))
                waiting.append((used, own))
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _versions() -> Iterator[str]:
    import llvmlite
    import numba
    import numpy

    yield f"python {sys.implementation.cache_tag}"
    for module in (numba, llvmlite, numpy):
        yield f"{module.__name__} {module.__version__}"


def _function_of(value) -> Optional[FunctionType]:
    """The function of this package that ``value`` is, dispatches to or implements; ``None`` for anything else."""
    function = getattr(value, "py_func", None) or getattr(value, "_defn", None) or value
    # numba's own functions come with its version.
    own = isinstance(function, FunctionType) and (value is not function or _is_own(function.__module__))
    return function if own else None


def _is_own(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def _code(code: CodeType) -> Tuple:
    """The code of a function, independent of its file and line."""
    constants = [_code(part) if isinstance(part, CodeType) else _description(part) for part in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _used_by(function: FunctionType) -> Iterator[Tuple[str, Any]]:
    """Names and values of the globals and closure variables that a function may use."""
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
    """A text that is the same in every process: without addresses, and independent of the order of sets."""
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_description, value)))
    if hasattr(value, "tobytes"):
        return f"{value.dtype} {value.shape} {value.tobytes()!r}"
    if isinstance(value, (FunctionType, ModuleType, type)):
        return f"{getattr(value, '__module__', '')}.{value.__name__}"
    # For a type of this package, the module that defines it also defines how numba compiles it.
    where = type(value).__module__
    return repr(value) + (_digest(sys.modules[where].__file__) if _is_own(where) else "")


@functools.lru_cache(maxsize=None)
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _read(path: Path):
    """The object that :func:`_write` saved; raises if the file is damaged."""
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
        # The file belongs to another user (in a container image, say), so this user never deletes it either.
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
