"""Checkpoints: what torch may load of them."""

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

# numpy 2 renamed the module whose functions its pickles call; checkpoints with either spelling are about.
NUMPY_PICKLE_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
# One-letter names that numpy gives to truth values, signed and unsigned integers and floating-point numbers.
NUMBER_KINDS = "biuf"


def repair_checkpoint_loading():
    """Checkpoints that torch refuses.

    Symptom: `fairseq-generate`, or `fairseq-train` when it resumes, ends in an UnpicklingError, since torch loads
    nothing but tensors and plain containers by default and a fairseq checkpoint has a little more in it.
    Detection: a checkpoint with no more than that little is refused.
    Repair: where fairseq loads a checkpoint that is refused, it tries again with exactly that declared safe, and the
    protection stays on for everything else. It is

    * `argparse.Namespace`: the options of models and tasks which have no dataclass;
    * numpy's arrays and scalars of numbers: meters in the extra state, the n-gram counts of `--eval-bleu` for instance.

    A namespace is harmless: loading creates it and sets attributes, which calls nothing. What numpy's pickles name is
    not: `numpy.ndarray` builds an array of objects from raw bytes, which are then followed as pointers, and the state
    of a `numpy.dtype` sets its flags unchecked. So these names lead to the stand-ins below, which make numbers and
    nothing else. Never put here what calls, imports or looks up something that the checkpoint chooses:
    `builtins.getattr`, `eval`, `type`, `functools.partial`, `operator.attrgetter` and the like.

    Whoever calls `torch.load` elsewhere, and whoever has declared numpy's own names safe, finds them as they were.

    This guards the loading of the file, no more: fairseq evaluates some options of a checkpoint as Python code when it
    builds the model or the optimizer (`--adam-betas`, the layers of `fconv`), so strangers' checkpoints stay a risk.
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
        warnings.simplefilter("ignore")  # some versions load it, and announce that their successors won't
        try:
            load(buffer)
        except pickle.UnpicklingError:
            return True
    return False


class _TorchThatTriesAgain(types.ModuleType):
    """What the module of fairseq that loads checkpoints sees as torch."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def load(*args, **kwargs):
        return load_checkpoint(*args, **kwargs)


def load_checkpoint(file, *args, **kwargs):
    """`torch.load`; of what it refuses, that which fairseq's checkpoints have besides tensors is taken for safe."""
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
    """Under which name a pickle asks for an entry of torch's list: a pair with the name, or a class or function."""
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"


class _NumberType:
    """Takes the place of `numpy.dtype` in a checkpoint, and knows the types of numbers only."""

    def __init__(self, code, align=False, copy=False):
        self.dtype = np.dtype(code) if isinstance(code, str) else None
        if self.dtype is None or self.dtype.kind not in NUMBER_KINDS:
            raise pickle.UnpicklingError(f"the checkpoint has a numpy type other than numbers: {code!r}")

    def __setstate__(self, state):
        # Of the state, only the byte order tells anything about a number.
        self.dtype = self.dtype.newbyteorder(state[1])


class _NumberArray(np.ndarray):
    """Takes the place of `numpy.ndarray` in a checkpoint: an array that is filled from bytes, and with numbers only.

    It behaves, and is saved again, as the plain array that it is.
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
    """Takes the place of the function with which numpy's pickles begin an array; all else comes with its state."""
    return _NumberArray()


def _number(number_type, data):
    """Takes the place of the function with which numpy's pickles make a scalar."""
    return np.frombuffer(data, dtype=_checked(number_type), count=1)[0]


def _checked(number_type):
    if not isinstance(number_type, _NumberType):
        raise pickle.UnpicklingError("the checkpoint has something else where a numpy type belongs")
    return number_type.dtype
