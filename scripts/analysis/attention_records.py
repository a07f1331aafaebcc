"""What a model attended to, sentence by sentence: the records that ``export_attention.py`` writes and others read.

A file of records has one JSON object a line:

``id``
    number of the sentence in its subset, from 0
``rank``
    0 for the best translation, 1 for the next; 0 for a reference
``score``
    of a translation, as fairseq-generate ranks it, in nats and normalised by length; of a reference, its mean
    log-probability a token
``forced``
    whether ``target`` is the reference, read by the model, rather than the model's own translation
``source``, ``target``
    tokens in reading order, ``</s>`` last
``reference``
    tokens of the reference without ``</s>``; null where there is none
``weights``
    ``[target][source]``: what the source states were multiplied by when that target token was predicted. Rows sum to 1
    for softmax attention, to λ where marginals are normalised and scaled by λ, else to λ times the expected number of
    selected positions
``marginals``
    ``[target][source]``: the probabilities that positions are selected, before normalising and scaling: rows sum to 1
    for softmax, else to the expected number of selected positions; for attention over trees the expected numbers of
    dependents, 0 for ``</s>``; null where the model does not tell
``segments``
    for a linear chain, the runs ``[start, end)`` of selected positions in its most likely selection at each target
    token; otherwise null
``trees``
    for a decoder that attends over trees, the heads of the source words in the most likely tree at each target token,
    in the manner of ``tree.heads``; otherwise null
``tree``
    for ``--source-attention``, the same at every rank, ``{"heads": […], "marginals": [head][word]}``: the most likely
    head of each source word, ``</s>`` left out, 0 for the root and i for word i, counted from 1, and the probabilities
    of all arcs, where columns sum to 1; otherwise null
"""

import json
import os
from dataclasses import dataclass, fields
from typing import Iterable, Iterator, List, Optional, Tuple

Matrix = List[List[float]]


class RecordError(Exception):
    """What is wrong with a file of records, by line, and what to do about it."""


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


def write_records(path: str, records: Iterable[AttentionRecord]) -> int:
    """Writes records beside `path` and moves them into place when all are written; returns how many there were.

    Raises:
        RecordError: a number is infinite or none at all, which JSON cannot say
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    count = 0
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        for record in records:
            file.write(_line(record))
            count += 1
    os.replace(path + ".tmp", path)
    return count


def read_records(path: str) -> Iterator[AttentionRecord]:
    """The records of a file, one after the other.

    Raises:
        RecordError: no such file, or a line that is no record
    """
    if not os.path.isfile(path):
        raise RecordError(f"{path}: no such file; scripts/analysis/export_attention.py writes one")
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            yield _parse(line, f"{path}, line {number}")


def _line(record: AttentionRecord) -> str:
    # Not asdict, which would copy every number.
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    values["tree"] = None if record.tree is None else vars(record.tree)
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError:
        raise RecordError(
            f"sentence {record.id}, rank {record.rank}: a score, weight or marginal is infinite or not a number; "
            "a model in half precision may have overflowed: export in full precision"
        ) from None


def _parse(line: str, place: str) -> AttentionRecord:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{place}: not JSON ({error}); was the file cut off? Write it again") from None
    known = {field.name for field in fields(AttentionRecord)}
    if not isinstance(values, dict) or not {"id", "source", "target", "weights"} <= set(values) <= known:
        raise RecordError(f"{place}: not a record of export_attention.py; its fields are {', '.join(sorted(known))}")
    record = AttentionRecord(**{"rank": 0, "score": 0.0, "forced": False, **values})
    rows, columns = len(record.target), len(record.source)
    if len(record.weights) != rows or any(len(row) != columns for row in record.weights):
        raise RecordError(f"{place}: weights are not {rows} rows, one per target token, of {columns} source tokens")
    if record.tree is not None:
        record.tree = SourceTree(**record.tree)
    return record
