"""Machine code on the disk: where it is, what it is found by, and what the user is told."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("numba")

from fairseq_structattn.distributions.kernels import numba_cache, numba_compile  # noqa: E402

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import numpy as np
from fairseq_structattn.distributions.kernels import numba_cache, numba_compile, numba_simd
from fairseq_structattn.distributions.linear_chain import cpu_binary
from fairseq_structattn.distributions.projective_tree import cpu
from tests.distributions.test_numba_cache import kernel_of
kernel = kernel_of(sys.argv[1])
items = np.zeros(3)
kernel(0, 1, items)
print(sum(kernel.stats.cache_hits.values()), items[0], *map(numba_cache.stamp, (cpu_binary._backward, cpu._forward)))
"""


def kernel_of(constant="1.0", by="+=", place="somewhere"):
    """A kernel with a subroutine in a file of its own, both of this package."""
    modules = [ModuleType(f"fairseq_structattn.made_{name}") for name in ("parts", "kernels")]
    # numba imports the module of what it finds on the disk.
    sys.modules.update((module.__name__, module) for module in modules)
    parts, kernels = (vars(module) for module in modules)
    parts.update(numba_compile=numba_compile, AMOUNT=float(constant))
    kernels.update(numba_compile=numba_compile, parts=modules[0])
    part = f"def change(items, item):\n    items[item] {by} AMOUNT\nchange = numba_compile.subroutine(change)"
    exec(compile(part, f"/{place}/parts.py", "exec"), parts)
    loop = "def run(first, stride, items):\n  for item in range(first, len(items), stride): parts.change(items, item)"
    exec(compile(loop, f"/{place}/kernels.py", "exec"), kernels)
    return numba_compile.kernel(kernels["run"])


def hits(kernel):
    """How often the machine code came from the disk, when it runs."""
    items = np.ones(2)
    kernel(0, 1, items)
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTATTN_CACHE", str(tmp_path / "cache"))
    numba_cache.tell.cache_clear()
    yield tmp_path / "cache"
    numba_cache.tell.cache_clear()


def test_code_is_found_again_from_wherever_the_sources_are(place):
    assert hits(kernel_of()) == 0
    assert hits(kernel_of()) == hits(kernel_of(place="another/checkout")) == 1


@pytest.mark.parametrize("changed", ({"constant": "2.0"}, {"by": "*="}), ids=("constant", "subroutine"))
def test_code_is_not_found_for_other_subroutines_or_constants(changed):
    assert hits(kernel_of()) == 0
    assert hits(kernel_of(**changed)) == 0
    assert hits(kernel_of()) == 1


def test_versions_and_options_are_part_of_the_name(monkeypatch):
    import numba

    assert hits(kernel_of()) == 0
    with monkeypatch.context() as patch:
        patch.setattr(numba, "__version__", "0")
        assert hits(kernel_of()) == 0
    compiler = numba_compile._compiler
    monkeypatch.setattr(numba_compile, "_compiler", lambda **options: compiler(**{**options, "boundscheck": True}))
    assert hits(kernel_of()) == 0


def run(checkout=ROOT, constant="1", **environment):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, constant]
    environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{ROOT}", **environment}
    return subprocess.run(command, env=environment, cwd=str(checkout), check=True, capture_output=True, text=True)


def test_another_checkout_takes_what_the_first_compiled_and_only_the_first_tells(place, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    subprocess.run(["cp", "-r", str(ROOT / "fairseq_structattn"), str(copy)], check=True)
    first, second = run(PYTHONHASHSEED="1"), run(copy, PYTHONHASHSEED="2")
    assert first.stdout.split()[:2] == ["0", "1.0"] and second.stdout.split()[:2] == ["1", "1.0"]
    assert first.stdout.split()[2:] == second.stdout.split()[2:]
    assert first.stderr.count("compiling kernels") == 1 and str(place) in first.stderr
    assert second.stderr == ""


def test_folder_is_the_chosen_one_then_numbas_then_the_users(tmp_path, monkeypatch):
    from numba.core import config

    assert numba_cache.folder() == tmp_path / "cache"
    monkeypatch.delenv("STRUCTATTN_CACHE")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "numba"))
    assert numba_cache.folder() == tmp_path / "numba"
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    if sys.platform.startswith("linux"):
        assert numba_cache.folder() == tmp_path / "user" / "fairseq_structattn"


def test_logging_tells_where_it_is_set_up(caplog):
    with caplog.at_level(logging.INFO):
        hits(kernel_of())
        hits(kernel_of("3.0"))
    assert [record.message.count("compiling kernels") for record in caplog.records] == [1]


def test_kernels_compile_where_nothing_can_be_written(place, monkeypatch, caplog):
    place.write_text("a file where the folder should be")
    assert numba_cache.folder() is None
    with caplog.at_level(logging.INFO):
        assert hits(kernel_of()) == hits(kernel_of()) == 0
    assert "STRUCTATTN_CACHE" in caplog.text
    monkeypatch.setenv("STRUCTATTN_CACHE", "~nobody/cache")
    assert numba_cache.folder() is None and not os.path.exists("~nobody")


def test_damaged_files_are_compiled_anew(place):
    assert hits(kernel_of()) == 0
    (path,) = place.rglob("*.bin")
    path.write_bytes(path.read_bytes()[:-1])
    assert hits(kernel_of()) == 0
    assert hits(kernel_of()) == 1
    numba_cache._write(path, b"what another program wrote")
    assert hits(kernel_of()) == 0
    assert hits(kernel_of()) == 1


def test_what_is_not_used_goes_when_something_new_comes(place, monkeypatch):
    assert hits(kernel_of()) == 0
    (old,) = place.rglob("*.bin")
    os.utime(old, (1, 1))
    (place / "other").mkdir()
    (place / "other" / "kept").write_text("of another kernel")
    assert hits(kernel_of("2.0")) == 0
    assert not old.exists() and (place / "other" / "kept").exists()
    monkeypatch.setattr(numba_cache, "MOST_FILES", 2)
    for number in range(3, 6):
        past = time.time() - 100 + number
        for path in old.parent.iterdir():
            os.utime(path, (past, past))
        assert hits(kernel_of(str(number))) == 0
    assert len(list(old.parent.iterdir())) == 2
    assert hits(kernel_of("5")) == 1
