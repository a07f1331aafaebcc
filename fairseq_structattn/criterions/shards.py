"""Data in several folders, one for each epoch in turn."""

import copy
from typing import Iterator

from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.tasks.translation import TranslationTask


def shards(task) -> Iterator[FairseqDataset]:
    """The training sets of the next epochs of a translation task whose data is in several folders, ``a:b``. They are
    loaded one after the other, and none is kept. Nothing for other tasks, and for data in one folder."""
    paths = utils.split_paths(task.cfg.data) if isinstance(task, TranslationTask) else []
    loader = copy.copy(task)
    for epoch in range(1, len(paths) + 1) if len(paths) > 1 else ():
        loader.datasets = {}
        loader.load_dataset(task.cfg.train_subset, epoch=epoch, combine=True)
        yield loader.datasets[task.cfg.train_subset]
