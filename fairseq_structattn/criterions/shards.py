"""Data in several folders, of which each epoch reads another."""

import copy
from typing import Iterator

from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.tasks.translation import TranslationTask


def shards(task) -> Iterator[FairseqDataset]:
    """What a translation task will train on in its next epochs, if its data lies in several folders, ``a:b``: the data
    set of each, loaded and forgotten one after the other. Nothing for other tasks, and for data in one folder."""
    paths = utils.split_paths(task.cfg.data) if isinstance(task, TranslationTask) else []
    loader = copy.copy(task)
    for epoch in range(1, len(paths) + 1) if len(paths) > 1 else ():
        loader.datasets = {}
        loader.load_dataset(task.cfg.train_subset, epoch=epoch, combine=True)
        yield loader.datasets[task.cfg.train_subset]
