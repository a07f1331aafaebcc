"""Subroutines that are compiled for kernels only: for these to take in, not to be run.

numba treats every function that it compiles as if Python might call it: it is optimised, turned into machine code with
an entry for Python and another for C, and then copied into each function that calls it, to be optimised and turned into
machine code there once more. Half of the time that kernels take to compile goes into code that nothing ever runs.
"""

import weakref
from typing import Callable

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

OPTIONS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
NO_ADDRESS = 0


def for_kernels_only(dispatcher) -> Callable:
    """The dispatcher of a function compiled with :data:`OPTIONS` and :class:`SubroutineCompiler`; Python's calls, which
    would end the process, raise ``TypeError``."""
    name = dispatcher.py_func.__name__

    def refuse(*arguments, **named):
        raise TypeError(f"{name} is compiled as a part of kernels only; Python may call {name}.py_func")

    def add_overload(result) -> None:
        # Not among what the dispatcher may call.
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher._compile_for_args, dispatcher.add_overload = refuse, add_overload
    return dispatcher


class SubroutineCompiler(Compiler):
    """numba's compiler, but for what becomes of the code."""

    def __init__(self, typing_context, target_context, library, *others, **named):
        if library is None:
            library = _Library(target_context.codegen(), "subroutine")
            library.enable_object_caching()
        super().__init__(typing_context, target_context, library, *others, **named)


class _Library(JITCodeLibrary):
    """Optimised code for other libraries to link, of which no machine code is made."""

    @property
    def codegen(self):
        return _WithoutEnvironments(self._codegen)

    def get_pointer_to_function(self, name) -> int:
        return NO_ADDRESS

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        # The library of a module is what numba asks for its cached object.
        self._final_module.__library = weakref.proxy(self)
        self._finalized = True


class _WithoutEnvironments:
    """A generator of code that writes down no Python objects for code that has no place in memory."""

    def __init__(self, codegen):
        self._codegen = codegen

    def __getattr__(self, name):
        return getattr(self._codegen, name)

    def set_env(self, name, environment) -> None:
        pass
