"""Models with a distribution over heads: loading them, and decoding their trees."""

from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.export_attention import load_models
from fairseq_structattn.analysis.files import InputError, read_lines
from fairseq_structattn.distributions import SpanningTree
from fairseq_structattn.distributions.arcs import ArcDistribution
from fairseq_structattn.distributions.trees import DependencyTree
from fairseq_structattn.modules.span_attention import SpanAttention

DECODINGS = ("argmax", "risk")


class Parser(NamedTuple):
    """A model with a distribution over the heads of words, and its dictionary."""

    model: Any
    dictionary: Any

    def distribution(self, sentences: Sequence[List[str]]) -> ArcDistribution:
        """The distribution over the heads of a batch of sentences."""
        encoder = getattr(self.model, "encoder", None)
        end = [] if encoder is None else [self.dictionary.eos()]
        rows = [torch.tensor([self.dictionary.index(word) for word in words] + end).long() for words in sentences]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.dictionary.pad())
        with torch.no_grad():
            if encoder is None:
                return self.model.source_attention(tokens)
            return encoder.source_attention(tokens).distribution


def load_parser(checkpoint: str, data: str, user_dir: Optional[str] = PLUGIN) -> Parser:
    """The model of a checkpoint, and the dictionary of the binarised data that it was trained on.

    Raises:
        InputError: the checkpoint cannot be loaded, or its model has no parser
    """
    (model, *_), task = load_models(checkpoint, data, user_dir, cpu=True)
    if not hasattr(model, "source_attention") and not hasattr(getattr(model, "encoder", None), "source_attention"):
        raise InputError(
            f"{checkpoint}: a {type(model).__name__} has no parser; name one that has a --source-attention"
        )
    if isinstance(getattr(getattr(model, "encoder", None), "source_attn", None), SpanAttention):
        raise InputError(f"{checkpoint}: its --source-attention divides sentences into spans, which have no heads")
    return Parser(model.eval(), task.source_dictionary)


def decode(distribution: ArcDistribution, decoding: str) -> Tensor:
    """Heads ``[batch, n]`` of the most likely structure (``argmax``), or of the tree with the most expected right heads
    (``risk``), which is the best tree under the marginals; for independent heads, that is any dependency tree."""
    if decoding == "argmax":
        return distribution.argmax.argmax(-2)
    best: ArcDistribution
    if isinstance(distribution, DependencyTree):
        best = type(distribution)(distribution.marginals, distribution.lengths, distribution.roots)
    else:
        best = SpanningTree(distribution.marginals, distribution.lengths)
    return best.argmax.argmax(-2)


def batches(sentences: Sequence[Sequence], size: int = 64) -> Iterator[List[int]]:
    """Batches of the numbers of sentences of about the same length."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def parse(parser: Parser, sentences: Sequence[List[str]], decoding: str) -> List[List[int]]:
    """The heads of the words of each sentence, 0 for the root."""
    found: List[List[int]] = [[] for _ in sentences]
    for numbers in batches(sentences):
        heads = decode(parser.distribution([sentences[number] for number in numbers]), decoding).tolist()
        for number, row in zip(numbers, heads):
            found[number] = row[: len(sentences[number])]
    return found


def read_gold(words: str, heads: str) -> Tuple[List[List[str]], List[List[int]]]:
    """Sentences and their given heads, from two files with a line for each.

    Raises:
        InputError: files that do not belong together, by line
    """
    sentences = [line.split(" ") if line else [] for line in read_lines(words)]
    lines = read_lines(heads)
    if len(lines) != len(sentences):
        raise InputError(f"{heads}: {len(lines)} lines, but {words} has {len(sentences)}")
    gold = []
    for number, (line, sentence) in enumerate(zip(lines, sentences), 1):
        try:
            gold.append([int(head) for head in line.split()])
        except ValueError:
            raise InputError(f"{heads}, line {number}: {line!r} has something else than whole numbers") from None
        if len(gold[-1]) != len(sentence):
            raise InputError(f"{heads}, line {number}: {len(gold[-1])} heads of {len(sentence)} words")
    return sentences, gold
