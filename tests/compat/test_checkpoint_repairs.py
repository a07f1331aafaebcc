"""Repair of checkpoint loading: what a fairseq checkpoint has in it loads, and nothing else does."""

import argparse
import builtins
import functools
import io
import os
import pickle
import subprocess
import zipfile

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import checkpoint_utils, options  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from fairseq_structattn.compat.checkpoints import refuses_checkpoints, repair_checkpoint_loading  # noqa: E402


def _save(thing, path):
    torch.save(thing, str(path))
    return str(path)


def _load(path):
    """As fairseq loads a checkpoint, whatever is in the file."""
    return checkpoint_utils.torch.load(path)


def _extra_state():
    meter = {"val": np.float64(0.5), "sum": np.array([3, 2, 1, 0]), "count": np.int64(4), "round": None}
    return {
        "train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
        "metrics": {"valid": [(0, "_bleu_counts", "AverageMeter", meter)]},
        "best": np.float32(1.5),
        "float16": np.zeros((2, 3), dtype=np.float16),
        "flag": np.bool_(True),
        "big-endian": np.arange(3, dtype=">i4"),
        "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
    }


@functools.lru_cache(maxsize=None)
def _configuration():
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["data", "--arch", "lstm", "--encoder-embed-dim", "8"])
    return OmegaConf.to_container(convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True)


def _checkpoint():
    """What fairseq's trainer saves of a stock model without a dataclass, whose options are a namespace."""
    assert isinstance(_configuration()["model"], argparse.Namespace)
    return {
        "args": None,
        "cfg": dict(_configuration()),
        "model": {"weight": torch.ones(2, 2)},
        "criterion": None,
        "optimizer_history": [
            {"criterion_name": "c", "optimizer_name": "o", "lr_scheduler_state": {"best": 1.0}, "num_updates": 3}
        ],
        "task_state": {},
        "extra_state": _extra_state(),
        "last_optimizer_state": {"state": {}, "param_groups": []},
    }


def _assert_same(loaded, saved):
    assert set(loaded) >= set(saved)
    for key, value in saved.items():
        if isinstance(value, (np.ndarray, np.generic)):
            native = value.dtype.newbyteorder("=")  # numpy itself turns bytes round when it loads an array
            assert loaded[key].dtype == native and loaded[key].shape == value.shape
            np.testing.assert_array_equal(loaded[key], value)


def test_fairseq_checkpoint_loads(tmp_path):
    path = _save(_checkpoint(), tmp_path / "checkpoint.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides={"encoder_embed_dim": 16})
    assert state["cfg"].model.encoder_embed_dim == 16
    assert torch.equal(state["model"]["weight"], torch.ones(2, 2))
    _assert_same(state["extra_state"], _extra_state())
    _assert_same(state["extra_state"]["metrics"]["valid"][0][3], _extra_state()["metrics"]["valid"][0][3])


def test_loaded_arrays_are_saved_as_plain_ones(tmp_path):
    state = checkpoint_utils.load_checkpoint_to_cpu(_save(_checkpoint(), tmp_path / "first.pt"))
    path = _save(state["extra_state"], tmp_path / "second.pt")
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    assert b"fairseq_structattn" not in pickled
    _assert_same(_load(path), _extra_state())


def test_checkpoints_of_either_numpy_load(tmp_path):
    ours, theirs = b"numpy._core.multiarray", b"numpy.core.multiarray"
    if int(np.__version__.split(".")[0]) < 2:
        ours, theirs = theirs, ours
    path = tmp_path / "other.pt"
    with zipfile.ZipFile(_save(_extra_state(), tmp_path / "own.pt")) as own, zipfile.ZipFile(str(path), "w") as other:
        for name in own.namelist():
            content = own.read(name)
            if name.endswith("data.pkl"):
                assert ours in content
                content = content.replace(ours, theirs)
            other.writestr(name, content)
    _assert_same(_load(str(path)), _extra_state())


class Call:
    """An object whose unpickling calls a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


class Stranger:
    """A class that no fairseq checkpoint contains."""


def _attacks(victim):
    return {
        "os.system": Call(os.system, f"touch '{victim}'"),
        "exec": Call(builtins.exec, f"open({victim!r}, 'w').close()"),
        "open": Call(builtins.open, victim, "w"),
        "process": Call(subprocess.call, ["touch", victim]),
    }


def _protected():
    if not hasattr(torch.serialization, "get_safe_globals"):
        return False
    buffer = io.BytesIO()
    torch.save(Stranger(), buffer)
    buffer.seek(0)
    try:
        torch.load(buffer)
    except pickle.UnpicklingError:
        return True
    return False


needs_protection = pytest.mark.skipif(not _protected(), reason="this torch loads everything by default")


@needs_protection
@pytest.mark.parametrize("attack", sorted(_attacks("")))
@pytest.mark.parametrize("inside", ["extra_state", "cfg"])
def test_crafted_checkpoint_is_refused(tmp_path, attack, inside):
    victim = tmp_path / "victim"
    checkpoint = _checkpoint()
    payload = _attacks(str(victim))[attack]
    checkpoint[inside]["payload"] = argparse.Namespace(hidden=[payload]) if inside == "cfg" else payload
    path = _save(checkpoint, tmp_path / "crafted.pt")
    with pytest.raises(pickle.UnpicklingError):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert not victim.exists()
    torch.load(path, weights_only=False)
    assert victim.exists(), "the attack is not one, so nothing was tested"


@needs_protection
@pytest.mark.parametrize(
    "thing",
    [
        Stranger(),
        Call(getattr, "text", "upper"),
        Call(np.ndarray, (1,), "O", b"\0" * 8),  # eight bytes followed as a pointer
        Call(np.dtype, "O"),
        Call(np.dtype, [("number", "i4"), ("thing", "O")]),
        np.array([argparse.Namespace()], dtype=object),
        np.array(["text"]),
    ],
    ids=["class", "getattr", "raw objects", "object type", "structure", "object array", "text array"],
)
def test_everything_else_is_refused(tmp_path, thing):
    with pytest.raises(pickle.UnpicklingError):
        _load(_save({"thing": thing}, tmp_path / "crafted.pt"))


@needs_protection
def test_flags_of_a_number_type_cannot_be_forged(tmp_path):
    class Forged(Call):
        def __reduce__(self):
            return np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 63)

    class Array(Call):
        def __reduce__(self):
            empty = np.zeros(1).__reduce__()
            return empty[0], empty[1], (1, (1,), Forged(None), False, b"\0" * 8)

    loaded = _load(_save(Array(None), tmp_path / "forged.pt"))
    assert loaded.dtype == np.float64 and loaded.dtype.flags == 0


@needs_protection
def test_loading_is_repaired_when_refused_and_only_then(monkeypatch, tmp_path):
    path = _save(_checkpoint(), tmp_path / "checkpoint.pt")
    monkeypatch.setattr(checkpoint_utils, "torch", torch)
    with pytest.raises(pickle.UnpicklingError):
        checkpoint_utils.load_checkpoint_to_cpu(path)
    assert repair_checkpoint_loading() and not refuses_checkpoints(checkpoint_utils.torch.load)
    checkpoint_utils.load_checkpoint_to_cpu(path)
    repaired = checkpoint_utils.torch
    assert not repair_checkpoint_loading() and checkpoint_utils.torch is repaired


@pytest.fixture
def declared_by_others():
    """Numpy's arrays of anything, declared safe by somebody else."""
    allowed = torch.serialization.get_safe_globals()
    names = ["numpy._core.multiarray", "numpy.core.multiarray"]
    functions = [(np.zeros(1).__reduce__()[0], name + "._reconstruct") for name in names]
    theirs = [np.ndarray, np.dtype, type(np.dtype("O")), *functions]
    torch.serialization.add_safe_globals(theirs)
    yield torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(allowed)


@needs_protection
def test_what_others_declare_safe_is_loaded_as_they_have_it(declared_by_others, tmp_path):
    path = _save({"words": np.array(["ein", None], dtype=object)}, tmp_path / "theirs.pt")
    for load in (torch.load, _load):
        loaded = load(path)["words"]
        assert type(loaded) is np.ndarray and loaded.tolist() == ["ein", None]
    # A checkpoint of fairseq's has more in it than they declared.
    state = checkpoint_utils.load_checkpoint_to_cpu(_save(_checkpoint(), tmp_path / "checkpoint.pt"))
    _assert_same(state["extra_state"], _extra_state())
    assert set(torch.serialization.get_safe_globals()) == set(declared_by_others)


@needs_protection
def test_nothing_is_declared_safe_for_anyone_else(tmp_path):
    path = _save(_checkpoint(), tmp_path / "checkpoint.pt")
    checkpoint_utils.load_checkpoint_to_cpu(path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path)
