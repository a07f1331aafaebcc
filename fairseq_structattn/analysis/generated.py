"""Reads translations: the output of fairseq-generate or fairseq-interactive, or plain text, one sentence a line.

fairseq prints each hypothesis twice. H- lines have the tokens of the model, joined as ``--post-process`` says; D- lines
have the text that ``--bpe`` and ``--tokenizer`` make of them, and equal H- lines without these options. D- lines are
therefore read where there are any. The result is the best hypothesis of each sentence, in the order of the corpus.

An incomplete file is an error: the score of a part would look like a score of the whole.
"""

import re
from typing import Dict, List, NamedTuple, Optional

from fairseq_structattn.analysis.files import InputError, numbered_lines, read_lines

KINDS = ("D", "H")
BEGINNING = re.compile(r"([A-Z])-(\d+)\t")
HYPOTHESIS = re.compile(r"[HD]-\d+\t[^\t]*\t([^\n]*)\n?")
AGAIN = "translate the whole subset again"


class Translations(NamedTuple):
    """Translations of a corpus.

    Attributes:
        sentences: one for each sentence of the corpus
        lines: the kind of lines that were read: ``"D"``, ``"H"``, or ``"text"`` for plain text
    """

    sentences: List[str]
    lines: str

    @property
    def described(self) -> str:
        return "plain text" if self.lines == "text" else f"{self.lines}- lines"


def add_lines_option(parser) -> None:
    """``--lines``, for :func:`read_hypotheses` and :func:`read_translations`."""
    parser.add_argument(
        "--lines",
        choices=KINDS,
        help="lines of fairseq-generate to read: D, detokenised, or H, tokens of the model (default: D, else H)",
    )


def read_translations(path: str, count: int, lines: Optional[str] = None) -> Translations:
    """`count` translations from the output of fairseq, or from plain text, one sentence per line.

    Raises:
        InputError: the file is empty or no text, or it has fewer or more sentences than `count`; see also
            :func:`read_hypotheses`
    """
    if _is_generated(path):
        return read_hypotheses(path, count, lines)
    sentences = read_lines(path)
    if not sentences:
        raise InputError(f"{path}: the file is empty; translate again")
    if len(sentences) != count:
        raise InputError(f"{path}: {len(sentences)} lines, but the reference has {count}; line n must translate line n")
    return Translations(sentences, "text")


def _is_generated(path: str) -> bool:
    return any(HYPOTHESIS.match(line) for _, line in numbered_lines(path))


def read_hypotheses(path: str, count: int, lines: Optional[str] = None) -> Translations:
    """The best hypothesis of each of `count` sentences from the output of fairseq.

    Args:
        path: of the file
        count: of the sentences in the corpus
        lines: ``"D"`` or ``"H"`` (default: D- lines where there are any)

    Raises:
        InputError: no such lines at all; a line that was cut off; a sentence that was translated twice or not at all,
            that is not in the corpus, or that has an H- line and no D- line
    """
    file = _Generated(path, count)
    last = 0
    for last, line in numbered_lines(path):
        file.add(last, line)
    if not any(file.found.values()):
        raise InputError(f"{path}: no H- or D- lines of fairseq-generate in it; name what it printed, or {AGAIN}")
    chosen = lines or ("D" if file.found["D"] else "H")
    if chosen == "D" and lines is None:
        file.check_pairs()
    found = file.found[chosen]
    missing = next((index for index in range(count) if index not in found), None)
    if missing is not None:
        raise InputError(
            f"{path}, line {last}, its last: {count - len(found)} of {count} sentences have no translation, the first "
            f"is {chosen}-{missing}; {AGAIN}"
        )
    return Translations([found[index] for index in range(count)], chosen)


class _Generated:
    """The content of a file that was read so far."""

    def __init__(self, path: str, count: int):
        self.path = path
        self.count = count
        self.found: Dict[str, Dict[int, str]] = {kind: {} for kind in KINDS}
        self.places: Dict[int, int] = {}  # lines of H-
        self.last: Dict[str, Optional[int]] = dict.fromkeys(KINDS)

    def add(self, number: int, line: str) -> None:
        beginning = BEGINNING.match(line)
        if beginning is None:
            return
        kind, index = beginning.group(1), int(beginning.group(2))
        if kind in KINDS:
            self._add_hypothesis(number, line, kind, index)
        elif kind in "ST":  # the next sentence
            self.last = dict.fromkeys(KINDS)

    def _add_hypothesis(self, number: int, line: str, kind: str, index: int) -> None:
        named = f"{self.path}, line {number}: {kind}-{index}"
        hypothesis = HYPOTHESIS.fullmatch(line)
        if hypothesis is None or not line.endswith("\n"):
            raise InputError(f"{named} is cut off: a score, a tab, a sentence and a line feed must follow; {AGAIN}")
        if index >= self.count:
            raise InputError(f"{named} is beyond the {self.count} lines of the reference; name that of the subset")
        found = self.found[kind]
        if index in found and self.last[kind] != index:
            raise InputError(f"{named} was there before: were two outputs written to one file? Keep one of them")
        found.setdefault(index, hypothesis.group(1).rstrip("\r"))  # with --nbest the best one stands first
        self.last[kind] = index
        if kind == "H":
            self.places.setdefault(index, number)

    def check_pairs(self) -> None:
        """Refuses a sentence that has an H- line and no D- line, where others have both."""
        for index, number in self.places.items():
            if index not in self.found["D"]:
                raise InputError(f"{self.path}, line {number}: H-{index} has no D-{index} as others have; {AGAIN}")
