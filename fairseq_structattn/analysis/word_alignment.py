"""Word alignments from attention between subwords or characters.

    structattn-align --records attention.jsonl --words sentencepiece > alignment.txt
    … --source-words characters --target-words tokens
    … --source-words characters --source-text test.segmented.ja --target-words tokens
    … --source-words sentencepiece --source-text test.segmented.ja --target-words tokens

prints one line per record of export_attention.py, in their order: links ``i-j`` in the Pharaoh format, source word i
to target word j, both counted from 0. Each target word is linked with the source word that it attends to most. A target
word that attends to no word is left out, and so is the end of the sentence, its last token ``</s>``, as in fairseq's
--print-alignment hard. A ``</s>`` elsewhere, or ``<pad>``, is a token like any other.

How tokens make words:

``tokens``         each token is a word
``sentencepiece``  a word begins where a piece begins with ▁; pieces of bytes such as <0xE3> are decoded. --source-text
                   or --target-text gives words whose spaces the pieces do not have; words that share a piece become one
``subword_nmt``    a piece that ends in @@ is joined with the next
``characters``     a word begins after a space, which is the token ▁ or the one that --space names; for a corpus without
                   spaces, --source-text or --target-text gives the original words, one sentence per line

Weights of words: the columns of a word's tokens are summed, its rows averaged (Clark et al. 2019, What Does BERT Look
At? An Analysis of BERT's Attention, section 4): attention to a word is attention to any part of it, and rows keep their
sum. --rows max takes the maximum over the rows in each column instead. --merged FILE writes records of words with their
weights, which can be drawn like other records.
"""

import argparse
import re
import sys
import unicodedata
from dataclasses import replace
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from fairseq_structattn.analysis.attention_records import (
    END,
    AttentionRecord,
    Matrix,
    check_records,
    read_records,
    without_end,
    write_records,
)
from fairseq_structattn.analysis.files import InputError, check_inputs, check_outputs, command, read_lines, replaced

SPACE = "\u2581"  # ▁, how sentencepiece and fairseq's character encoding write a space
CONTINUED = "@@"
UNKNOWN = "<unk>"
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
BYTES = re.compile(f"(?:{BYTE.pattern})+")


class AlignmentError(InputError):
    """The words of tokens cannot be found: the reason, and what to do about it."""


class Word(NamedTuple):
    """A word and its tokens ``[start, end)``."""

    text: str
    start: int
    end: int


def token_words(tokens: Sequence[str]) -> List[Word]:
    """Every token is a word."""
    return [Word(token, place, place + 1) for place, token in enumerate(tokens)]


def sentencepiece_words(pieces: Sequence[str]) -> List[Word]:
    """Words that begin where a piece begins with ▁.

    An unknown piece, ``<unk>``, continues the word before it, as in the text that fairseq makes of the pieces. A ▁
    without letters, or several in a row, belong to the next word, or at the end of a sentence to the last: words are
    separated by spaces in the text.

    Raises:
        AlignmentError: a piece spans a space
    """
    for piece in pieces:
        if SPACE in piece.lstrip(SPACE):
            raise AlignmentError(
                f"the piece '{piece}' spans several words, so its weight belongs to none of them; train sentencepiece "
                "with its default --split_by_whitespace=true, or align its pieces: --words tokens"
            )
    words = _at_spaces(pieces, [piece.startswith(SPACE) for piece in pieces], lambda piece: piece.lstrip(SPACE))
    return [word._replace(text=_decode(word.text)) for word in words]


def subword_nmt_words(pieces: Sequence[str]) -> List[Word]:
    """Words from pieces; all pieces of a word but the last end in @@."""
    begins = [True] + [not piece.endswith(CONTINUED) for piece in pieces[:-1]]
    return _words(pieces, begins, lambda piece: piece[: -len(CONTINUED)] if piece.endswith(CONTINUED) else piece)


def character_words(characters: Sequence[str], space: str = SPACE) -> List[Word]:
    """Words between tokens `space`; a space belongs to the next word, or at the end to the last."""
    return _at_spaces(characters, [one == space for one in characters], lambda one: "" if one == space else one)


def words_of_text(characters: Sequence[str], text: str) -> List[Word]:
    """Words of `text`, which has the same characters and spaces; ``<unk>`` stands for any one character.

    Raises:
        AlignmentError: `text` has other characters
    """
    found, start = [], 0
    for word in text.split():
        given = characters[start : start + len(word)]
        if len(given) < len(word) or any(one not in (letter, "<unk>") for one, letter in zip(given, word)):
            raise AlignmentError(f"'{''.join(given)}' stands where the text has '{word}'; give the text of the data")
        found.append(Word(word, start, start + len(word)))
        start += len(word)
    if start < len(characters):
        raise AlignmentError(
            f"'{''.join(characters[start:])}' stands behind the end of the text; give that of the data"
        )
    return found


def words_of_pieces(pieces: Sequence[str], text: str) -> List[Word]:
    """Words of `text` from pieces that sentencepiece found in it, or in the same text without its spaces.

    Words that share a piece become one. Characters are compared as sentencepiece normalises them (NFKC); ``<unk>``
    stands for any characters.

    Raises:
        AlignmentError: `text` has other characters
    """
    words = [unicodedata.normalize("NFKC", word) for word in text.split()]
    bare = [piece.replace(SPACE, "") for piece in pieces]
    pattern = "".join("(.+?)" if piece == UNKNOWN else f"({re.escape(piece)})" for piece in bare)
    found = re.fullmatch(pattern, "".join(words), re.DOTALL)
    if found is None:
        raise AlignmentError(f"'{''.join(bare)}' stands where the text has '{text}'; give the text of the data")
    starts_of_words = {len("".join(words[:count])) for count in range(1, len(words))}
    begins, begun = [], 0
    for number in range(1, len(pieces) + 1):
        # a ▁ alone has no characters: it is joined with the next piece, at the end with the last
        begins.append(number == 1 or (found.start(number) > begun and found.start(number) in starts_of_words))
        begun = found.start(number) if begins[-1] else begun
    return _words(bare, begins, str)


SCHEMES = {
    "tokens": token_words,
    "sentencepiece": sentencepiece_words,
    "subword_nmt": subword_nmt_words,
    "characters": character_words,
}


def _at_spaces(tokens: Sequence[str], spaces: List[bool], text_of: Callable[[str], str]) -> List[Word]:
    texts = [text_of(token) for token in tokens]
    # A space behind another space, with no letter in between, begins nothing new.
    begins, has_letters = [], False
    for place, (text, is_space) in enumerate(zip(texts, spaces)):
        begins.append(place == 0 or (is_space and has_letters and any(texts[place:])))
        has_letters = bool(text) or (has_letters and not begins[-1])
    return _words(tokens, begins, text_of) if any(texts) else []


def _words(tokens: Sequence[str], begins: List[bool], text_of: Callable[[str], str]) -> List[Word]:
    starts = [place for place, begin in enumerate(begins[: len(tokens)]) if begin]
    ends = starts[1:] + [len(tokens)]
    return [Word("".join(map(text_of, tokens[start:end])), start, end) for start, end in zip(starts, ends)]


def _decode(text: str) -> str:
    """The text with bytes such as <0xE3><0x81><0x82> decoded; bytes that are no UTF-8 become �."""
    return BYTES.sub(
        lambda run: bytes(int(byte, 16) for byte in BYTE.findall(run.group())).decode("utf-8", "replace"), text
    )


def merge(weights: Matrix, source: List[Word], target: List[Word], rows: str = "mean") -> Matrix:
    """Weights of words ``[target][source]`` from weights of tokens.

    Args:
        weights: ``[target token][source token]``
        source, target: words of some or all tokens
        rows: ``"mean"`` or ``"max"`` of a word's rows; columns are summed
    """
    summed = [[sum(row[word.start : word.end]) for word in source] for row in weights]
    return [[_of_rows(column, rows) for column in zip(*summed[word.start : word.end])] for word in target]


def _of_rows(column: Tuple[float, ...], rows: str) -> float:
    return max(column) if rows == "max" else sum(column) / len(column)


def links(weights: Matrix) -> List[Tuple[int, int]]:
    """Pairs (source, target) of each target word and the source word of its largest weight, the first of equals."""
    found = []
    for step, row in enumerate(weights):
        strongest = max(range(len(row)), key=row.__getitem__, default=None)
        if strongest is not None and row[strongest] > 0:
            found.append((strongest, step))
    return found


def pharaoh(pairs: List[Tuple[int, int]]) -> str:
    """``0-0 2-1``."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


class Side(NamedTuple):
    """How the words of one side are found."""

    scheme: str
    text: Optional[List[str]] = None
    space: str = SPACE

    def words(self, tokens: Sequence[str], sentence: int) -> List[Word]:
        """The words of a sentence without ``</s>``."""
        try:
            if self.text is not None:
                of_text = words_of_pieces if self.scheme == "sentencepiece" else words_of_text
                return of_text(tokens, _line(self.text, sentence))
            return character_words(tokens, self.space) if self.scheme == "characters" else SCHEMES[self.scheme](tokens)
        except AlignmentError as error:
            raise AlignmentError(f"sentence {sentence}: {error}") from None


def _line(text: List[str], sentence: int) -> str:
    if sentence >= len(text):
        raise AlignmentError(f"the text has only {len(text)} lines; line n + 1 belongs to sentence n")
    return text[sentence]


def merged(record: AttentionRecord, source: Side, target: Side, rows: str = "mean") -> AttentionRecord:
    """A record of words instead of tokens, with their weights and the reference; other fields of tokens are None.

    ``</s>`` stays where it was, last.
    """
    sides = [_with_end(side, tokens, record.id) for side, tokens in ((source, record.source), (target, record.target))]
    reference = record.reference
    if reference is not None:
        reference = [word.text for word in target.words(reference, record.id)]
    return replace(
        record,
        source=[word.text for word in sides[0]],
        target=[word.text for word in sides[1]],
        reference=reference,
        weights=merge(record.weights, sides[0], sides[1], rows),
        marginals=None,
        segments=None,
        trees=None,
        tree=None,
    )


def _with_end(side: Side, tokens: List[str], sentence: int) -> List[Word]:
    inner = without_end(tokens)
    return side.words(inner, sentence) + [Word(END, place, place + 1) for place in range(len(inner), len(tokens))]


def alignment(record: AttentionRecord, words: AttentionRecord) -> List[Tuple[int, int]]:
    """Links between the words of a record of tokens, `words` being the :func:`merged` one.

    Whether a side ends in ``</s>`` is decided from the tokens: the words of a sentence that was cut off may spell it.
    """
    rows, columns = (
        len(merged_side) - (len(tokens) - len(without_end(tokens)))
        for merged_side, tokens in ((words.target, record.target), (words.source, record.source))
    )
    return links([row[:columns] for row in words.weights[:rows]])


def aligned(
    records: Iterable[AttentionRecord], source: Side, target: Side, rows: str, output
) -> Iterator[AttentionRecord]:
    """Yields the merged records, and writes their alignments to the file `output`."""
    for record in records:
        words = merged(record, source, target, rows)
        output.write(pharaoh(alignment(record, words)) + "\n")
        yield words


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", required=True, metavar="FILE", help="records of structattn-export")
    parser.add_argument(
        "--words",
        choices=sorted(SCHEMES),
        default="tokens",
        help="how tokens become words, on both sides (default: tokens)",
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-words",
            choices=sorted(SCHEMES),
            help=f"how tokens become words, on the {side} side (default: --words)",
        )
        parser.add_argument(f"--{side}-text", metavar="FILE", help=f"{side} text with spaces between words")
    parser.add_argument(
        "--space", default=SPACE, metavar="TOKEN", help=f"token for a space between characters (default: {SPACE})"
    )
    parser.add_argument(
        "--rows",
        choices=("mean", "max"),
        default="mean",
        help="how the rows of a target word are merged (default: mean)",
    )
    parser.add_argument("--output", metavar="FILE", help="file for the links (default: print them)")
    parser.add_argument("--merged", metavar="FILE", help="file for records of words")
    options = parser.parse_args(arguments)
    for side in ("source", "target"):
        scheme = getattr(options, f"{side}_words") or options.words
        setattr(options, f"{side}_words", scheme)
        if getattr(options, f"{side}_text") and scheme not in ("characters", "sentencepiece"):
            parser.error(f"--{side}-text is for characters and pieces of sentencepiece; --{side}-words is {scheme}")
    return options


def side_of(options: argparse.Namespace, name: str) -> Side:
    path = getattr(options, f"{name}_text")
    text = read_lines(path) if path else None
    return Side(getattr(options, f"{name}_words"), text, options.space)


def run(options: argparse.Namespace, output) -> None:
    sides = side_of(options, "source"), side_of(options, "target")
    records = aligned(read_records(options.records), *sides, options.rows, output)
    if options.merged:
        write_records(options.merged, records)
    else:
        for _ in records:
            pass


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_records("--records", options.records)
    check_inputs({"--source-text": options.source_text, "--target-text": options.target_text})
    check_outputs({"--output": options.output, "--merged": options.merged})
    if options.output is None:
        run(options, sys.stdout)
        return
    with replaced(options.output) as file:
        run(options, file)


if __name__ == "__main__":
    main()
