"""Checks of supervision data as a whole, once, before the first update that learns from them."""

import weakref
from typing import Iterator, MutableMapping, Tuple

from fairseq.data import FairseqDataset

from fairseq_structattn.criterions.shards import shards


class CheckedData:
    """The data sets of a task that have been checked.

    Args:
        task: the fairseq task
    """

    def __init__(self, task):
        self._task = task
        # Of each split, the data set that was seen; the next shard is another.
        self._seen: MutableMapping[str, FairseqDataset] = weakref.WeakValueDictionary()

    def unseen(self) -> Iterator[Tuple[str, FairseqDataset]]:
        """Splits and their data sets that were not seen yet, at first also those of later epochs. One that raises while
        it is looked through comes again."""
        is_first = not self._seen
        for split, data in getattr(self._task, "datasets", {}).items():
            if self._seen.get(split) is not data:
                yield split, data
                self._seen[split] = data
        subset = getattr(getattr(self._task, "cfg", None), "train_subset", "")
        if is_first and subset in self._seen:
            for data in shards(self._task):
                yield subset, data
