"""Word alignments of sentences that are cut by ``--truncate-source``."""

import numpy as np
from fairseq.data import BaseWrapperDataset
from torch import Tensor


class CutAlignments(BaseWrapperDataset):
    """Word alignments without the links of source words that were cut off. fairseq itself leaves out all links of such
    a sentence.

    Args:
        dataset: alignments as fairseq loads them: for each sentence, the indices of its links in one sequence
        words: number of source words of each sentence after the cut
    """

    def __init__(self, dataset, words: np.ndarray):
        super().__init__(dataset)
        self.words = words

    def __getitem__(self, index: int) -> Tensor:
        links = self.dataset[index].view(-1, 2)
        return links[links[:, 0] < self.words[index]].flatten()
