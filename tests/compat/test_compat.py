"""`compat` as a whole: the defects of the installed versions, and that nothing is left of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import checkpoint_utils
from fairseq.data import data_utils, language_pair_dataset, token_block_dataset
from fairseq.dataclass import initialize
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch, Sampling
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer

from fairseq_structattn import compat

REPOSITORY = Path(__file__).resolve().parents[2]

# Says which defects the installed versions have, before and after the repairs.
DIAGNOSIS = """
import argparse, json, io, pickle, sys, types
import numpy, torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils, language_pair_dataset
# The module by itself: importing its package would repair everything before the first look.
package = types.ModuleType("fairseq_structattn")
package.__path__ = [sys.argv[1]]
sys.modules["fairseq_structattn"] = package
from fairseq_structattn import compat

def loads(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    try:
        checkpoint_utils.torch.load(buffer)
    except pickle.UnpicklingError:
        return False
    return True

def buckets():
    try:
        return data_utils.get_buckets(numpy.arange(10), 2).tolist()
    except TypeError:
        return None

def look():
    batches = data_utils.batch_by_size(
        numpy.arange(100), lambda index: 1, max_sentences=8, required_batch_size_multiple=8)
    return {
        "batched": sum(map(len, batches)),
        "buckets": buckets(),
        "long": hasattr(getattr(language_pair_dataset.np, "compat", None), "long"),
        "namespace": loads(argparse.Namespace(a=1)),
        "array": loads(numpy.arange(3)),
    }

before = look()
compat.apply()
print(json.dumps([before, look()]))
"""


@pytest.fixture(scope="module")
def diagnosis():
    code = [sys.executable, "-W", "ignore", "-c", DIAGNOSIS, str(REPOSITORY / "fairseq_structattn")]
    printed = subprocess.run(code, stdout=subprocess.PIPE, check=True, cwd=str(REPOSITORY)).stdout
    return json.loads(printed.decode().splitlines()[-1])


def test_installed_versions_have_the_defects_they_are_known_for(diagnosis):
    before, _ = diagnosis
    if "compute_block_mask_1d" in vars(data_utils):  # came to fairseq's main together with the lost sentences
        assert before["batched"] == 96
    if int(np.__version__.split(".")[0]) >= 2:
        assert before["buckets"] is None
    if not hasattr(np, "compat"):
        assert not before["long"]
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
        assert not before["namespace"] and not before["array"]


def test_nothing_is_left_of_them(diagnosis):
    _, after = diagnosis
    assert after == {"batched": 100, "buckets": [4, 9], "long": True, "namespace": True, "array": True}


def test_applying_twice_changes_nothing_more():
    compat.apply()
    before = repaired_places()
    compat.apply()
    assert all(old is new for old, new in zip(before, repaired_places()))


def repaired_places():
    modules = language_pair_dataset.np, token_block_dataset.np, checkpoint_utils.torch
    functions = data_utils.batch_by_size, data_utils.get_buckets, initialize.add_defaults
    searches = SequenceGeneratorWithAlignment.generate, SequenceScorer.generate, SequenceGenerator._generate
    return *modules, *functions, *searches, NGramRepeatBlock._no_repeat_ngram, DiverseBeamSearch.step, Sampling.step


# Says what the log has of an import of the plugin, and what that changed.
IMPORT = """
import io, logging, sys
printed = io.StringIO()
logging.basicConfig(stream=printed, level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import fairseq
from fairseq import checkpoint_utils, sequence_generator, tasks
from fairseq.data import data_utils
def looked_at():
    return vars(data_utils).copy(), vars(checkpoint_utils).copy(), vars(sequence_generator.SequenceGenerator).copy()
before = looked_at()
import fairseq_structattn
print("the same" if looked_at() == before else "changed", "structattn_translation" in tasks.TASK_REGISTRY)
print("".join(line for line in printed.getvalue().splitlines(True) if line.startswith("fairseq_structattn")))
"""


@pytest.mark.parametrize("setting", ["0", "1"])
def test_one_line_says_what_is_repaired_and_a_variable_leaves_fairseq_alone(setting):
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "STRUCTATTN_COMPAT": setting},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert printed[0] == ("the same True" if setting == "0" else "changed True")
    assert len(printed) == 3 and not printed[2]
    assert printed[1].startswith("fairseq_structattn.compat INFO ") and "STRUCTATTN_COMPAT=0" in printed[1]
    if setting == "1":
        assert "loading of checkpoints" in printed[1]


def test_other_settings_are_refused(monkeypatch):
    monkeypatch.setenv("STRUCTATTN_COMPAT", "off")
    with pytest.raises(ValueError, match="STRUCTATTN_COMPAT=off: write 0"):
        compat.apply()
