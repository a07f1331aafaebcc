"""``structattn_translation``: fairseq's translation task with heads of the source words, for tree supervision."""

import logging
import os
from dataclasses import dataclass, field

from fairseq import utils
from fairseq.data import ConcatDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_structattn.tasks.cut_alignments import CutAlignments
from fairseq_structattn.tasks.source_heads import SourceHeads, WithSourceHeads
from fairseq_structattn.tasks.word_counts import word_counts

logger = logging.getLogger(__name__)


@dataclass
class TranslationWithHeadsOptions(TranslationConfig):
    """Fairseq's options and ours."""

    load_heads: bool = field(
        default=False,
        metadata={
            "help": "load the heads of the source words from SPLIT.heads.SOURCE_LANG in the data directory: a line for "
            "each sentence, 0 for the root, -1 if unknown"
        },
    )


@register_task("structattn_translation", dataclass=TranslationWithHeadsOptions)
class TranslationWithHeadsTask(TranslationTask):
    """Translation; with ``--load-heads`` batches also have the heads of the source words.

    With ``--truncate-source`` heads and alignments are cut with their sentences: a head that is cut off becomes
    unknown, and links of words that are cut off are left out.

    Heads are read from ``{split}.heads.{source_lang}`` in the data directory, see
    :class:`~fairseq_structattn.tasks.source_heads.SourceHeads`. Only training splits must have heads, and they need
    none if the task is loaded with a trained checkpoint.
    """

    is_training = True

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        """See fairseq's ``FairseqTask``."""
        task = super().setup_task(cfg, **kwargs)
        task.is_training = not kwargs.get("from_checkpoint", False)
        return task

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        """Loads a split.

        Raises:
            FileNotFoundError: the training split has no heads
            ValueError: heads that do not fit the sentences
        """
        super().load_dataset(split, epoch, combine, **kwargs)
        dataset = self.datasets[split]
        if self.cfg.truncate_source and dataset.align_dataset is not None:
            dataset.align_dataset = CutAlignments(dataset.align_dataset, word_counts(dataset.src))
        if self.cfg.load_heads:
            self._add_heads(split, epoch)

    def _add_heads(self, split, epoch):
        paths = utils.split_paths(self.cfg.data)
        is_train_subset = split == self.cfg.train_subset
        folder = paths[(epoch - 1) % len(paths)] if is_train_subset else paths[0]
        path = os.path.join(folder, f"{split}.heads.{self.cfg.source_lang}")
        if os.path.exists(path):
            dataset = self.datasets[split]
            if isinstance(dataset.src, ConcatDataset):
                raise ValueError(
                    f"--load-heads: the data of {split} lies in several files ({split}, {split}1 …), but {path} has "
                    "heads of the first alone: join the files"
                )
            words, kept = word_counts(dataset.src, cut=False), word_counts(dataset.src)
            self.datasets[split] = WithSourceHeads(dataset, SourceHeads(path, words, kept))
        elif is_train_subset and self.is_training:
            raise FileNotFoundError(
                f"--load-heads: no file {path}; it has a line for each source sentence, with the head of each of its "
                "words (0 for the root)"
            )
        else:
            logger.info(f"no heads for {split}: no file {path}")
