"""Heads of source words in a text file beside the data, and in the batches."""

from typing import List, Optional, Sequence, Union

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset
from torch import Tensor

from fairseq_structattn.distributions.arcs import NO_HEAD

# Words of each sentence.
Counts = Union[Sequence[int], np.ndarray]


class SourceHeads:
    """The heads of all sentences of a file. A line has the heads of the words of a sentence, separated by spaces: 0 for
    the root, k for the k-th word, −1 for an unknown head. ``flat`` holds the heads of all sentences, concatenated,
    ``starts`` the index of the first word of each sentence in ``flat``, and the length of ``flat``.

    Args:
        path: the file
        words: number of source words of each sentence in the file, ``</s>`` not counted
        kept: number of words of each sentence after a cut; a head beyond them is unknown. None: all

    Raises:
        FileNotFoundError: there is no such file
        ValueError: lines or numbers that do not fit the sentences; the message names the line
    """

    def __init__(self, path: str, words: Counts, kept: Optional[Counts] = None):
        self.path = path
        # A byte order mark is no part of the first head; undecodable bytes become an error that names the line.
        with open(path, encoding="utf-8-sig", errors="replace") as lines:
            heads = [_heads(path, number, line) for number, line in enumerate(lines, start=1)]
        if len(heads) != len(words):
            raise ValueError(f"{path}: {len(heads)} lines, but the data has {len(words)} sentences")
        for number, (line, count) in enumerate(zip(heads, words), start=1):
            _check(path, number, line, count)
        if kept is not None:
            heads = [_cut(line, count) for line, count in zip(heads, kept)]
        # All sentences in one array, which worker processes share.
        self.starts = np.concatenate(([0], np.cumsum([len(line) for line in heads], dtype=np.int64)))
        self.flat = np.concatenate([np.zeros(0, np.int32), *heads])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Tensor:
        """Heads ``[words]`` of a sentence."""
        heads = self.flat[self.starts[index] : self.starts[index + 1]]
        return torch.from_numpy(heads.astype(np.int64))


class WithSourceHeads(BaseWrapperDataset):
    """A data set of sentence pairs whose batches also hold ``"source_heads"``, ``[batch, words]`` padded on the right
    with −1, ``"source_heads_complete"``, whether the heads of all words are known, and ``"source_heads_path"``, the
    name of their file.

    Args:
        dataset: a data set whose batches have the numbers of their sentences in ``"id"``
        heads: of its sentences
    """

    def __init__(self, dataset, heads: SourceHeads):
        super().__init__(dataset)
        self.heads = heads

    def collater(self, samples: List[dict], pad_to_length=None) -> dict:
        """See fairseq's ``LanguagePairDataset``."""
        batch = self.dataset.collater(samples, pad_to_length)
        if batch:
            heads = [self.heads[index] for index in batch["id"].tolist()]
            batch["source_heads"] = torch.nn.utils.rnn.pad_sequence(heads, batch_first=True, padding_value=NO_HEAD)
            batch["source_heads_complete"] = all_known(heads)
            batch["source_heads_path"] = self.heads.path
        return batch


def all_known(heads: Sequence[Tensor]) -> bool:
    """Whether no head ``[words]`` of any sentence is unknown."""
    return not any(bool((each == NO_HEAD).any()) for each in heads)


def _heads(path: str, number: int, line: str) -> np.ndarray:
    try:
        return np.array(line.split(), dtype=np.int32)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{path}, line {number}: {line.strip()!r} has something else than whole numbers; write the head of each "
            "word, 0 for the root, -1 for not known"
        ) from None


def _cut(heads: np.ndarray, words: int) -> np.ndarray:
    """Heads of the first words of a sentence; a head outside them is unknown."""
    heads = heads[:words]
    return np.where(heads > words, np.int32(NO_HEAD), heads)


def _check(path: str, number: int, heads: np.ndarray, words: int) -> None:
    if len(heads) != words:
        raise ValueError(f"{path}, line {number}: {len(heads)} heads, but the source sentence has {words} words")
    if words and not (heads.min() >= NO_HEAD and heads.max() <= words):
        wrong = next(head for head in heads if not NO_HEAD <= head <= words)
        raise ValueError(f"{path}, line {number}: head {wrong}; heads of {words} words lie between -1 and {words}")
    own = np.flatnonzero(heads == np.arange(1, words + 1))
    if len(own):
        raise ValueError(f"{path}, line {number}: word {own[0] + 1} is its own head; -1 says that a head is not known")
