"""``structattn_babi``: questions about short stories, with answers of one symbol (bAbI, Weston et al. 2015)."""

import os
from dataclasses import dataclass, field
from typing import Optional

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II

from fairseq_structattn.tasks.one_dictionary import OneDictionaryTask
from fairseq_structattn.tasks.stories import StoryDataset, read_questions

DICTIONARY = "dict.txt"


@dataclass
class BabiOptions(FairseqDataclass):
    """Options of ``structattn_babi``."""

    data: Optional[str] = field(
        default=None, metadata={"help": "folder from scripts/prepare/babi.py, with SPLIT.jsonl and dict.txt"}
    )
    max_facts: int = field(
        default=25, metadata={"help": "number of facts of a story, the last ones before the question"}
    )
    train_subset: str = II("dataset.train_subset")
    seed: int = II("common.seed")


@register_task("structattn_babi", dataclass=BabiOptions)
class BabiTask(OneDictionaryTask):
    """Question answering over the facts of a story; words and answers are symbols of one dictionary.

    Args:
        cfg: the options
        dictionary: of words and answers
    """

    def __init__(self, cfg: BabiOptions, dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = dictionary

    @classmethod
    def setup_task(cls, cfg: BabiOptions, **kwargs) -> "BabiTask":
        """Loads the dictionary.

        Raises:
            FileNotFoundError: the folder has none
            ValueError: ``--max-facts`` below 1
        """
        if cfg.max_facts < 1:
            raise ValueError(f"--max-facts {cfg.max_facts}: must be at least 1")
        path = os.path.join(_folder(cfg), DICTIONARY)
        if not os.path.exists(path):
            raise FileNotFoundError(f"no file {path}; scripts/prepare/babi.py makes such a folder")
        return cls(cfg, Dictionary.load(path))

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        """Loads the questions of a split; those to train on are shuffled.

        Raises:
            FileNotFoundError: there is no ``SPLIT.jsonl``
            ValueError: see :func:`~fairseq_structattn.tasks.stories.read_questions`
        """
        path = os.path.join(_folder(self.cfg), f"{split}.jsonl")
        if not os.path.exists(path):
            raise FileNotFoundError(f"no file {path}, so that there is no split {split}")
        shuffle = split == self.cfg.train_subset
        self.datasets[split] = StoryDataset(
            read_questions(path), self.dictionary, self.cfg.max_facts, shuffle, self.cfg.seed
        )

    def begin_epoch(self, epoch, model):
        """Passes the epoch to the model, whose linear start depends on it."""
        model.set_epoch(epoch)

    def max_positions(self):
        return None


def _folder(cfg: BabiOptions) -> str:
    return utils.split_paths(cfg.data)[0]
