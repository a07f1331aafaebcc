"""The wheel: built without a network, installed elsewhere, and used by ``--user-dir`` there."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools")
ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
USE = """
import json, sys
from fairseq import options
import_path = sys.argv[1]
args = options.parse_args_and_arch(options.get_training_parser(), [
    "DATA", "--user-dir", import_path, "--arch", "structattn_rnn_crf",
    "--criterion", "structattn_label_smoothed_cross_entropy", "--coverage-loss", "0.5",
])
import fairseq_structattn
print(json.dumps([fairseq_structattn.__file__, args.attention_distribution, args.coverage_loss]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the wheel was unpacked into, which is all that installing it there would do."""
    source, made, place = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "site"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fairseq_structattn", source / "fairseq_structattn", ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-c", BUILD, str(made)]
    done = subprocess.run(build, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if "invalid command 'bdist_wheel'" in done.stdout:
        pytest.skip("this setuptools needs the package wheel to build wheels")
    assert done.returncode == 0, done.stdout
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def test_it_has_every_file_of_the_package_and_nothing_else(installed):
    here = {path.relative_to(ROOT) for path in (ROOT / "fairseq_structattn").rglob("*") if path.is_file()}
    here = {path for path in here if path.suffix not in (".pyc", ".md", ".nbi", ".nbc")}
    there = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    assert {path for path in there if not path.parts[0].endswith(".dist-info")} == here


def test_it_is_used_by_user_dir(installed, tmp_path):
    settings = {**os.environ, "PYTHONPATH": str(installed), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", USE, str(installed / "fairseq_structattn")],
        cwd=tmp_path, env=settings, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    file, distribution, weight = json.loads(done.stdout.splitlines()[-1])
    assert Path(file).parent == installed / "fairseq_structattn"
    assert (distribution, weight) == ("linear-chain", 0.5)
