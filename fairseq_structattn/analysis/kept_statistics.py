"""The statistics of BLEU of each translation, as text, so that systems can be compared without their translations.

A number from 0 to 63 is one letter. A translation has five numbers: its number of words, and the numbers of its n-grams
of 1 to 4 words that the reference has, too. All other statistics follow from these and the length of the reference.
"""

import string
from typing import List, Sequence

import numpy as np

from fairseq_structattn.analysis.paired_tests import sentence_statistics

ALPHABET = string.digits + string.ascii_letters + "-_"
ORDERS = 4
NUMBERS = 1 + ORDERS


def encode(numbers: Sequence[int]) -> str:
    """Text of one letter for each number.

    Raises:
        ValueError: a number is larger than 63
    """
    largest = max(numbers, default=0)
    if largest >= len(ALPHABET):
        raise ValueError(f"a sentence has {largest} tokens; {len(ALPHABET) - 1} is the most that can be kept")
    return "".join(ALPHABET[number] for number in numbers)


def decode(text: str) -> List[int]:
    """The inverse of :func:`encode`."""
    return [ALPHABET.index(letter) for letter in text]


def encode_translations(hypotheses: List[str], references: List[str]) -> str:
    """The statistics of a corpus of tokenised translations, as text."""
    found = sentence_statistics(hypotheses, references, "none")
    return encode([int(number) for row in found for number in (row[-2], *row[:ORDERS])])


def decode_translations(text: str, references: str) -> np.ndarray:
    """The result of :func:`paired_tests.sentence_statistics` for the translations, ``[sentences, 10]``.

    Args:
        text: result of :func:`encode_translations`
        references: lengths of the references, encoded
    """
    found, lengths = np.array(decode(text)).reshape(-1, NUMBERS), np.array(decode(references))
    if len(found) != len(lengths):
        raise ValueError(f"statistics of {len(found)} translations, but {len(lengths)} references")
    totals = np.maximum(found[:, :1] - np.arange(ORDERS), 0)
    return np.concatenate((found[:, 1:], totals, found[:, :1], lengths[:, None]), 1)
