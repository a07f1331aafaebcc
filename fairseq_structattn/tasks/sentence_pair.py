"""``structattn_sentence_pair``: classification of pairs of sentences, such as entailment."""

import logging
import os
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
from fairseq.data import Dictionary, StripTokenDataset, data_utils
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from fairseq_structattn.tasks.one_dictionary import OneDictionaryTask
from fairseq_structattn.tasks.sentence_pairs import SIDES, Labels, SentencePairs
from fairseq_structattn.tasks.source_heads import SourceHeads

logger = logging.getLogger(__name__)


@dataclass
class SentencePairOptions(FairseqDataclass):
    """Options of :class:`SentencePairTask`."""

    data: str = field(default=MISSING, metadata={"help": "folder from scripts/prepare/snli.py"})
    load_heads: bool = field(
        default=False,
        metadata={
            "help": "load the heads of the words from SPLIT.heads.premise and SPLIT.heads.hypothesis in the data "
            "folder: a line for each sentence, 0 for the root, -1 if unknown"
        },
    )
    max_positions: int = field(default=1024, metadata={"help": "longest sentence, in words"})
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")  # type: ignore[valid-type]


@register_task("structattn_sentence_pair", dataclass=SentencePairOptions)
class SentencePairTask(OneDictionaryTask):
    """Classifies pairs of sentences.

    The folder holds, for each split, premises and hypotheses as ``fairseq-preprocess --source-lang premise
    --target-lang hypothesis --joined-dictionary`` makes them; ``SPLIT.label``, a text with the label of each pair on a
    line; and ``dict.label.txt``, a fairseq dictionary of the labels. Files of heads have the format of
    :class:`~fairseq_structattn.tasks.source_heads.SourceHeads`.

    Args:
        cfg: options of the task
        dictionary: of the words
        labels: of the labels
    """

    def __init__(self, cfg: SentencePairOptions, dictionary: Dictionary, labels: Dictionary):
        super().__init__(cfg)
        self.dictionary = dictionary
        self.label_dictionary = labels
        self.epoch = 1
        self.is_training = True

    @classmethod
    def setup_task(cls, cfg: SentencePairOptions, **kwargs) -> "SentencePairTask":
        """Reads the dictionaries.

        Raises:
            FileNotFoundError: the folder has no dictionaries
            ValueError: fewer than two labels
        """
        words, labels = (_dictionary(cfg.data, name) for name in (f"dict.{SIDES[0]}.txt", "dict.label.txt"))
        logger.info(f"{len(words)} types of words, labels: {', '.join(labels.symbols[labels.nspecial :])}")
        if len(labels) - labels.nspecial < 2:
            raise ValueError(
                f"{os.path.join(cfg.data, 'dict.label.txt')}: fewer than two labels: nothing to tell apart"
            )
        task = cls(cfg, words, labels)
        # A task that is loaded with a checkpoint needs no heads.
        task.is_training = not kwargs.get("from_checkpoint", False)
        return task

    def load_dataset(self, split, combine=False, **kwargs):
        """Loads a split.

        Raises:
            FileNotFoundError: there is no such split, or a training split has no heads under ``--load-heads``
            ValueError: labels or heads that do not fit the sentences; the message names file and line
        """
        sentences = [self._sentences(split, side) for side in SIDES]
        # Stored sentences end in </s>.
        sizes = [data.sizes - 1 for data in sentences]
        labels = Labels(self._path(f"{split}.label"), self.label_dictionary)
        if len({len(labels), *map(len, sentences)}) > 1:
            counts = " and ".join(f"{len(data)} {side}" for data, side in zip(sentences, ("premises", "hypotheses")))
            raise ValueError(f"{labels.path}: {len(labels)} lines, but the data has {counts}")
        end = self.dictionary.eos()
        premises, hypotheses = [StripTokenDataset(data, end) for data in sentences]
        self.datasets[split] = SentencePairs(
            premises,
            hypotheses,
            sizes=np.stack(sizes, 1),
            labels=labels,
            padding=self.dictionary.pad(),
            heads=[self._heads(split, side, words) for side, words in zip(SIDES, sizes)],
        )
        logger.info(f"{self.cfg.data}: {len(labels)} pairs in {split}")

    def _sentences(self, split: str, side: str):
        path = self._path(f"{split}.{'-'.join(SIDES)}.{side}")
        data = data_utils.load_indexed_dataset(path, self.dictionary, self.cfg.dataset_impl)
        if data is None:
            raise FileNotFoundError(
                f"no file {path}.idx: there is no split {split}, see scripts/prepare/snli.py --help"
            )
        return data

    def _heads(self, split: str, side: str, words):
        path = self._path(f"{split}.heads.{side}")
        if not self.cfg.load_heads:
            return None
        if os.path.exists(path):
            return SourceHeads(path, words)
        if split.startswith("train") and self.is_training:
            raise FileNotFoundError(
                f"--load-heads: no file {path}; it has a line for each {side}, with the head of each of its words (0 "
                "for the root)"
            )
        logger.info(f"no heads for {split}: no file {path}")
        return None

    def _path(self, name: str) -> str:
        return os.path.join(self.cfg.data, name)

    def begin_epoch(self, epoch, model):
        """Keeps the number of the epoch; the weight of the supervision depends on it."""
        self.epoch = epoch

    def max_positions(self):
        """Longest premise and hypothesis."""
        return self.cfg.max_positions, self.cfg.max_positions


def _dictionary(folder: str, name: str) -> Dictionary:
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file {path}: give the folder from scripts/prepare/snli.py")
    return Dictionary.load(path)
