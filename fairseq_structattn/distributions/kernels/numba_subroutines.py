"""Compilation of subroutines that are only linked into kernels and never called from Python.

numba compiles every function as if Python might call it: it optimises the function and generates machine code with an
entry for Python and one for C. Then it copies the function into each caller, and optimises and generates code once
more. Half of the compile time of the kernels would go into code that is never run.
"""

import weakref
from typing import Callable

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

OPTIONS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
NO_ADDRESS = 0


def for_kernels_only(dispatcher) -> Callable:
    """The dispatcher of a function compiled with :data:`OPTIONS` and :class:`SubroutineCompiler`. A call from Python,
    which would crash the process, raises ``TypeError``."""
    name = dispatcher.py_func.__name__

    def refuse(*arguments, **named):
        raise TypeError(f"{name} is compiled as a part of kernels only; Python may call {name}.py_func")

    def add_overload(result) -> None:
        # Unlike numba's own method, this one does not make the result callable from Python.
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher._compile_for_args, dispatcher.add_overload = refuse, add_overload
    return dispatcher


class SubroutineCompiler(Compiler):
    """numba's compiler with :class:`_Library` as its output."""

    def __init__(self, typing_context, target_context, library, *others, **named):
        if library is None:
            library = _Library(target_context.codegen(), "subroutine")
            library.enable_object_caching()
        super().__init__(typing_context, target_context, library, *others, **named)


class _Library(JITCodeLibrary):
    """Optimised LLVM code for other libraries to link, without machine code of its own."""

    @property
    def codegen(self):
        return _WithoutEnvironments(self._codegen)

    def get_pointer_to_function(self, name) -> int:
        return NO_ADDRESS

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        # numba looks up the cached object of a module through this attribute.
        self._final_module.__library = weakref.proxy(self)
        self._finalized = True


class _WithoutEnvironments:
    """A code generator that stores no environments of Python objects, since the code is never loaded into memory."""

    def __init__(self, codegen):
        self._codegen = codegen

    def __getattr__(self, name):
        return getattr(self._codegen, name)

    def set_env(self, name, environment) -> None:
        pass
