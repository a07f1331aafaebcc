"""``structattn_translation``: fairseq's translation task, with heads of the source words for tree supervision."""

import logging
import os
from dataclasses import dataclass, field

from fairseq import utils
from fairseq.data import BucketPadLengthDataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_structattn.tasks.source_heads import SourceHeads, WithSourceHeads

logger = logging.getLogger(__name__)


@dataclass
class TranslationWithHeadsOptions(TranslationConfig):
    """Fairseq's options and ours."""

    load_heads: bool = field(
        default=False,
        metadata={
            "help": "load the heads of the source words from SPLIT.heads.SOURCE_LANG in the data directory: a line for "
            "each sentence, 0 for the root, -1 for not known"
        },
    )


@register_task("structattn_translation", dataclass=TranslationWithHeadsOptions)
class TranslationWithHeadsTask(TranslationTask):
    """Translation in whose batches the heads of the source words are, with ``--load-heads``.

    They are read from ``{split}.heads.{source_lang}`` in the data directory, see
    :class:`~fairseq_structattn.tasks.source_heads.SourceHeads`. Splits other than those to train on may do without.
    """

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        """Loads a split.

        Raises:
            FileNotFoundError: the split to train on has no heads
            ValueError: heads that do not fit the sentences
        """
        super().load_dataset(split, epoch, combine, **kwargs)
        if not self.cfg.load_heads:
            return
        paths = utils.split_paths(self.cfg.data)
        is_training = split == self.cfg.train_subset
        folder = paths[(epoch - 1) % len(paths)] if is_training else paths[0]
        path = os.path.join(folder, f"{split}.heads.{self.cfg.source_lang}")
        if os.path.exists(path):
            dataset = self.datasets[split]
            source = dataset.src
            # Buckets know only how long sentences are with their padding.
            source = source.dataset if isinstance(source, BucketPadLengthDataset) else source
            heads = SourceHeads(path, [size - 1 for size in source.sizes])
            self.datasets[split] = WithSourceHeads(dataset, heads)
        elif is_training:
            raise FileNotFoundError(
                f"--load-heads: no file {path}; it has a line for each source sentence, with the head of each of its "
                "words (0 for the root)"
            )
        else:
            logger.info(f"no heads for {split}: no file {path}")
