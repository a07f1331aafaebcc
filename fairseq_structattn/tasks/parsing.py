"""``structattn_parsing``: sentences with given trees, to train a parser."""

import logging
import os
from dataclasses import dataclass, field
from typing import Optional

from fairseq.data import Dictionary, LanguagePairDataset, StripTokenDataset, data_utils
from fairseq.data.indexed_dataset import get_available_dataset_impl
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from fairseq_structattn.tasks.one_dictionary import OneDictionaryTask
from fairseq_structattn.tasks.source_heads import SourceHeads, WithSourceHeads

logger = logging.getLogger(__name__)

NAME = "words"


@dataclass
class ParsingOptions(FairseqDataclass):
    """Options of :class:`ParsingTask`."""

    data: str = field(default=MISSING, metadata={"help": "folder from scripts/prepare/conllu.py"})
    max_positions: int = field(default=1024, metadata={"help": "longest sentence, in words"})
    dataset_impl: Optional[ChoiceEnum(get_available_dataset_impl())] = II("dataset.dataset_impl")  # type: ignore[valid-type]


@register_task("structattn_parsing", dataclass=ParsingOptions)
class ParsingTask(OneDictionaryTask):
    """Sentences and the heads of their words.

    The folder holds, for each split, sentences as ``fairseq-preprocess --only-source --source-lang words`` makes them,
    and ``SPLIT.heads.words``, see :class:`~fairseq_structattn.tasks.source_heads.SourceHeads`.

    Args:
        cfg: options of the task
        dictionary: of the words
    """

    def __init__(self, cfg: ParsingOptions, dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = dictionary

    @classmethod
    def setup_task(cls, cfg: ParsingOptions, **kwargs) -> "ParsingTask":
        """Reads the dictionary; FileNotFoundError where there is none."""
        path = os.path.join(cfg.data, f"dict.{NAME}.txt")
        if not os.path.exists(path):
            raise FileNotFoundError(f"no file {path}: give the folder from scripts/prepare/conllu.py")
        return cls(cfg, Dictionary.load(path))

    def load_dataset(self, split, combine=False, **kwargs):
        """Loads a split.

        Raises:
            FileNotFoundError: there is no such split, or it has no heads
            ValueError: heads that do not fit the sentences; the message names file and line
        """
        prefix = os.path.join(self.cfg.data, split)
        path = f"{prefix}.{NAME}-None.{NAME}"
        data = data_utils.load_indexed_dataset(path, self.dictionary, self.cfg.dataset_impl)
        if data is None:
            raise FileNotFoundError(f"no file {path}.idx: there is no split {split}")
        # Stored sentences end in </s>.
        words = data.sizes - 1
        heads = SourceHeads(f"{prefix}.heads.{NAME}", words)
        sentences = StripTokenDataset(data, self.dictionary.eos())
        sentences = LanguagePairDataset(sentences, words, self.dictionary, left_pad_source=False)
        self.datasets[split] = WithSourceHeads(sentences, heads)
        logger.info(f"{self.cfg.data}: {len(heads)} sentences in {split}")

    def max_positions(self) -> int:
        """Longest sentence, in words."""
        return self.cfg.max_positions
