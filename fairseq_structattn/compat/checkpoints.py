"""Checkpoints: the types that torch may load from them."""

import argparse
import contextlib
import io
import pickle
import types
import warnings
from typing import Any, List

import numpy as np
import torch
from fairseq import checkpoint_utils

# numpy 2 renamed the module whose functions its pickles call; checkpoints with either name exist.
NUMPY_PICKLE_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
# One-letter names that numpy gives to truth values, signed and unsigned integers and floating-point numbers.
NUMBER_KINDS = "biuf"


def repair_checkpoint_loading():
    """Checkpoints that torch refuses.

    Symptom: `fairseq-generate`, or `fairseq-train` when it resumes, ends in an UnpicklingError: torch loads only
    tensors and plain containers by default, and a fairseq checkpoint holds a few other types.
    Detection: a checkpoint with only these additional types is refused.
    Repair: when torch refuses a checkpoint that fairseq loads, loading is tried again with exactly these types declared
    safe; all others are still refused. The types are

    * `argparse.Namespace`: the options of models and tasks which have no dataclass;
    * numpy's arrays and scalars of numbers: meters in the extra state, the n-gram counts of `--eval-bleu` for instance.

    A namespace is harmless: loading creates it and sets attributes, which calls nothing. The types that numpy's pickles
    name are not harmless: `numpy.ndarray` builds an array of objects from raw bytes, which are then followed as
    pointers, and the state of a `numpy.dtype` sets its flags unchecked. So these names are mapped to the substitutes
    below, which make only numbers. Never add a function that calls, imports or looks up something that the checkpoint
    chooses: `builtins.getattr`, `eval`, `type`, `functools.partial`, `operator.attrgetter` and the like.

    Calls of `torch.load` elsewhere, and names that other code has declared safe, are unchanged.

    This protects only the loading of the file: fairseq evaluates some options of a checkpoint as Python code when it
    builds the model or the optimizer (`--adam-betas`, the layers of `fconv`), so checkpoints of strangers stay a risk.
    """
    is_needed = refuses_checkpoints(checkpoint_utils.torch.load)
    if is_needed:
        checkpoint_utils.torch = _TorchThatTriesAgain("torch")
    return is_needed


def refuses_checkpoints(load):
    buffer = io.BytesIO()
    torch.save([argparse.Namespace(a=1), np.ones(1), np.float64(1)], buffer)
    buffer.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions load it, and warn that later ones will not
        try:
            load(buffer)
        except pickle.UnpicklingError:
            return True
    return False


class _TorchThatTriesAgain(types.ModuleType):
    """Stands in for torch in the module of fairseq that loads checkpoints."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def load(*args, **kwargs):
        return load_checkpoint(*args, **kwargs)


def load_checkpoint(file, *args, **kwargs):
    """`torch.load`, which accepts the additional types of fairseq's checkpoints if it refuses them at first."""
    start = file.tell() if hasattr(file, "tell") else None
    with contextlib.suppress(pickle.UnpicklingError):
        return torch.load(file, *args, **kwargs)
    if start is not None:
        file.seek(start)
    with _numbers_are_safe():
        return torch.load(file, *args, **kwargs)


@contextlib.contextmanager
def _numbers_are_safe():
    declared, ours = torch.serialization.get_safe_globals(), _safe_globals()
    names = {_name(entry) for entry in ours}
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([entry for entry in declared if _name(entry) not in names] + ours)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(declared)


def _safe_globals() -> List[Any]:
    found: List[Any] = [(argparse.Namespace, "argparse.Namespace")]
    found += [(_NumberArray, "numpy.ndarray"), (_NumberType, "numpy.dtype")]
    for module in NUMPY_PICKLE_MODULES:
        found += [(_new_array, module + "._reconstruct"), (_number, module + ".scalar")]
    return found


def _name(entry):
    """The name by which a pickle refers to an entry of torch's list: a pair with the name, or a class or function."""
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"


class _NumberType:
    """Replaces `numpy.dtype` in a checkpoint, for types of numbers only."""

    def __init__(self, code, align=False, copy=False):
        dtype = np.dtype(code) if isinstance(code, str) else None
        if dtype is None or dtype.kind not in NUMBER_KINDS:
            raise pickle.UnpicklingError(f"the checkpoint has a numpy type other than numbers: {code!r}")
        self.dtype = dtype

    def __setstate__(self, state):
        # The byte order is the only part of the state that matters for numbers.
        self.dtype = self.dtype.newbyteorder(state[1])


class _NumberArray(np.ndarray):
    """Replaces `numpy.ndarray` in a checkpoint: an array of numbers only, which is filled from bytes.

    It behaves like a plain array, and is saved as one.
    """

    def __new__(cls, *shape_or_content):
        if shape_or_content:
            raise pickle.UnpicklingError("the checkpoint has a numpy array that is not stored the usual way")
        return super().__new__(cls, (0,), np.int8)

    def __setstate__(self, state):
        version, shape, number_type, is_fortran, data = state
        super().__setstate__((version, shape, _checked(number_type), is_fortran, data))

    def __reduce__(self):
        return self.view(np.ndarray).__reduce__()


def _new_array(array_class, shape, code):
    """Replaces the function by which numpy's pickles create an array, whose content is set by its state later."""
    return _NumberArray()


def _number(number_type, data):
    """Replaces the function by which numpy's pickles create a scalar."""
    return np.frombuffer(data, dtype=_checked(number_type), count=1)[0]


def _checked(number_type):
    if not isinstance(number_type, _NumberType):
        raise pickle.UnpicklingError("the checkpoint has something else where a numpy type belongs")
    return number_type.dtype
