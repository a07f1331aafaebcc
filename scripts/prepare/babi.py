"""Makes the data of ``--task structattn_babi`` from the original files of a bAbI task, version 1.2.

    python scripts/prepare/babi.py --corpus tasks_1-20_v1-2/en --task 2 --dest babi/qa2

The corpus (https://research.facebook.com/downloads/babi) has qa2_NAME_train.txt and qa2_NAME_test.txt, of lines such as

    1 Mary got the football there.
    2 John went to the kitchen.
    3 Mary went back to the garden.
    4 Where is the football?<tab>garden<tab>1 3

whose numbers restart at 1 with each story. A question is followed by its answer and the numbers of its supporting
facts. The script writes train.jsonl, valid.jsonl and test.jsonl, a line for each question with all facts before it,

    {"story": ["mary got the football there", …], "question": "where is the football", "answer": "garden",
     "supporting": [1, 3]}

where facts are counted without the questions between them, and dict.txt, fairseq's dictionary of the words and answers
of train.jsonl. Text is in lower case, without full stops and question marks; an answer of several words joined by
commas is one symbol. The last stories of the training file, a tenth of its questions, are the validation set.

With several tasks these files have the questions of all of them, each with the number of steps that a model takes,

    python scripts/prepare/babi.py --corpus tasks_1-20_v1-2/en --task 2 3 --steps 2 3 --dest babi/both

and qa2_valid.jsonl, qa2_test.jsonl and so on those of one task.
"""

import argparse
import collections
import glob
import json
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from fairseq_structattn.analysis.files import (
    InputError,
    check_folders,
    check_output_folders,
    command,
    numbered_lines,
    write_lines,
)

PUNCTUATION = re.compile(r"[.?]")
NUMBERED = re.compile(r"(\d+)\s+(\S.*)")


class Question(NamedTuple):
    """A question, the facts before it, the numbers of those that lead to its answer, counted from 1, and the number of
    steps that a model takes, None if the model decides on it."""

    story: List[str]
    question: str
    answer: str
    supporting: List[int]
    steps: Optional[int] = None

    def to_json(self) -> str:
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps(fields, ensure_ascii=False)


def read_stories(path: str) -> List[List[Question]]:
    """The questions of a file, by story.

    Raises:
        InputError: a line that is neither fact nor question, or does not fit those before it, by line
    """
    stories: List[List[Question]] = []
    facts: Dict[int, str] = {}
    last = 0
    for line_number, line in numbered_lines(path):
        if line.strip():
            place = f"{path}, line {line_number}"
            number, text = _numbered(line, place)
            if number == 1:
                facts, last = {}, 0
                stories.append([])
            if number != last + 1:
                raise InputError(f"{place}: number {number} after {last}; they count from 1 in each story")
            last = number
            if "\t" in text:
                stories[-1].append(_question(text, facts, place))
            else:
                facts[number] = _words(text, place)
    stories = [story for story in stories if story]
    if not stories:
        raise InputError(f"{path}: no questions, which have an answer behind a tab; is this a file of bAbI?")
    return stories


def _numbered(line: str, place: str) -> Tuple[int, str]:
    found = NUMBERED.fullmatch(line.rstrip("\r\n"))
    if found is None:
        raise InputError(f"{place}: '{line.strip()}' is not a number and a sentence; is this a file of bAbI?")
    return int(found.group(1)), found.group(2)


def _question(text: str, facts: Dict[int, str], place: str) -> Question:
    fields = text.split("\t")
    if len(fields) != 3:
        raise InputError(
            f"{place}: {len(fields)} fields; a question, its answer and the supporting facts have tabs between"
        )
    answer = fields[1].strip().lower()
    if not answer or len(answer.split()) > 1:
        raise InputError(f"{place}: answer '{answer}'; it must be a word, or several with commas between")
    if not facts:
        raise InputError(f"{place}: a question before any fact of its story")
    order = {str(number): place_in_story for place_in_story, number in enumerate(facts, 1)}
    missing = [number for number in fields[2].split() if number not in order]
    if missing:
        raise InputError(f"{place}: supporting fact {missing[0]}; the facts before it are {', '.join(order)}")
    supporting = [order[number] for number in fields[2].split()]
    return Question(list(facts.values()), _words(fields[0], place), answer, supporting)


def _words(text: str, place: str) -> str:
    words = PUNCTUATION.sub(" ", text.lower()).split()
    if not words:
        raise InputError(f"{place}: '{text}' has no words")
    return " ".join(words)


def split_off(stories: List[List[Question]], share: float) -> Tuple[List[List[Question]], List[List[Question]]]:
    """The stories, and the last of them, which have that share of the questions, or a story's more."""
    wanted = share * sum(map(len, stories))
    taken = 0
    while sum(map(len, stories[len(stories) - taken :])) < wanted:
        taken += 1
    return stories[: len(stories) - taken], stories[len(stories) - taken :]


def dictionary(questions: List[Question]) -> List[str]:
    """The lines of fairseq's dictionary: symbols and how often they occur, the most frequent first."""
    counts = collections.Counter()
    for question in questions:
        counts.update(word for text in (*question.story, question.question) for word in text.split())
        counts[question.answer] += 1
    return [f"{symbol} {count}" for symbol, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def find(corpus: str, task: int, split: str) -> str:
    """The file of a split.

    Raises:
        InputError: there is none, or there are several
    """
    pattern = f"qa{task}_*_{split}.txt"
    found = sorted(glob.glob(os.path.join(glob.escape(corpus), pattern)))
    if len(found) != 1:
        have = "no file" if not found else f"{len(found)} files"
        raise InputError(f"--corpus {corpus}: {have} {pattern}; name the folder 'en' of bAbI tasks v1.2")
    return found[0]


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--corpus", required=True, metavar="DIR", help="folder with qa1_…_train.txt and the other files"
    )
    parser.add_argument("--task", required=True, type=int, nargs="+", metavar="N", help="numbers of tasks, 1 to 20")
    parser.add_argument(
        "--steps", type=int, nargs="+", metavar="K", help="steps of a model for each task (default: the model's)"
    )
    parser.add_argument("--dest", required=True, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--valid-share",
        type=float,
        default=0.1,
        metavar="S",
        help="share of the questions for validation (default: 0.1)",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.valid_share < 1:
        raise InputError(f"--valid-share {options.valid_share}: must be between 0 and 1")
    if options.steps is not None and len(options.steps) != len(options.task):
        raise InputError(f"--steps: {len(options.steps)} numbers for {len(options.task)} tasks; give one for each")
    if min(options.steps or [1]) < 1:
        raise InputError(f"--steps {min(options.steps)}: must be at least 1")
    return options


def splits_of(corpus: str, task: int, steps: Optional[int], valid_share: float) -> Dict[str, List[Question]]:
    """The questions of a task to train on, for validation and for tests."""
    known, test = (read_stories(find(corpus, task, split)) for split in ("train", "test"))
    train, valid = split_off(known, valid_share)
    if not train:
        raise InputError(f"--valid-share {valid_share} leaves nothing of {len(known)} stories to train on")
    return {
        split: [question._replace(steps=steps) for story in stories for question in story]
        for split, stories in (("train", train), ("valid", valid), ("test", test))
    }


def files_of(tasks: Dict[int, Dict[str, List[Question]]]) -> Iterator[Tuple[str, List[Question]]]:
    """The names of all files without their ending, and their questions."""
    for split in ("train", "valid", "test"):
        yield split, [question for splits in tasks.values() for question in splits[split]]
        for task, splits in tasks.items():
            if len(tasks) > 1 and split != "train":
                yield f"qa{task}_{split}", splits[split]


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_folders({"--corpus": options.corpus})
    check_output_folders({"--dest": options.dest})
    steps = options.steps or [None] * len(options.task)
    tasks = {task: splits_of(options.corpus, task, own, options.valid_share) for task, own in zip(options.task, steps)}
    for name, questions in files_of(tasks):
        path = os.path.join(options.dest, f"{name}.jsonl")
        write_lines(path, (question.to_json() for question in questions))
        longest = max(len(question.story) for question in questions)
        print(f"{path}: {len(questions):,} questions, at most {longest} facts before one")
    write_lines(os.path.join(options.dest, "dict.txt"), dictionary(dict(files_of(tasks))["train"]))


if __name__ == "__main__":
    main()
