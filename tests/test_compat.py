"""Each repair of `compat`: the defect it is for, that it repairs it, and that it leaves a healthy version alone."""

import argparse
import builtins
import functools
import importlib.machinery
import io
import json
import os
import pickle
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import checkpoint_utils, options, utils  # noqa: E402
from fairseq.data import (  # noqa: E402
    Dictionary,
    LanguagePairDataset,
    bucket_pad_length_dataset,
    data_utils,
    language_pair_dataset,
    token_block_dataset,
)
from fairseq.dataclass import initialize  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from fairseq.sequence_generator import SequenceGeneratorWithAlignment  # noqa: E402
from fairseq.sequence_scorer import SequenceScorer  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from fairseq_structattn import compat  # noqa: E402

REPOSITORY = Path(__file__).resolve().parent.parent

# Says which defects the installed versions have, before and after the repairs.
DIAGNOSIS = """
import argparse, json, io, pickle, sys, types
import numpy, torch
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
        torch.load(buffer)
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
    def everything():
        globals_ = torch.serialization.get_safe_globals() if hasattr(torch.serialization, "get_safe_globals") else []
        modules = language_pair_dataset.np, token_block_dataset.np
        return (data_utils.batch_by_size, data_utils.get_buckets, torch.load, set(globals_)) + modules

    compat.apply()
    before = everything()
    compat.apply()
    assert all(old is new or old == new for old, new in zip(before, everything()))


# --- batches ---


def _slices(indices, num_tokens_fn, num_tokens_vec=None, max_tokens=None, max_sentences=None, **others):
    return [indices[start : start + max_sentences] for start in range(0, len(indices), max_sentences)]


def _losing_the_tail(*args, required_batch_size_multiple=1, **kwargs):
    batches = _slices(*args, **kwargs)
    if kwargs.get("fixed_shapes") is None and len(batches[-1]) % required_batch_size_multiple != 0:
        return batches[:-1]
    return batches


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 96, 100])
@pytest.mark.parametrize("by_vector", [False, True])
def test_every_sentence_is_batched(count, by_vector):
    sizes = np.full(count, 5, dtype=np.int64) if by_vector else None
    batches = data_utils.batch_by_size(
        np.arange(count), lambda index: 5, sizes, max_tokens=90, required_batch_size_multiple=8
    )
    assert [index for batch in batches for index in batch] == list(range(count))
    assert all(len(batch) <= 16 for batch in batches)


def test_fixed_shapes_are_left_to_fairseq():
    batches = data_utils.batch_by_size(
        np.arange(6), lambda index: 1 + index, required_batch_size_multiple=8, fixed_shapes=[(4, 3), (2, 6)]
    )
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert len(data_utils.batch_by_size([], len, required_batch_size_multiple=8, fixed_shapes=[(4, 3)])) == 0


def test_lost_tail_is_repaired_wherever_the_function_is_held(monkeypatch):
    monkeypatch.setattr(data_utils, "batch_by_size", _losing_the_tail)
    monkeypatch.setattr(language_pair_dataset, "batch_by_size", _losing_the_tail, raising=False)
    compat.repair_batch_by_size()
    repaired = data_utils.batch_by_size
    assert repaired is not _losing_the_tail and language_pair_dataset.batch_by_size is repaired
    batches = repaired(range(10), None, max_sentences=4, required_batch_size_multiple=4)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert repaired([], None, max_sentences=4, required_batch_size_multiple=4) == []


def test_lost_tail_repair_does_not_meddle_with_fixed_shapes(monkeypatch):
    dropping = [np.arange(4)]
    monkeypatch.setattr(
        data_utils,
        "batch_by_size",
        lambda *args, **kwargs: dropping if kwargs.get("fixed_shapes") else _losing_the_tail(*args, **kwargs),
    )
    compat.repair_batch_by_size()
    assert data_utils.batch_by_size(range(9), None, fixed_shapes=[(4, 1)]) is dropping


def test_healthy_batching_is_not_touched(monkeypatch):
    monkeypatch.setattr(data_utils, "batch_by_size", _slices)
    compat.repair_batch_by_size()
    assert data_utils.batch_by_size is _slices


# --- length buckets ---


def _buckets_with_a_bygone_argument(sizes, num_buckets):
    raise TypeError("percentile() got an unexpected keyword argument 'interpolation'")


def _healthy_buckets(sizes, num_buckets):
    return np.array([max(sizes)])


def test_buckets_are_repaired_where_they_are_used(monkeypatch):
    monkeypatch.setattr(data_utils, "get_buckets", _buckets_with_a_bygone_argument)
    monkeypatch.setattr(bucket_pad_length_dataset, "get_buckets", _buckets_with_a_bygone_argument)
    if np.lib.NumpyVersion(np.__version__) < "1.22.0":
        pytest.skip("this numpy has only the old name of the argument, so the defect cannot be")
    compat.repair_get_buckets()
    assert bucket_pad_length_dataset.get_buckets is data_utils.get_buckets
    assert data_utils.get_buckets(np.arange(1, 11), 2).tolist() == [5, 10]
    assert data_utils.get_buckets(np.array([3, 3, 3]), 4).tolist() == [3]


def test_healthy_buckets_are_not_touched(monkeypatch):
    monkeypatch.setattr(data_utils, "get_buckets", _healthy_buckets)
    compat.repair_get_buckets()
    assert data_utils.get_buckets is _healthy_buckets


def test_missing_numpy_compat_is_added_for_fairseq_only(monkeypatch):
    healthy = types.SimpleNamespace(compat=types.SimpleNamespace(long=int))
    monkeypatch.setattr(language_pair_dataset, "np", types.SimpleNamespace())
    monkeypatch.setattr(token_block_dataset, "np", healthy)
    had_it = hasattr(np, "compat")
    compat.repair_numpy_compat()
    assert language_pair_dataset.np.compat.long is int
    assert language_pair_dataset.np.arange is np.arange
    assert token_block_dataset.np is healthy
    assert hasattr(np, "compat") == had_it


def test_data_set_with_length_buckets():
    words = Dictionary()
    sentences = [torch.tensor([words.eos()] * length) for length in (1, 2, 3, 4, 9)]
    sizes = np.array([len(sentence) for sentence in sentences])
    pairs = LanguagePairDataset(sentences, sizes, words, sentences, sizes, words, num_buckets=2)
    assert pairs.buckets == [(None, 3), (None, 9)]
    batches = pairs.batch_by_size(np.arange(5), max_tokens=27, required_batch_size_multiple=8)
    assert sorted(index for batch in batches for index in batch) == list(range(5))


# --- checkpoints ---


def _save(thing, path):
    torch.save(thing, str(path))
    return str(path)


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
    _assert_same(torch.load(path), _extra_state())


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
    _assert_same(torch.load(str(path)), _extra_state())


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
        torch.load(_save({"thing": thing}, tmp_path / "crafted.pt"))


@needs_protection
def test_flags_of_a_number_type_cannot_be_forged(tmp_path):
    class Forged(Call):
        def __reduce__(self):
            return np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 63)

    class Array(Call):
        def __reduce__(self):
            empty = np.zeros(1).__reduce__()
            return empty[0], empty[1], (1, (1,), Forged(None), False, b"\0" * 8)

    loaded = torch.load(_save(Array(None), tmp_path / "forged.pt"))
    assert loaded.dtype == np.float64 and loaded.dtype.flags == 0


@needs_protection
def test_loading_is_repaired_when_refused_and_only_then(monkeypatch, tmp_path):
    path = _save(_checkpoint(), tmp_path / "checkpoint.pt")
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(pickle.UnpicklingError):
            checkpoint_utils.load_checkpoint_to_cpu(path)
        compat.repair_checkpoint_loading()
        checkpoint_utils.load_checkpoint_to_cpu(path)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)
    monkeypatch.setattr(torch.serialization, "add_safe_globals", lambda _: pytest.fail("nothing was refused"))
    compat.repair_checkpoint_loading()


# --- architectures under hydra ---


def _defaults_of(name, **options):
    config = OmegaConf.create({"model": {"_name": name, **options}})
    initialize.add_defaults(config)
    return config.model


def test_hydra_asks_the_architecture():
    crf = _defaults_of("structattn_rnn_crf", encoder_layers=7)
    assert (crf.attention_distribution, crf.attention_scale, crf.decoder_layers) == ("linear-chain", 2.0, 2)
    assert crf.encoder_layers == 7
    assert _defaults_of("structattn_rnn").attention_distribution == "softmax"


def test_other_models_get_what_they_got(monkeypatch):
    ours = _defaults_of("transformer_lm_gpt2_small")
    stock = initialize.add_defaults.__wrapped__
    monkeypatch.setattr(initialize, "add_defaults", stock)
    assert _defaults_of("transformer_lm_gpt2_small") == ours
    assert _defaults_of("structattn_rnn_crf").attention_distribution == "softmax", "the defect is gone: drop the repair"


def test_defaults_that_heed_the_architecture_are_not_touched():
    healthy = initialize.add_defaults
    compat.repair_hydra_architectures()
    assert initialize.add_defaults is healthy


# --- alignments ---


@pytest.fixture
def stock_alignment(monkeypatch):
    """What the installed fairseq does without our repairs."""
    for owner in (SequenceGeneratorWithAlignment, SequenceScorer):
        monkeypatch.setattr(owner, "generate", getattr(owner.generate, "__wrapped__", owner.generate))


def _scored(kind):
    words = Dictionary()
    tokens = torch.tensor([[words.unk(), words.unk(), words.eos()]])
    sample = {"net_input": {"src_tokens": tokens, "prev_output_tokens": tokens}, "target": tokens}
    ((hypothesis,),) = SequenceScorer(words, compute_alignment=kind).generate([compat._Anyword(len(words))], sample)
    return hypothesis["alignment"]


def test_alignments_are_repaired_when_wrong_and_only_then(stock_alignment):
    stock = SequenceGeneratorWithAlignment.generate, SequenceScorer.generate
    assert compat._counts_on_full_beams() and compat._scores_with_hard_alignments()
    compat.repair_generated_alignment()
    compat.repair_scored_alignment()
    repaired = SequenceGeneratorWithAlignment.generate, SequenceScorer.generate
    assert not set(stock) & set(repaired)
    assert not compat._counts_on_full_beams() and not compat._scores_with_hard_alignments()
    compat.repair_generated_alignment()
    compat.repair_scored_alignment()
    assert repaired == (SequenceGeneratorWithAlignment.generate, SequenceScorer.generate)


def test_alignments_of_references_are_of_the_kind_asked_for():
    assert _scored("hard") == [(0, 0), (0, 1)]
    assert _scored("soft") == [["1.000000"] * 3] * 3
    assert _scored(None) is None


def test_models_that_align_by_a_second_pass_are_left_to_fairseq():
    asked = []
    generate = compat._aligning_what_is_there(lambda self, models, sample: asked.append(sample))
    generate(
        argparse.Namespace(model=argparse.Namespace(models=[argparse.Namespace(full_context_alignment=True)])), 0, 1
    )
    assert asked == [1]


def _interactive(monkeypatch, main):
    module = types.ModuleType("interactive")
    module.__spec__ = importlib.machinery.ModuleSpec("fairseq_cli.interactive", None)
    module.main, module.utils = main, utils
    monkeypatch.setitem(sys.modules, "interactive_under_test", module)
    compat.repair_interactive_alignment()
    return module


def _prints_pairs(alignment):
    " ".join("{}-{}".format(src, tgt) for src, tgt in alignment)  # noqa: UP032


def _prints_either(alignment, kind):
    return alignment if kind == "soft" else _prints_pairs(alignment)


@pytest.mark.parametrize(
    "alignment, line",
    [([(0, 0), (2, 1)], "0-0 2-1"), ([["0.1", "0.9"], ["1.0", "0.0"]], "0.1,0.9 1.0,0.0"), ([], ""), ([["1"]], "1")],
    ids=["hard", "soft", "none", "one"],
)
def test_interactive_prints_either_kind_of_alignment(monkeypatch, capsys, alignment, line):
    module = _interactive(monkeypatch, _prints_pairs)
    _, _, given = module.utils.post_process_prediction(torch.tensor([2]), "", alignment, None, Dictionary())
    text = " ".join("{}-{}".format(src, tgt) for src, tgt in given)  # noqa: UP032
    module.print(f"A-0\t{text}")
    assert capsys.readouterr().out == f"A-0\t{line}\n"
    assert module.utils.strip_pad is utils.strip_pad


def test_interactive_that_knows_soft_alignments_is_not_touched(monkeypatch):
    module = _interactive(monkeypatch, _prints_either)
    assert module.utils is utils and not hasattr(module, "print")
