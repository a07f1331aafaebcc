"""Labelled pairs of sentences, and batches of them."""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_structattn.distributions.arcs import NO_HEAD
from fairseq_structattn.tasks.source_heads import SourceHeads, all_known

SIDES = ("premise", "hypothesis")


class Labels:
    """The labels of a file, one per line, as indices in a dictionary of labels.

    Args:
        path: the file
        dictionary: fairseq dictionary of the names of the labels

    Raises:
        ValueError: a line is no label of the dictionary; the message names the line
    """

    def __init__(self, path: str, dictionary):
        self.path = path
        names = dictionary.symbols[dictionary.nspecial :]
        numbers = {name: number for number, name in enumerate(names)}
        with open(path, encoding="utf-8-sig", errors="replace") as lines:
            given = [line.strip() for line in lines]
        for number, name in enumerate(given, start=1):
            if name not in numbers:
                raise ValueError(
                    f"{path}, line {number}: {name!r} is no label; those of the data are {', '.join(names)}"
                )
        self.numbers = np.array([numbers[name] for name in given], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.numbers)


class SentencePairs(FairseqDataset):
    """Pairs of sentences, their labels and, if there are any, the heads of their words.

    A batch has ``"net_input"`` with ``"premise"`` and ``"hypothesis"``, tokens ``[batch, words]`` padded on the right,
    ``"target"``, indices of labels ``[batch]``, and ``"id"``. With heads of both sides ``"net_input"`` also has
    ``"premise_heads"`` and ``"hypothesis_heads"``, padded with −1, and the batch ``"heads_path"``, the two files, and
    ``"heads_complete"``, whether the heads of all words are known, of each side.

    Args:
        premise: sentences, as fairseq loads them, without ``</s>``
        hypothesis: as many sentences
        sizes: words of each premise and of each hypothesis, ``[pairs, 2]``
        labels: of the pairs
        padding: index of the padding symbol
        heads: of the premises and of the hypotheses, or None
    """

    def __init__(
        self,
        premise,
        hypothesis,
        sizes: np.ndarray,
        labels: Labels,
        padding: int,
        heads: Sequence[Optional[SourceHeads]],
    ):
        self.sentences = (premise, hypothesis)
        self.sizes = sizes
        self.labels = labels
        self.padding = padding
        self.heads = tuple(heads)

    def __getitem__(self, index: int) -> dict:
        item: Dict[str, Any] = {"id": index, "target": int(self.labels.numbers[index])}
        for side, sentences, heads in zip(SIDES, self.sentences, self.heads):
            item[side] = sentences[index]
            item[f"{side}_heads"] = None if heads is None else heads[index]
        return item

    def __len__(self) -> int:
        return len(self.labels)

    def collater(self, samples: List[dict]) -> dict:
        """A batch, see the class."""
        if not samples:
            return {}
        inputs = {side: self._padded([item[side] for item in samples], self.padding) for side in SIDES}
        batch = {
            "id": torch.tensor([item["id"] for item in samples]),
            "nsentences": len(samples),
            "ntokens": sum(len(item[side]) for item in samples for side in SIDES),
            "net_input": inputs,
            "target": torch.tensor([item["target"] for item in samples]),
        }
        given = [heads for heads in self.heads if heads is not None]
        if len(given) == len(SIDES):
            heads = [[item[f"{side}_heads"] for item in samples] for side in SIDES]
            inputs["premise_heads"], inputs["hypothesis_heads"] = (self._padded(each, NO_HEAD) for each in heads)
            batch["heads_complete"] = [all_known(each) for each in heads]
            batch["heads_path"] = [heads.path for heads in given]
        return batch

    @staticmethod
    def _padded(rows: List[Tensor], value: int) -> Tensor:
        return pad_sequence(rows, batch_first=True, padding_value=value)

    def num_tokens(self, index: int) -> int:
        """Number of words of the longer sentence plus its root symbol, for ``--max-tokens``."""
        return int(self.sizes[index].max()) + 1

    def num_tokens_vec(self, indices) -> np.ndarray:
        """:meth:`num_tokens` of several pairs."""
        return self.sizes[indices].max(1) + 1

    def size(self, index: int):
        """Words of premise and hypothesis."""
        return tuple(self.sizes[index].tolist())

    def ordered_indices(self) -> np.ndarray:
        """Indices sorted by length of the hypothesis, then of the premise; pairs of equal lengths in random order."""
        indices = np.random.permutation(len(self)) if len(self) else np.zeros(0, dtype=np.int64)
        return indices[np.lexsort((self.sizes[indices, 0], self.sizes[indices, 1]))]

    def filter_indices_by_size(self, indices, max_sizes):
        """Leaves out pairs whose premise or hypothesis is longer than `max_sizes`, one number or two."""
        return data_utils.filter_paired_dataset_indices_by_size(self.sizes[:, 0], self.sizes[:, 1], indices, max_sizes)

    @property
    def supports_prefetch(self) -> bool:
        return all(getattr(sentences, "supports_prefetch", False) for sentences in self.sentences)

    def prefetch(self, indices) -> None:
        for sentences in self.sentences:
            sentences.prefetch(indices)
