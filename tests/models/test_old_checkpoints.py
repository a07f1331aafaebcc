"""Stored checkpoints load, and say what they said when they were made, by tests/helpers/make_checkpoints.py."""

from pathlib import Path

import make_checkpoints
import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task

from fairseq_structattn.models.renamed_parameters import SOURCE_ATTENTION

CHECKPOINTS = sorted((Path(__file__).parent / "checkpoints").glob("*.pt"))


class Task:
    """As much of a task as fairseq asks for when it loads a model."""

    def __init__(self, name, args):
        self.name, self.args = name, args

    def build_model(self, cfg, from_checkpoint=False):
        return make_checkpoints.build(self.name, self.args)


def stored(path):
    return torch.load(path, weights_only=False)


def now_called(parameter):
    before, now = SOURCE_ATTENTION
    return ".".join(now if part == before else part for part in parameter.split("."))


def flat(said):
    for part in said.values() if isinstance(said, dict) else [said]:
        yield from part if isinstance(part, list) else [part]


def test_there_is_one_of_each():
    assert [path.stem for path in CHECKPOINTS] == sorted(make_checkpoints.NAMES)


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem)
def test_it_loads_and_says_what_it_said(path):
    state = stored(path)
    task = Task(path.stem, state["args"])
    # Started from other numbers, all of which the checkpoint has to replace.
    torch.manual_seed(2)
    (model,), _, _ = load_model_ensemble_and_task([str(path)], task=task)
    with torch.no_grad():
        said = make_checkpoints.says(path.stem, model.eval())
    for found, expected in zip(flat(said), flat(state["says"])):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, atol=1e-10 if found.dtype == torch.float64 else 1e-4, rtol=0)


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem)
def test_parameters_come_in_the_same_order(path):
    """States of an optimizer go by it, and what a seed makes of the parameters."""
    state = stored(path)
    names = [name for name, _ in make_checkpoints.build(path.stem, state["args"]).named_parameters()]
    assert names == [now_called(name) for name in state["parameters"]]
