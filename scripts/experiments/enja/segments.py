"""Compares the ends of the segments that attention to characters selects with the word boundaries of the corpus.

A boundary is a place between two characters of a sentence, 1 to n − 1. Boundaries of a system are counted for each
target word ("steps"), and, without repetitions, for all target words of a sentence together ("sentence"). A random
segmentation has as many boundaries at random places; its expected number of correct boundaries is computed exactly.
"""

from typing import Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

from fairseq_structattn.analysis.attention_records import AttentionRecord

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def word_boundaries(sentence: str) -> Set[int]:
    """The places of the spaces of a sentence: the number of characters before each, spaces not counted."""
    places, end = set(), 0
    for word in sentence.split()[:-1]:
        end += len(word)
        places.add(end)
    return places


def boundaries(segments: Iterable[Tuple[int, int]], characters: int) -> Set[int]:
    """Ends of segments ``[start, end)`` that lie between two characters; ``</s>`` follows the last."""
    return {place for segment in segments for place in segment if 0 < place < characters}


def above(row: Sequence[float], threshold: float) -> List[Tuple[int, int]]:
    """The runs ``[start, end)`` of positions with at least `threshold`."""
    runs, start = [], None
    for place, value in enumerate([*row, float("-inf")]):
        if value >= threshold and start is None:
            start = place
        elif value < threshold and start is not None:
            runs.append((start, place))
            start = None
    return runs


class Count(NamedTuple):
    """Numbers of boundaries: those found, those of them that are right, those of the words, and the expected number of
    right ones among as many random boundaries as were found."""

    found: int = 0
    right: int = 0
    words: int = 0
    by_chance: float = 0.0

    def __add__(self, other: "Count") -> "Count":
        return Count(*(one + another for one, another in zip(self, other)))

    @property
    def scores(self) -> Tuple[float, float, float]:
        """Precision, recall and F1 in percent."""
        return _scores(self.right, self.found, self.words)

    @property
    def chance_scores(self) -> Tuple[float, float, float]:
        """The same for the random segmentation."""
        return _scores(self.by_chance, self.found, self.words)


def _scores(right: float, found: int, words: int) -> Tuple[float, float, float]:
    precision, recall = right / max(found, 1), right / max(words, 1)
    both = precision + recall
    return 100 * precision, 100 * recall, 200 * precision * recall / both if both else 0.0


def count(found: Set[int], words: Set[int], characters: int) -> Count:
    places = max(characters - 1, 1)
    return Count(len(found), len(found & words), len(words), len(found) * len(words) / places)


def counts(steps: Sequence[Sequence[Tuple[int, int]]], words: Set[int], characters: int) -> Dict[str, Count]:
    """Counts for one sentence, from its segments at each target word."""
    by_step = [boundaries(segments, characters) for segments in steps]
    total = Count()
    for found in by_step:
        total += count(found, words, characters)
    return {"steps": total, "sentence": count(set().union(*by_step), words, characters)}


def measure(records: Sequence[AttentionRecord], sentences: List[str], threshold: float = 0.0) -> Dict[str, Count]:
    """Counts over all records, of their segments or, with a `threshold`, of runs of positions that reach it.

    Args:
        records: of characters; the target's ``</s>`` is left out
        sentences: line n is sentence n with spaces between its words
    """
    total = {"steps": Count(), "sentence": Count()}
    for record in records:
        characters = len(record.source) - 1
        steps = record.segments if not threshold else [above(row, threshold) for row in record.marginals]
        for kind, found in counts(steps[:-1], word_boundaries(sentences[record.id]), characters).items():
            total[kind] += found
    return total


def best_threshold(records: Sequence[AttentionRecord], sentences: List[str]) -> float:
    """The one of :data:`THRESHOLDS` with the highest F1 of sentences."""
    return max(THRESHOLDS, key=lambda threshold: measure(records, sentences, threshold)["sentence"].scores[2])
