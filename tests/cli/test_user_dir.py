"""The plugin by every path that people give to --user-dir, and installed already: it registers, and it does so once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
OTHER_NAME = "my_plugin"
TINY = [
    "--encoder-embed-dim", 8, "--encoder-hidden-size", 8, "--encoder-layers", 1,
    "--decoder-embed-dim", 8, "--decoder-hidden-size", 8, "--decoder-layers", 1, "--decoder-out-embed-dim", 8,
]  # fmt: skip

# Registries are global, so each way runs in a process of its own; forked, since importing fairseq takes seconds.
IMPORTER = """
import argparse, json, os, sys, traceback
import torch
from fairseq import criterions, models, utils
from fairseq.dataclass.configs import FairseqDataclass

def all_below(parent):
    for child in parent.__subclasses__():
        yield child
        yield from all_below(child)

def look(way):
    os.chdir(way["cwd"])
    sys.path[:0] = way["importable"]
    if way["imported"]:
        import fairseq_structattn
    for _ in range(2):
        utils.import_user_module(argparse.Namespace(user_dir=way["user_dir"]))
    names = models.ARCH_MODEL_INV_REGISTRY["structattn_rnn"]
    return {
        "arch": "structattn_rnn_crf" in models.ARCH_MODEL_REGISTRY,
        "criterion": "structattn_label_smoothed_cross_entropy" in criterions.CRITERION_REGISTRY,
        "repeated": sorted(name for name in set(names) if names.count(name) > 1),
        "models": sum(kind.__name__ == "StructuredAttentionRNN" for kind in all_below(torch.nn.Module)),
        "options": sum(kind.__name__ == "RNNOptions" for kind in all_below(FairseqDataclass)),
    }

for way in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        try:
            found = look(way)
        except BaseException:
            found = traceback.format_exc()
        with open(way["answer"], "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.waitpid(child, 0)
"""


def run_python(*args, stdin="", cwd, importable=""):
    # An empty PYTHONPATH: the package is importable only where a test says so.
    settings = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(importable))
    return subprocess.run(
        [sys.executable, *args],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=str(cwd),
        env=settings,
        check=True,
    ).stdout


# --user-dir, the working directory, whether the package can be imported anyway, and whether it has been
WAYS = {
    "relative": ("fairseq_structattn", "{parent}", False, False),
    "dot-slash": ("./fairseq_structattn", "{parent}", False, False),
    "absolute": ("{package}", "{root}", False, False),
    "trailing slash": ("{package}/", "{root}", False, False),
    "from another directory": ("{up}", "{root}", False, False),
    "link of the same name": ("{root}/links/fairseq_structattn", "{root}", False, False),
    "link of another name": ("{root}/links/my_plugin", "{root}", False, False),
    "relative link with trailing slash": ("my_plugin/", "{root}/links", False, False),
    "copy of another name": ("{root}/copies/my_plugin", "{root}", False, False),
    "installed": ("{package}", "{root}", True, False),
    "installed and imported": ("{package}", "{root}", True, True),
    "installed, link of another name": ("{root}/links/my_plugin", "{root}", True, False),
    "imported, link of another name": ("{root}/links/my_plugin", "{root}", True, True),
    "installed, copy of another name": ("{root}/copies/my_plugin", "{root}", True, False),
    "imported, copy of another name": ("{root}/copies/my_plugin", "{root}", True, True),
}


def linked(place, name):
    (place / name).symlink_to(PACKAGE, target_is_directory=True)


def prepare_jobs(root):
    for name in ("links", "copies"):
        (root / name).mkdir()
    linked(root / "links", PACKAGE.name)
    linked(root / "links", OTHER_NAME)
    shutil.copytree(str(PACKAGE), str(root / "copies" / OTHER_NAME), ignore=shutil.ignore_patterns("__pycache__"))
    places = {"package": PACKAGE, "parent": PACKAGE.parent, "root": root}
    places["up"] = os.path.relpath(str(PACKAGE), str(root))
    for number, (user_dir, cwd, installed, imported) in enumerate(WAYS.values()):
        yield {
            "user_dir": user_dir.format(**places),
            "cwd": cwd.format(**places),
            "importable": [str(PACKAGE.parent)] if installed else [],
            "imported": imported,
            "answer": str(root / f"{number}.json"),
        }


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What fairseq knows after each of `WAYS`: a dictionary, or the text of the error."""
    root = tmp_path_factory.mktemp("ways")
    jobs = list(prepare_jobs(root))
    run_python("-c", IMPORTER, stdin=json.dumps(jobs), cwd=root)
    return {way: json.loads(Path(job["answer"]).read_text()) for way, job in zip(WAYS, jobs)}


@pytest.mark.parametrize("way", WAYS)
def test_registers_once(found, way):
    assert found[way] == {"arch": True, "criterion": True, "repeated": [], "models": 1, "options": 1}


FIRST_WITHOUT_FAIRSEQ = """
import sys
from my_plugin.distributions import Categorical
from my_plugin.analysis.files import InputError
assert not {"fairseq", "omegaconf", "numba", "triton"} & set(sys.modules), "only torch is needed so far"
from fairseq import models
from fairseq.criterions import CRITERION_REGISTRY
import fairseq_structattn.distributions, my_plugin.models.rnn
import fairseq_structattn.analysis.files
print(fairseq_structattn.distributions.Categorical is Categorical)
print(fairseq_structattn.analysis.files.InputError is InputError)
print(my_plugin.models.rnn.StructuredAttentionRNN is models.ARCH_MODEL_REGISTRY["structattn_rnn_crf"])
print(models.ARCH_MODEL_INV_REGISTRY["structattn_rnn"].count("structattn_rnn_crf"))
print("structattn_label_smoothed_cross_entropy" in CRITERION_REGISTRY)
"""


def test_registers_when_fairseq_is_imported_and_not_before(tmp_path):
    linked(tmp_path, OTHER_NAME)
    printed = run_python("-c", FIRST_WITHOUT_FAIRSEQ, cwd=tmp_path)
    assert printed.split() == ["True", "True", "True", "1", "True"]


@pytest.fixture(scope="module")
def printed_directory(tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("printed")
    return run_python("-m", "fairseq_structattn", cwd=elsewhere, importable=PACKAGE.parent)


def test_module_prints_its_directory(printed_directory):
    assert printed_directory == f"{PACKAGE}\n"  # nothing else, or "$(python -m fairseq_structattn)" would not work


def train_one_update(run_fairseq, corpus, user_dir, cwd):
    return run_fairseq(
        "train", corpus.bin, "--user-dir", user_dir, "--arch", "structattn_rnn_crf", *TINY,
        "--criterion", "structattn_label_smoothed_cross_entropy", "--pairwise-l2", 0.005,
        "--optimizer", "sgd", "--lr", 0.1, "--batch-size", 8, "--max-update", 1, "--cpu", "--disable-validation",
        "--no-save", "--log-format", "json", cwd=cwd, env={"PYTHONPATH": ""},
    )  # fmt: skip


@pytest.mark.slow
def test_train_with_the_printed_directory(run_fairseq, tiny_corpus, printed_directory, tmp_path):
    output = train_one_update(run_fairseq, tiny_corpus, printed_directory.strip(), tmp_path)
    assert '"train_pairwise_l2": ' in output


@pytest.mark.slow
def test_train_through_a_link_of_another_name(run_fairseq, tiny_corpus, tmp_path):
    linked(tmp_path, OTHER_NAME)
    output = train_one_update(run_fairseq, tiny_corpus, OTHER_NAME + "/", tmp_path)
    assert '"train_pairwise_l2": ' in output
