"""Word alignments of sentences that ``--truncate-source`` cuts."""

import numpy as np
from fairseq.data import BaseWrapperDataset
from torch import Tensor


class CutAlignments(BaseWrapperDataset):
    """Word alignments without the links of source words that were cut off; fairseq would leave out all links of such a
    sentence.

    Args:
        dataset: alignments as fairseq loads them, of each sentence the numbers of its links one after the other
        words: source words of each sentence that are left
    """

    def __init__(self, dataset, words: np.ndarray):
        super().__init__(dataset)
        self.words = words

    def __getitem__(self, index: int) -> Tensor:
        links = self.dataset[index].view(-1, 2)
        return links[links[:, 0] < self.words[index]].flatten()
