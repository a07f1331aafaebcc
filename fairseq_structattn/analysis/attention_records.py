"""Records of attention, sentence by sentence: ``export_attention.py`` writes them, other tools read them.

A file of records has one JSON object per line:

``id``
    number of the sentence in its subset, from 0
``rank``
    0 for the best translation, 1 for the next; 0 for a reference
``score``
    for a translation, the score by which fairseq-generate ranks it, in nats and normalised by length; for a reference,
    its mean log-probability per token
``forced``
    whether ``target`` is the reference, read by the model, rather than the model's own translation
``source``, ``target``
    tokens in reading order; the last is ``</s>``, or the root symbol ``<s>`` in pairs of sentences; any other token
    that looks like a special symbol of fairseq, such as ``<pad>``, is a token like any other
``reference``
    tokens of the reference without ``</s>``; null where there is none
``weights``
    ``[target][source]``: the factors of the source states in the context vector of the target token. Rows sum to 1 for
    softmax attention, to λ where marginals are normalised and scaled by λ, else to λ times the expected number of
    selected positions
``marginals``
    ``[target][source]``: the probabilities that positions are selected, before normalising and scaling: rows sum to 1
    for softmax, else to the expected number of selected positions; for attention over trees the expected numbers of
    dependents, 0 for ``</s>``; null where the model does not return its distribution
``segments``
    for a linear chain, the runs ``[start, end)`` of selected positions in its most likely selection at each target
    token; for a model that selects facts, the fact of each step; otherwise null
``trees``
    for a decoder that attends over trees, the heads of the source words in the most likely tree at each target token,
    as in ``tree.heads``; otherwise null
``tree``
    for ``--source-attention``, ``{"heads": […], "marginals": [head][word]}``, the same at every rank: the most likely
    head of each source word, ``</s>`` left out, 0 for the root and i for word i, counted from 1; and the probabilities
    of all arcs, whose columns sum to 1; otherwise null
``target_tree``
    for pairs of sentences, the same of the target tokens, see export_pairs.py; otherwise null
``label``, ``predicted``
    for pairs of sentences, the label of the pair, and the label that the model predicts; otherwise null
``question``
    for models that select facts of a story, the question and the model's answer; otherwise null. Tokens of the source
    are facts there, and the target has the fact of each step, see fact_records.py
"""

import json
import os
from dataclasses import dataclass, fields
from typing import Any, Iterable, Iterator, List, Optional, Tuple

from fairseq_structattn.analysis.files import InputError, check_inputs, numbered_lines, replaced

Matrix = List[List[float]]
END = "</s>"
ROOT = "<s>"
# Where readers that ask str.splitlines break lines. JSON itself escapes the others of this kind.
LINE_BREAKS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


class RecordError(InputError):
    """A file of records is wrong: the line, the reason, and what to do about it."""


@dataclass
class SourceTree:
    """See ``tree`` above."""

    heads: List[int]
    marginals: Matrix


@dataclass
class AttentionRecord:
    """One sentence and one translation of it; the fields are documented above."""

    id: int
    rank: int
    score: float
    forced: bool
    source: List[str]
    target: List[str]
    weights: Matrix
    reference: Optional[List[str]] = None
    marginals: Optional[Matrix] = None
    segments: Optional[List[List[Tuple[int, int]]]] = None
    trees: Optional[List[List[int]]] = None
    tree: Optional[SourceTree] = None
    question: Optional[str] = None
    target_tree: Optional[SourceTree] = None
    label: Optional[str] = None
    predicted: Optional[str] = None


def without_end(tokens: List[str], end: str = END) -> List[str]:
    """The tokens of a sentence without the ``</s>``, or other end symbol, that may be the last of them."""
    return tokens[:-1] if tokens[-1:] == [end] else tokens


def words_of(record: AttentionRecord) -> Tuple[List[str], List[str]]:
    """Source and target without their end symbols: ``</s>``, or the root symbol in pairs of sentences."""
    end = END if record.label is None else ROOT
    return without_end(record.source, end), without_end(record.target, end)


def write_records(path: str, records: Iterable[AttentionRecord]) -> int:
    """Writes records beside `path` and moves them into place when all are written; returns how many there were.

    Raises:
        RecordError: a number is infinite or NaN, which JSON cannot represent
    """
    count = 0
    with replaced(path) as file:
        for record in records:
            file.write(_line(record))
            count += 1
    return count


def check_records(option: str, path: str) -> None:
    """Refuses a file of records that does not exist."""
    if not os.path.exists(path):
        raise RecordError(f"{option} {path}: no such file; structattn-export writes one")
    check_inputs({option: path})


def read_records(path: str) -> Iterator[AttentionRecord]:
    """The records of a file, one after the other.

    Raises:
        InputError: no such file, or a line that is no record
    """
    for number, line in numbered_lines(path):
        yield _parse(line, f"{path}, line {number}")


def _line(record: AttentionRecord) -> str:
    # Not asdict, which would copy every number.
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    for name in ("tree", "target_tree"):
        values[name] = None if values[name] is None else vars(values[name])
    try:
        line = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise RecordError(
            f"sentence {record.id}, rank {record.rank}: a score, weight or marginal is infinite or not a number; "
            "a model in half precision may have overflowed: export in full precision"
        ) from None
    return line.translate(LINE_BREAKS) + "\n"


def _parse(line: str, place: str) -> AttentionRecord:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{place}: not JSON ({error}); was the file cut off? Write it again") from None
    known = {field.name for field in fields(AttentionRecord)}
    if not isinstance(values, dict) or not {"id", "source", "target", "weights"} <= set(values) <= known:
        raise RecordError(f"{place}: not a record of export_attention.py; its fields are {', '.join(sorted(known))}")
    record = AttentionRecord(**{"rank": 0, "score": 0.0, "forced": False, **values})
    for name, right, what in _fields(record):
        if not right:
            shown = json.dumps(values[name])
            shown = shown if len(shown) < 60 else shown[:60] + " …"
            raise RecordError(f"{place}: {name} is {shown}, not {what}; write the file again with export_attention.py")
    for name in ("tree", "target_tree"):
        if getattr(record, name) is not None:
            setattr(record, name, SourceTree(**getattr(record, name)))
    return record


def _fields(record: AttentionRecord) -> Iterator[Tuple[str, bool, str]]:
    """Whether each field has the type and shape of its name; the check of a field may rely on the fields before it."""
    for name in ("id", "rank"):
        yield name, _is_count(getattr(record, name)), "a whole number from 0 on"
    yield "score", _is_number(record.score), "a number"
    yield "forced", isinstance(record.forced, bool), "true or false"
    for name in ("source", "target"):
        yield name, _are_tokens(getattr(record, name)), "a list of tokens"
    yield "reference", record.reference is None or _are_tokens(record.reference), "null or a list of tokens"
    rows, columns = len(record.target), len(record.source)
    shape = f"{rows} rows, one per target token, of {columns} source tokens"
    yield "weights", _is_matrix(record.weights, rows, columns), shape
    yield "marginals", record.marginals is None or _is_matrix(record.marginals, rows, columns), f"null or {shape}"
    runs = (
        record.segments is None
        or _is_list(record.segments, rows)
        and all(isinstance(row, list) and all(_is_run(run, columns) for run in row) for row in record.segments)
    )
    yield "segments", runs, f"null or {rows} lists of runs within {columns} source tokens"
    trees = (
        record.trees is None or _is_list(record.trees, rows) and all(_are_heads(row, columns) for row in record.trees)
    )
    yield "trees", trees, f"null or {rows} lists of heads, at most one for each of {columns} source tokens"
    yield "question", record.question is None or _are_tokens([record.question]), "null or text"
    for name, words in (("tree", columns), ("target_tree", rows)):
        tree = getattr(record, name)
        yield name, tree is None or _is_tree(tree, words), "null or heads and the marginals of their arcs"
    for name in ("label", "predicted"):
        yield name, getattr(record, name) is None or _are_tokens([getattr(record, name)]), "null or text"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _are_tokens(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        return False
    try:
        "".join(value).encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can represent and UTF-8 cannot
        return False
    return True


def _is_matrix(value: Any, rows: int, columns: int) -> bool:
    return _is_list(value, rows) and all(_is_list(row, columns) and all(map(_is_number, row)) for row in value)


def _is_run(value: Any, columns: int) -> bool:
    return _is_list(value, 2) and all(map(_is_count, value)) and value[0] < value[1] <= columns


def _are_heads(value: Any, columns: int) -> bool:
    return isinstance(value, list) and len(value) <= columns and all(_is_count(h) and h <= len(value) for h in value)


def _is_tree(value: Any, columns: int) -> bool:
    if not isinstance(value, dict) or set(value) != {"heads", "marginals"} or not _are_heads(value["heads"], columns):
        return False
    return _is_matrix(value["marginals"], len(value["heads"]) + 1, len(value["heads"]))
