"""One HTML page to browse the attention of hundreds of sentences: a single file that needs neither server nor network.

The page is ``attention_page.html`` with the sentences as JSON in place of its mark ``@DATA@``:

``unit``
    weights, marginals and probabilities are integer multiples of this number, or null for NaN: they are rounded to a
    thousandth, so that a cell takes two or three bytes
``largest``
    the weight, and the marginal, that have the darkest colour in all sentences
``sentences``
    the fields of each record that the page shows, as in ``attention_records.py``, with these differences:
    ``marginals`` is true where they equal the weights; ``arcs`` are the arcs of ``tree`` that are drawn, ``[head, word,
    probability, 1 in the best tree]``, words counted from 0 and −1 for the root; ``target_arcs`` are those of
    ``target_tree``; ``bleu`` is the sentence BLEU of ``target``, null without a reference or for a forced reference
"""

import json
import math
import os
from typing import Dict, List, Optional

from fairseq_structattn.analysis.attention_records import AttentionRecord, Matrix, SourceTree, without_end
from fairseq_structattn.analysis.files import InputError, replaced
from fairseq_structattn.analysis.score_bleu import bleu_metric
from fairseq_structattn.analysis.tree_figures import Arc, arcs_of

TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attention_page.html")
PLACE_FOR_DATA = "@DATA@"
UNITS_PER_ONE = 1000


class PageError(InputError):
    """No page can be made: the reason, and what to do about it."""


def write_page(
    records: List[AttentionRecord], path: str, remove_bpe: Optional[str] = None, tokenize: str = "none"
) -> None:
    """Writes the page beside `path` and moves it into place; see `page` for the other arguments and what is raised."""
    text = page(records, remove_bpe, tokenize)
    with replaced(path) as file:
        file.write(text)


def check_words(remove_bpe: Optional[str], tokenize: str) -> None:
    """Refuses values of `remove_bpe` and `tokenize` that `page` could not use.

    Raises:
        InputError: sacrebleu or fairseq know no such way
    """
    bleu_metric(tokenize)
    if remove_bpe is not None:
        _post_processed("", remove_bpe)


def _post_processed(text: str, remove_bpe: str) -> str:
    from fairseq.data.data_utils import post_process

    try:
        return post_process(text, remove_bpe)
    except NotImplementedError:
        raise PageError(f"--post-process {remove_bpe}: fairseq has no such way to make words of tokens") from None


def page(records: List[AttentionRecord], remove_bpe: Optional[str] = None, tokenize: str = "none") -> str:
    """The page as text.

    Args:
        records: the sentences of the page
        remove_bpe: see `sentence_bleu`
        tokenize: sacrebleu's tokenizer, ``none`` where tokens are words already

    Raises:
        InputError: sacrebleu or fairseq know no such way to make words
    """
    bleu = bleu_metric(tokenize, effective_order=True)
    data = {
        "unit": 1 / UNITS_PER_ONE,
        "largest": {
            "weights": _largest(record.weights for record in records),
            "marginals": _largest(record.marginals or [] for record in records),
        },
        "sentences": [_sentence(record, sentence_bleu(record, bleu, remove_bpe)) for record in records],
    }
    with open(TEMPLATE, encoding="utf-8") as file:
        before, after = file.read().split(PLACE_FOR_DATA)
    return before + _script_safe(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)) + after


def sentence_bleu(record: AttentionRecord, bleu, remove_bpe: Optional[str] = None) -> Optional[float]:
    """Sentence BLEU of a translation, 0 to 100; None where there is no reference, or where the model was given it.

    Args:
        record: the translation
        bleu: sacrebleu's metric; sentence BLEU asks for ``effective_order=True``
        remove_bpe: how fairseq's ``--post-process`` makes words of tokens (``sentencepiece``, ``subword_nmt``, …);
            without it BLEU is that of tokens

    Raises:
        PageError: fairseq knows no such way
    """
    if record.forced or record.reference is None:
        return None
    sides = [" ".join(without_end(tokens)) for tokens in (record.target, record.reference)]
    if remove_bpe is not None:
        sides = [_post_processed(side, remove_bpe) for side in sides]
    return round(bleu.sentence_score(sides[0], [sides[1]]).score, 2)


def _sentence(record: AttentionRecord, bleu: Optional[float]) -> Dict:
    return {
        "id": record.id,
        "rank": record.rank,
        "score": round(record.score, 4) if math.isfinite(record.score) else None,
        "forced": record.forced,
        "source": record.source,
        "target": record.target,
        "reference": record.reference,
        "question": record.question,
        "bleu": bleu,
        "weights": _in_units(record.weights),
        "marginals": True if record.marginals == record.weights else _in_units(record.marginals),
        "segments": record.segments,
        "trees": record.trees,
        "arcs": _arcs(record.tree),
        "target_arcs": _arcs(record.target_tree),
        "label": record.label,
        "predicted": record.predicted,
    }


def _arcs(tree: Optional[SourceTree]) -> Optional[List[List[Optional[int]]]]:
    return None if tree is None else [_arc_in_units(arc) for arc in arcs_of(tree.heads, tree.marginals)]


def _units(value: float) -> Optional[int]:
    return round(value * UNITS_PER_ONE) if math.isfinite(value) else None


def _in_units(matrix: Optional[Matrix]) -> Optional[List[List[Optional[int]]]]:
    return None if matrix is None else [[_units(value) for value in row] for row in matrix]


def _arc_in_units(arc: Arc) -> List[Optional[int]]:
    return [-1 if arc.head is None else arc.head, arc.word, _units(arc.probability), int(arc.best)]


def _largest(matrices) -> float:
    values = (value for matrix in matrices for row in matrix for value in row)
    return round(max((value for value in values if math.isfinite(value)), default=0.0), 4) or 1.0


def _script_safe(text: str) -> str:
    """JSON in which no token can end the script element that holds it, or open a comment in it."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
