"""Tells, on the CPU, what a GPU would be waited for."""

from contextlib import contextmanager

import pytest
import torch

from fairseq_structattn.distributions import finite_masks, structured, use_backend

# item() and bool() are the first of them, an index of booleans is the last.
WAITING = {"aten::_local_scalar_dense", "aten::equal", "aten::masked_select", "aten::nonzero"}


@contextmanager
def as_on_an_accelerator():
    """In the block, distributions read no values that they would not read on an accelerator."""
    made = structured._broadcast_lengths

    def lengths_in_range(lengths, batch_shape, longest, device):
        return made(None, batch_shape, longest, device) if lengths is None else lengths.expand(batch_shape)

    with pytest.MonkeyPatch.context() as patch, use_backend("reference"):
        patch.setattr(finite_masks, "readable", lambda tensor: False)
        patch.setattr(structured, "_broadcast_lengths", lengths_in_range)
        yield


def waits(function):
    """Names of the operations and methods in a function for which an accelerator would be waited for."""
    found = set()

    def noted(name, method):
        return lambda *args, **kwargs: found.add(name) or method(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("cpu", "numpy", "tolist"):
            patch.setattr(torch.Tensor, name, noted(name, getattr(torch.Tensor, name)))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            function()
    return found | {event.name for event in profile.events()} & WAITING
