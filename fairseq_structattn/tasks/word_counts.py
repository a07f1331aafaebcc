"""How many words the sentences of a data set have, whatever fairseq does to them."""

import numpy as np
from fairseq.data import BaseWrapperDataset, TruncateDataset


def word_counts(data, cut: bool = True) -> np.ndarray:
    """Words of each sentence, ``</s>`` and padding not counted, ``[sentences]``.

    The sizes that fairseq keeps do not tell: with length buckets they count padding, and under ``--truncate-source``
    those of whole sentences count ``</s>`` twice.

    Args:
        data: one side of a data set of sentence pairs
        cut: count what ``--truncate-source`` leaves; False: the words of the whole sentence
    """
    if not isinstance(data, BaseWrapperDataset) or not hasattr(data.dataset, "sizes"):
        return np.asarray(data.sizes) - 1
    words = word_counts(data.dataset, cut)
    return np.minimum(words, data.truncation_length) if cut and isinstance(data, TruncateDataset) else words
