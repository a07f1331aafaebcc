"""Text of two languages, line by line: read, and checked to be aligned."""

from typing import Dict, List

from fairseq_structattn.analysis.files import InputError, read_lines


class CorpusError(InputError):
    """A corpus is wrong: where, why, and what to do about it."""


def read_sentences(path: str) -> List[str]:
    """The lines of a file; CorpusError for a line that is not UTF-8 or has no token."""
    sentences = read_lines(path)
    if not sentences:
        raise CorpusError(f"{path}: the file is empty")
    for number, sentence in enumerate(sentences, start=1):
        if not sentence.strip():
            raise CorpusError(
                f"{path}, line {number}: empty line; remove it here and in the file of the other language"
            )
    return sentences


def check_aligned(sentences: Dict[str, List[str]]) -> None:
    """Refuses files with different numbers of lines: after a lost line every pair would be wrong."""
    counts = {path: len(lines) for path, lines in sentences.items()}
    if len(set(counts.values())) > 1:
        listed = " but ".join(f"{path} has {count:,} lines" for path, count in counts.items())
        raise CorpusError(f"{listed}: line n of one must translate line n of the other")
