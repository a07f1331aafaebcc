"""Sentencepiece for ``parallel_corpus.py``: models learned and applied through its library, dictionaries made of them.

Kudo and Richardson, SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural Text
Processing, EMNLP 2018, system demonstrations.
"""

import hashlib
import io
import os
import re
from collections import Counter
from typing import Iterable, List, NamedTuple

from fairseq_structattn.analysis.files import InputError, beside, check_inputs, read_lines, write_lines

TYPES = ("unigram", "bpe", "char", "word")


class Settings(NamedTuple):
    """Of the model of one side, or of both.

    Attributes:
        option: what asked for it, for error messages
        model: the number of pieces that are to be learned, or the path of a model that there is
        character_coverage: share of the characters of the training text that get pieces of their own, 0 to 1
        kind: one of :data:`TYPES`
    """

    option: str
    model: str
    character_coverage: float = 0.9995
    kind: str = "unigram"


class Subwords:
    """A sentencepiece model.

    Args:
        path: its file

    Raises:
        InputError: sentencepiece is not installed, or `path` is no model of it
    """

    def __init__(self, path: str):
        self.path = path
        try:
            self.processor = _library().SentencePieceProcessor(model_file=path)
        except (OSError, RuntimeError):
            raise InputError(f"{path}: not a model of sentencepiece; name a file NAME.model that it wrote") from None

    def split(self, sentence: str) -> str:
        """Pieces with spaces between them; without sampling, so always the same ones."""
        return " ".join(self.processor.encode(sentence, out_type=str))

    def join(self, pieces: str) -> str:
        """Text from pieces, as ``--remove-bpe sentencepiece`` of fairseq makes it."""
        return pieces.replace(" ", "").replace("\u2581", " ").strip()

    def pieces(self) -> List[str]:
        """All of the model, without the marks that fairseq has of its own: ``<unk>``, ``<s>`` and ``</s>``."""
        processor = self.processor
        marks = (processor.is_unknown, processor.is_control, processor.is_unused)
        return [processor.id_to_piece(i) for i in range(len(processor)) if not any(is_mark(i) for is_mark in marks)]

    def write_dictionary(self, path: str, sentences: Iterable[str]) -> None:
        """A dictionary of fairseq: every piece of the model and how often it is in `sentences`, most frequent first.

        No piece is left out, so that the numbers of pieces depend on nothing but these two; the order is what an
        adaptive softmax asks for.

        Args:
            path: such as ``dict.en.txt``
            sentences: of pieces, those to train on
        """
        counts = Counter(piece for sentence in sentences for piece in sentence.split(" "))
        write_lines(path, [f"{piece} {counts[piece]}" for piece in sorted(self.pieces(), key=lambda one: -counts[one])])


def build(settings: Settings, path: str, sentences: List[str]) -> Subwords:
    """The model that `settings` ask for.

    Args:
        settings: see there
        path: where a learned model is written; one that was learned there before from the same sentences with the same
            settings is taken as it is
        sentences: to learn from

    Raises:
        InputError: the settings do not fit the sentences, or are none
    """
    if not settings.model.isdigit():
        check_inputs({settings.option: settings.model})
        return Subwords(settings.model)
    mark, origin = path + ".sha256", _digest(settings, sentences)
    if not (os.path.exists(path) and os.path.exists(mark) and read_lines(mark) == [origin]):
        learned = learn(settings, sentences)
        with beside(path) as made, open(made, "wb") as file:
            file.write(learned)
        write_lines(mark, [origin])
    return Subwords(path)


def learn(settings: Settings, sentences: List[str]) -> bytes:
    """A new model, as the content of its file."""
    if not 0 < settings.character_coverage <= 1:
        raise InputError(f"--character-coverage {settings.character_coverage}: a share, above 0 and not above 1")
    model = io.BytesIO()
    try:
        _library().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            vocab_size=int(settings.model),
            character_coverage=settings.character_coverage,
            model_type=settings.kind,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(f"{settings.option} {settings.model}: {_reason(str(error))}") from None
    return model.getvalue()


def _reason(message: str) -> str:
    most = re.search(r"<= (\d+)", message)
    if most:
        return f"the training text has pieces for {most.group(1)} at most; ask for that many or fewer"
    fewest = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if fewest:
        return f"the characters alone need {fewest.group(1)}; ask for that many or more, or lower --character-coverage"
    return f"sentencepiece says: {message.strip()}"


def _digest(settings: Settings, sentences: List[str]) -> str:
    found = hashlib.sha256(repr(settings[1:]).encode())
    for sentence in sentences:
        found.update(sentence.encode() + b"\n")
    return found.hexdigest()


def _library():
    try:
        import sentencepiece
    except ImportError:
        raise InputError("sentencepiece is not installed: pip install -c constraints.txt -e '.[subwords]'") from None
    return sentencepiece
