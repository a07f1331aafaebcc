"""Numbers of words of the sentences of a data set, whatever wrappers fairseq puts around it."""

import numpy as np
from fairseq.data import BaseWrapperDataset, TruncateDataset


def word_counts(data, cut: bool = True) -> np.ndarray:
    """Number of words of each sentence, without ``</s>`` and padding, ``[sentences]``.

    fairseq's own sizes differ: with length buckets they count padding, and under ``--truncate-source`` those of
    sentences that are not cut count ``</s>`` twice.

    Args:
        data: one side of a data set of sentence pairs
        cut: count the words that ``--truncate-source`` leaves; False: the words of the whole sentence
    """
    if not isinstance(data, BaseWrapperDataset) or not hasattr(data.dataset, "sizes"):
        return np.asarray(data.sizes) - 1
    words = word_counts(data.dataset, cut)
    return np.minimum(words, data.truncation_length) if cut and isinstance(data, TruncateDataset) else words
