"""Batches: sentences that go missing, and length buckets."""

import functools
import types

import numpy as np
from fairseq.data import data_utils, language_pair_dataset, token_block_dataset

from .rebinding import replace_everywhere


def repair_batch_by_size():
    """Sentences that go missing.

    Symptom: `fairseq-generate` prints 96 of 100 translations, and validation scores are computed on 96 sentences: the
    last batch is dropped if its size is no multiple of `required_batch_size_multiple`. A data set without sentences
    ends in an IndexError for the same reason.
    Detection: of three sentences in batches of two, the third is missing.
    Repair: the sentences after the last batch are added as another batch.
    """
    stock = data_utils.batch_by_size
    is_needed = _loses_sentences(stock)
    if is_needed:
        replace_everywhere("batch_by_size", stock, _keeping_all(stock))
    return is_needed


def _loses_sentences(batch_by_size):
    try:
        batches = batch_by_size([0, 1, 2], lambda index: 1, max_sentences=2, required_batch_size_multiple=2)
    except ImportError:  # fairseq without its compiled part cannot make batches; its own message says what to do
        return False
    return sum(len(batch) for batch in batches) < 3


def _keeping_all(batch_by_size):
    @functools.wraps(batch_by_size)
    def complete(
        indices,
        num_tokens_fn,
        num_tokens_vec=None,
        max_tokens=None,
        max_sentences=None,
        required_batch_size_multiple=1,
        fixed_shapes=None,
    ):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64)
        if len(indices) == 0:
            return []
        batches = batch_by_size(
            indices,
            num_tokens_fn,
            num_tokens_vec=num_tokens_vec,
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            required_batch_size_multiple=required_batch_size_multiple,
            fixed_shapes=fixed_shapes,
        )
        if fixed_shapes is not None:  # another algorithm, which neither loses sentences nor keeps their order
            return batches
        # Batches are consecutive slices of the indices, so the missing sentences are those after the last slice.
        rest = indices[sum(len(batch) for batch in batches) :]
        return batches + [rest] if len(rest) else batches

    return complete


def repair_get_buckets():
    """Length buckets under numpy 2.

    Symptom: `--num-batch-buckets` ends in "percentile() got an unexpected keyword argument 'interpolation'".
    Detection: buckets for three sizes raise that TypeError.
    Repair: the same quantiles with the new name of the argument, `method`.
    """
    stock = data_utils.get_buckets
    try:
        stock(np.array([1, 2, 3]), 2)
    except TypeError:
        replace_everywhere("get_buckets", stock, functools.wraps(stock)(_length_quantiles))
        return True
    return False


def _length_quantiles(sizes, num_buckets):
    # The quantile at 0 would be a bucket for the shortest sentences alone; fairseq has none.
    shares = np.linspace(0, 100, num_buckets + 1)[1:]
    return np.unique(np.percentile(sizes, shares, method="lower"))


def repair_numpy_compat():
    """Data sets that ask for `numpy.compat.long`.

    Symptom: with a numpy that no longer has `numpy.compat`, `--num-batch-buckets` ends in an AttributeError, and so
    does `--sample-break-mode eos` of language models.
    Detection: the `np` of the two modules that use `numpy.compat.long` has no such name.
    Repair: these two modules see numpy with the missing name added; numpy itself is unchanged for all other code.
    """
    modules = (language_pair_dataset, token_block_dataset)
    without = [module for module in modules if not hasattr(getattr(module.np, "compat", None), "long")]
    for module in without:
        module.np = _NumpyWithLong("numpy")
    return bool(without)


class _NumpyWithLong(types.ModuleType):
    compat = types.SimpleNamespace(long=int)

    def __getattr__(self, name):
        return getattr(np, name)
