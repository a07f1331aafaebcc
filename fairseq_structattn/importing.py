"""Two things that happen when a module is imported: it stands for another one, or something follows.

Both are finders as :mod:`importlib` asks them, the first of all, and neither looks at any module but its own.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from typing import Callable


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls `action` as soon as the module `name` has been imported: now, if it has been already."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Followed(name, action))


def alias(name: str, package: str) -> None:
    """Lets `name` stand for `package`, which is imported already, and ``name.module`` for each of its modules, those
    too which are not imported yet, so that none is loaded twice."""
    sys.modules[name] = sys.modules[package]
    sys.meta_path.insert(0, _Renamed(name + ".", package + "."))


class _Followed(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, and appends an action to its execution."""

    def __init__(self, name: str, action: Callable[[], None]):
        self.name, self.action = name, action

    def find_spec(self, name, path=None, target=None):
        spec = self._found(path, target) if name == self.name else None
        # A folder of that name without code is no package, only what Python makes of any folder.
        if spec is not None and spec.origin is not None and hasattr(spec.loader, "exec_module"):
            spec.loader.exec_module = self._followed(spec.loader.exec_module)
        return spec

    def _found(self, path, target):
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        found = (finder.find_spec(self.name, path, target) for finder in others)
        return next((spec for spec in found if spec is not None), None)

    def _followed(self, execute: Callable) -> Callable:
        def execute_and_act(module):
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.action()

        return execute_and_act


class _Renamed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, for names that begin with one prefix, the modules whose names begin with another."""

    def __init__(self, prefix: str, real: str):
        self.prefix, self.real = prefix, real

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(self.prefix):
            return None
        try:
            module = importlib.import_module(self.real + name[len(self.prefix) :])
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.startswith(self.real):
                return None
            raise
        return importlib.machinery.ModuleSpec(name, self, loader_state=(module, module.__spec__))

    def create_module(self, spec):
        return spec.loader_state[0]

    def exec_module(self, module):
        # Python has just written the new name over the module's own specification.
        module.__spec__ = module.__spec__.loader_state[1]
