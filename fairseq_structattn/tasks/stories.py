"""Stories with questions: files of JSON lines, and the data set that reads them."""

import json
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils
from torch import Tensor

from fairseq_structattn.modules.fact_selection import NO_FACT

FIELDS = ("story", "question", "answer", "supporting")


class Question(NamedTuple):
    """A line of a file: ``{"story": ["mary went home"], "question": "where is mary", "answer": "home", "supporting":
    [1]}``.

    Attributes:
        story: the facts that were told before the question, the oldest first, as tokens with spaces between
        question: tokens with spaces between
        answer: one symbol of the dictionary
        supporting: the facts that lead to the answer, in the order of the argument, counted from 1
        steps: how many facts a model looks for, where questions differ in that; None: as many as it does for all
    """

    story: List[str]
    question: str
    answer: str
    supporting: List[int]
    steps: Optional[int] = None


def read_questions(path: str) -> List[Question]:
    """The questions of a file.

    Raises:
        FileNotFoundError: there is no such file
        ValueError: a line is not such an object, a story is empty, or supporting facts are not in the story; the
            message names the line
    """
    with open(path, encoding="utf-8-sig", errors="replace") as lines:
        questions = [_question(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    if not questions:
        raise ValueError(f"{path}: no questions; scripts/prepare/babi.py writes such files")
    told = [question.steps is not None for question in questions]
    if any(told) and not all(told):
        raise ValueError(f"{path}, line {told.index(False) + 1}: no steps, which other lines have")
    return questions


def _question(line: str, place: str) -> Question:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error})") from None
    if not isinstance(values, dict) or set(values) - {"steps"} != set(FIELDS):
        raise ValueError(f"{place}: not an object with the fields {', '.join(FIELDS)}")
    question = Question(**values)
    if question.steps is not None and (type(question.steps) is not int or question.steps < 1):
        raise ValueError(f"{place}: steps is {question.steps!r}; it must be a number from 1 on")
    if not _are(str, question.story) or not all(fact.strip() for fact in question.story) or not question.story:
        raise ValueError(f"{place}: story is {question.story!r}; it must be a list of facts, at least one")
    for name in ("question", "answer"):
        if not isinstance(values[name], str) or not values[name].strip():
            raise ValueError(f"{place}: {name} is {values[name]!r}; it must be text")
    if not _are(int, question.supporting) or not all(1 <= fact <= len(question.story) for fact in question.supporting):
        raise ValueError(
            f"{place}: supporting is {question.supporting!r}; it must be a list of numbers from 1 to "
            f"{len(question.story)}, the facts of the story"
        )
    return question


def _are(kind: type, values) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


class StoryDataset(FairseqDataset):
    """Questions with the last facts before them, in tensors of which batches are slices.

    A batch is ``{"id", "nsentences", "ntokens", "net_input": {"facts", "lengths", "question", "steps"}, "target",
    "supporting", "supporting_lengths"}``, with shapes as
    :class:`~fairseq_structattn.models.memory_network.MemoryNetwork` takes them, and ``steps`` only where questions have
    them. ``supporting`` ``[batch, most]`` has the indices of the supporting facts in ``facts``, from 0, and
    :data:`NO_FACT` for facts that were cut off and for padding; ``supporting_lengths`` has the number of supporting
    facts.

    Args:
        questions: of the data set
        dictionary: of words and answers
        max_facts: number of last facts of a story that are kept
        shuffle: whether batches are drawn at random, anew for each epoch
        seed: of these
    """

    def __init__(
        self,
        questions: Sequence[Question],
        dictionary: Dictionary,
        max_facts: int,
        shuffle: bool = False,
        seed: int = 1,
    ):
        self.texts = [question._replace(story=question.story[-max_facts:]) for question in questions]
        self.shuffle, self.seed, self.epoch = shuffle, seed, 1
        self.pad = dictionary.pad()
        self.lengths = torch.tensor([len(question.story) for question in self.texts])
        self.facts = _padded([[_indices(fact, dictionary) for fact in text.story] for text in self.texts], self.pad)
        self.question = _padded([[_indices(text.question, dictionary)] for text in self.texts], self.pad)[:, 0]
        self.target = torch.tensor([dictionary.index(text.answer) for text in self.texts])
        self.steps = None if questions[0].steps is None else torch.tensor([text.steps for text in self.texts])
        self.supporting_lengths = torch.tensor([len(text.supporting) for text in self.texts])
        kept = [
            [max(fact - 1 - len(whole.story) + len(text.story), NO_FACT) for fact in text.supporting]
            for whole, text in zip(questions, self.texts)
        ]
        self.supporting = _padded([[numbers] for numbers in kept], NO_FACT)[:, 0]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> int:
        return int(index)

    def collater(self, samples: List[int]) -> Dict:
        """A batch of questions, padded to the largest number of facts and words in it."""
        if not samples:
            return {}
        chosen = torch.tensor(samples)
        lengths = self.lengths[chosen]
        facts, question = self.facts[chosen, : int(lengths.max())], self.question[chosen]
        net_input = {
            "facts": _without_empty_columns(facts, self.pad),
            "lengths": lengths,
            "question": _without_empty_columns(question, self.pad),
        }
        if self.steps is not None:
            net_input["steps"] = self.steps[chosen]
        return {
            "id": chosen,
            "nsentences": len(samples),
            "ntokens": len(samples),
            "net_input": net_input,
            "target": self.target[chosen],
            "supporting": self.supporting[chosen],
            "supporting_lengths": self.supporting_lengths[chosen],
        }

    @property
    def sizes(self) -> np.ndarray:
        """Number of facts of each story."""
        return self.lengths.numpy()

    def size(self, index: int) -> int:
        """Number of facts of a story."""
        return int(self.lengths[index])

    num_tokens = size

    def num_tokens_vec(self, indices) -> np.ndarray:
        return self.sizes[indices]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return not self.shuffle

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, by which batches are shuffled."""
        self.epoch = epoch

    def ordered_indices(self) -> np.ndarray:
        """Order of the questions: shuffled, or as in the file."""
        if not self.shuffle:
            return np.arange(len(self))
        with data_utils.numpy_seed(self.seed, self.epoch):
            return np.random.permutation(len(self))


def _indices(text: str, dictionary: Dictionary) -> List[int]:
    return [dictionary.index(word) for word in text.split()]


def _padded(rows: List[List[List[int]]], value: int) -> Tensor:
    """``[rows, longest row, longest sequence]``"""
    longest = max(len(sequence) for row in rows for sequence in row)
    padded = torch.full((len(rows), max(map(len, rows)), longest), value)
    for row, sequences in enumerate(rows):
        for column, sequence in enumerate(sequences):
            padded[row, column, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
    return padded


def _without_empty_columns(tokens: Tensor, pad: int) -> Tensor:
    used = (tokens != pad).flatten(0, -2).any(0)
    return tokens[..., : int(used.sum())]
