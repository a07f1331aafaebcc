"""Hooks of imports: an action that follows an import, and one package under two names."""

import importlib
import importlib.util
import sys

import pytest

from fairseq_structattn.importing import after_import, alias


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder to import from; whatever is imported or hooked is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    return tmp_path


def test_action_follows_the_import_once(modules):
    (modules / "awaited.py").write_text("state = ['executed']")
    after_import("awaited", lambda: sys.modules["awaited"].state.append("followed"))
    assert importlib.util.find_spec("awaited").name == "awaited" and "awaited" not in sys.modules
    assert importlib.import_module("awaited").state == ["executed", "followed"]
    assert importlib.reload(sys.modules["awaited"]).state == ["executed"]
    assert importlib.util.find_spec("awaited").loader.get_source("awaited")


def test_action_comes_at_once_after_the_import(modules):
    called = []
    after_import("sys", lambda: called.append(1))
    assert called == [1]


def test_an_import_that_fails_is_not_followed(modules):
    called = []
    after_import("awaited", lambda: called.append(1))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("awaited")
    (modules / "awaited").mkdir()  # any folder is a package without code
    importlib.import_module("awaited")
    del sys.modules["awaited"]
    (modules / "awaited" / "__init__.py").write_text("1 / 0")
    importlib.invalidate_caches()
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("awaited")
    assert not called
    (modules / "awaited" / "__init__.py").write_text("")
    importlib.import_module("awaited")
    assert called == [1]


def test_modules_under_another_name_are_the_same(modules):
    (modules / "real").mkdir()
    (modules / "real" / "__init__.py").write_text("")
    (modules / "real" / "part.py").write_text("from . import other")
    (modules / "real" / "other.py").write_text("import missing_altogether")
    real = importlib.import_module("real")
    alias("nick", "real")
    with pytest.raises(ModuleNotFoundError, match="missing_altogether"):
        importlib.import_module("nick.part")
    (modules / "real" / "other.py").write_text("")
    importlib.invalidate_caches()
    part = importlib.import_module("nick.part")
    assert part is real.part is importlib.import_module("real.part") and sys.modules["nick"] is real
    assert part.__name__ == part.__spec__.name == "real.part"
    with pytest.raises(ModuleNotFoundError, match="nick.nothing"):
        importlib.import_module("nick.nothing")
