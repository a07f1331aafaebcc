"""Repairs of batches: the defect each is for, that it repairs it, and that it leaves a healthy version alone."""

import types

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.data import (  # noqa: E402
    Dictionary,
    LanguagePairDataset,
    bucket_pad_length_dataset,
    data_utils,
    language_pair_dataset,
    token_block_dataset,
)

from fairseq_structattn.compat.batches import (  # noqa: E402
    repair_batch_by_size,
    repair_get_buckets,
    repair_numpy_compat,
)


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
    repair_batch_by_size()
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
    repair_batch_by_size()
    assert data_utils.batch_by_size(range(9), None, fixed_shapes=[(4, 1)]) is dropping


def test_healthy_batching_is_not_touched(monkeypatch):
    monkeypatch.setattr(data_utils, "batch_by_size", _slices)
    repair_batch_by_size()
    assert data_utils.batch_by_size is _slices


def _buckets_with_a_bygone_argument(sizes, num_buckets):
    raise TypeError("percentile() got an unexpected keyword argument 'interpolation'")


def _healthy_buckets(sizes, num_buckets):
    return np.array([max(sizes)])


def test_buckets_are_repaired_where_they_are_used(monkeypatch):
    monkeypatch.setattr(data_utils, "get_buckets", _buckets_with_a_bygone_argument)
    monkeypatch.setattr(bucket_pad_length_dataset, "get_buckets", _buckets_with_a_bygone_argument)
    if np.lib.NumpyVersion(np.__version__) < "1.22.0":
        pytest.skip("this numpy has only the old name of the argument, so the defect cannot be")
    repair_get_buckets()
    assert bucket_pad_length_dataset.get_buckets is data_utils.get_buckets
    assert data_utils.get_buckets(np.arange(1, 11), 2).tolist() == [5, 10]
    assert data_utils.get_buckets(np.array([3, 3, 3]), 4).tolist() == [3]


def test_healthy_buckets_are_not_touched(monkeypatch):
    monkeypatch.setattr(data_utils, "get_buckets", _healthy_buckets)
    repair_get_buckets()
    assert data_utils.get_buckets is _healthy_buckets


def test_missing_numpy_compat_is_added_for_fairseq_only(monkeypatch):
    healthy = types.SimpleNamespace(compat=types.SimpleNamespace(long=int))
    monkeypatch.setattr(language_pair_dataset, "np", types.SimpleNamespace())
    monkeypatch.setattr(token_block_dataset, "np", healthy)
    had_it = hasattr(np, "compat")
    repair_numpy_compat()
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
