"""Given word alignments of a whole data set: checking and counting them."""

import logging
from typing import Iterator, Tuple

import numpy as np
from fairseq.data import PrependTokenDataset

from fairseq_structattn.tasks.cut_alignments import CutAlignments
from fairseq_structattn.tasks.word_counts import word_counts

logger = logging.getLogger(__name__)

# Sentences that are checked together.
CHUNK = 10000
LARGEST = np.iinfo(np.int32).max


def check_alignments(cfg, split: str, data, required: bool) -> None:
    """Checks the alignments of a split, and logs how many sentences have any.

    Args:
        cfg: options of the task
        split: name of the split
        data: the data set, or a wrapper of it
        required: whether a training split must have alignments; other splits need none

    Raises:
        FileNotFoundError: the split to train on has no alignments
        ValueError: alignments that do not fit the sentences, see :func:`count_aligned`, or an option that moves words
            away from them
    """
    name = f"{split}.align.{getattr(cfg, 'source_lang', None)}-{getattr(cfg, 'target_lang', None)}"
    while getattr(data, "align_dataset", None) is None and hasattr(data, "dataset"):
        data = data.dataset
    if getattr(data, "align_dataset", None) is not None:
        aligned = _count_checked(data, name)
        log = logger.info if aligned else logger.warning
        log(f"--guided-alignment: {aligned} of {len(data.align_dataset)} sentences of {split} have alignments")
    elif required and split == getattr(cfg, "train_subset", None):
        raise FileNotFoundError(
            f"--guided-alignment: no alignments {name} in {cfg.data}: binarise them with fairseq-preprocess "
            "--align-suffix"
        )
    else:
        logger.info(f"--guided-alignment: {split} has no alignments, its term is 0")


def _count_checked(data, name: str) -> int:
    """Number of sentences of a data set of pairs whose alignments are used under the given options."""
    alignments = data.align_dataset
    whole = alignments.dataset if isinstance(alignments, CutAlignments) else alignments
    path = f"--guided-alignment: {getattr(whole, '_path', None) or getattr(whole, 'path', None) or name}"
    if _is_prepended(data.src) or _is_prepended(data.tgt):
        raise ValueError(f"{path}: with --prepend-bos the words are not where the alignments have them: leave it out")
    words, left = word_counts(data.src, cut=False), word_counts(data.src)
    aligned = count_aligned(whole, path, words, word_counts(data.tgt))
    return aligned if np.array_equal(words, left) else _count_cut(alignments, path, left)


def _is_prepended(data) -> bool:
    return isinstance(data, PrependTokenDataset) or (hasattr(data, "dataset") and _is_prepended(data.dataset))


def _count_cut(alignments, path: str, source_words: np.ndarray) -> int:
    """Number of sentences that still have links after ``--truncate-source`` cuts the source to its limit of words."""
    lost = aligned = 0
    for sentences, links in _links(alignments):
        lost += len(np.unique(sentences[links[:, 0] >= source_words[sentences]]))
        aligned += len(np.unique(sentences))
    if lost:
        raise ValueError(
            f"{path}: --truncate-source cuts off words of {lost} sentences that have links, and all links of these "
            "sentences would go with them: add --task structattn_translation, which leaves out the links of those words"
        )
    return aligned


def count_aligned(alignments, path: str, source_words: np.ndarray, target_words: np.ndarray) -> int:
    """Number of sentences with links.

    Args:
        alignments: as fairseq loads them: for each sentence, the indices of its links in one sequence
        path: their file, for error messages
        source_words: words of each source sentence, ``[sentences]``
        target_words: words of each target sentence, ``[sentences]``

    Raises:
        ValueError: the numbers of alignments and sentences differ, or a link points outside its sentence; the message
            names the line
    """
    if len(alignments) != len(source_words):
        raise ValueError(
            f"{path}: alignments of {len(alignments)} sentences, but the data has {len(source_words)}; alignments of "
            "several files in one, or of data that is repeated, are not read: join the files"
        )
    aligned, least = 0, LARGEST
    for sentences, links in _links(alignments):
        limits = np.stack((source_words[sentences], target_words[sentences]), 1)
        outside = ((links < 0) | (links >= limits)).any(1)
        if outside.any():
            place = outside.argmax()
            sentence, link, (source, target) = sentences[place], links[place], limits[place]
            raise ValueError(
                f"{path}, line {sentence + 1}: link {link[0]}-{link[1]} points outside the sentences, whose words are "
                f"0 to {source - 1} and 0 to {target - 1}{_advice(alignments, source_words, target_words)}"
            )
        aligned += len(np.unique(sentences))
        least = min(least, links.min(initial=least))
    if 0 < least < LARGEST:
        logger.warning(f"{path}: no link is one of a first word, 0: are words counted from 1? Then subtract 1")
    return aligned


def _links(alignments) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Sentences ``[links]`` and links ``[links, 2]``, some thousand sentences at a time."""
    for begin in range(0, len(alignments), CHUNK):
        rows = range(begin, min(begin + CHUNK, len(alignments)))
        links = [np.asarray(alignments[row]).reshape(-1, 2) for row in rows]
        yield np.repeat(rows, [len(each) for each in links]), np.concatenate(links)


def _advice(alignments, source_words: np.ndarray, target_words: np.ndarray) -> str:
    """Advice on links that point outside: whether they are counted from 1 can be seen from all of them together."""
    least, most_outside = LARGEST, -1
    for sentences, links in _links(alignments):
        limits = np.stack((source_words[sentences], target_words[sentences]), 1)
        least = min(least, links.min(initial=least))
        most_outside = max(most_outside, (links - limits).max(initial=most_outside))
    if least == 1 and most_outside == 0:
        return ". These links look as if counted from 1: subtract 1 from both numbers and binarise them again"
    return ". Alignments must be of the sentences as they are binarised, after splitting words"
