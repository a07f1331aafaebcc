"""Pretrained embeddings from text files of word2vec, GloVe and fastText: a word and the numbers of its vector on each
line, with or without a header that gives the number of words and their size."""

import logging
import math
import os
import sys
from types import FrameType
from typing import List, Optional

import torch

from fairseq_structattn.modules.embeddings import WordEmbedding

logger = logging.getLogger(__name__)


def is_built_for_checkpoint() -> bool:
    """Whether fairseq builds a model to load a checkpoint into it. fairseq tells the outer ``build_model`` functions,
    but not that of the model, which calls this function."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == "build_model":
        if frame.f_locals.get("from_checkpoint"):
            return True
        frame = frame.f_back
    return False


def load_pretrained(embedding: WordEmbedding, dictionary, side: Optional[str], path: str) -> None:
    """Reads the vectors of all words in `dictionary` that the file has; other words and padding are unchanged.

    If the file is missing, the embeddings have to come from a checkpoint, as when training is continued. A warning
    says so, and training without a checkpoint raises FileNotFoundError.

    Args:
        side: ``"encoder"`` or ``"decoder"``, for messages; None for a model with one table
        path: value of ``--encoder-embed-path``, ``--decoder-embed-path`` or ``--embed-path``

    Raises:
        ValueError: an invalid line, named by file, line and value; or no vector for any word
    """
    if not os.path.isfile(path):
        missing = f"{_flag(side, 'embed-path')} {path}: no such file"
        logger.warning(f"{missing}; the embeddings have to come from a checkpoint")
        embedding.await_weights(f"{missing}, and no checkpoint to take the embeddings from")
        return
    reader = _Reader(path, side, embedding.embedding_dim)
    known = {word: index for word, index in dictionary.indices.items() if index != embedding.padding_idx}
    found = set()
    with open(path, encoding="utf-8", newline="\n") as lines, torch.no_grad():
        for word, numbers in reader.vectors(lines):
            if word in known:
                embedding.weight[known[word]] = torch.tensor(reader.parse(word, numbers))
                found.add(word)
    if not found:
        raise ValueError(
            f"{_flag(side, 'embed-path')} {path}: no vector for any of the {len(dictionary)} words of the dictionary; "
            "is it of another language, or are its words split in another way?"
        )
    logger.info(f"{_flag(side, 'embed-path')} {path}: vectors for {len(found)} of {len(dictionary)} words")


class _Reader:
    """Reader of a file that keeps the line number for messages."""

    def __init__(self, path: str, side: Optional[str], size: int):
        self.path, self.side, self.size, self.line = path, side, size, 0

    def vectors(self, lines):
        """Words and the numbers of their vectors, as strings."""
        for line in self._decoded(lines):
            word, *numbers = line.rstrip().split(" ")
            if self.line == 1 and len(numbers) == 1 and word.isdecimal() and numbers[0].isdecimal():
                self._check_size(int(numbers[0]))
            elif line.strip() and not self._is_of_several_words(numbers):
                self._check_size(len(numbers))
                yield word, numbers

    def _is_of_several_words(self, fields: List[str]) -> bool:
        """Whether the entry of a line consists of several words: GloVe has such entries, which cannot be words of a
        dictionary."""
        return len(fields) > self.size and not all(map(_is_number, fields[: -self.size]))

    def parse(self, word: str, numbers: List[str]) -> List[float]:
        """The numbers of a vector, from strings."""
        try:
            parsed = [float(number) for number in numbers]
        except ValueError as error:
            raise self._error(f"the vector of {word!r} has something else than numbers: {error}") from None
        if not all(map(math.isfinite, parsed)):
            raise self._error(f"the vector of {word!r} has a number that is not finite")
        return parsed

    def _decoded(self, lines):
        try:
            for self.line, line in enumerate(lines, start=1):  # noqa: B020
                yield line
        except UnicodeDecodeError as error:
            self.line += 1
            raise self._error(f"no text in UTF-8: {error}; unpack or convert the file") from None

    def _check_size(self, size: int) -> None:
        if size != self.size:
            raise self._error(
                f"a vector of {size} numbers, but the model's embeddings have {self.size}: set "
                f"{_flag(self.side, 'embed-dim')} to match, or mend the file"
            )

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{_flag(self.side, 'embed-path')}: {self.path}, line {self.line}: {what}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _flag(side: Optional[str], name: str) -> str:
    return f"--{name}" if side is None else f"--{side}-{name}"
