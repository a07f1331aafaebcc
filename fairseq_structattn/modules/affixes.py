"""Embeddings of the spelling of words, for words that do not occur in the training data."""

import zlib
from typing import Iterator, Sequence

import torch
from torch import Tensor, nn

PREFIXES, SUFFIXES = (2, 3), (1, 2, 3, 4)


def features(word: str) -> Iterator[str]:
    """Prefixes and suffixes of a word in lower case, and its shape, ``Xxx-dd`` for ``Abcd-175``."""
    lower = word.lower()
    yield from (f"{length}<{lower[:length]}" for length in PREFIXES)
    yield from (f"{length}>{lower[-length:]}" for length in SUFFIXES)
    yield f"={_shape(word)}"


def _shape(word: str) -> str:
    """The classes of the word's characters, with runs of one class shortened to two."""
    kinds = ["X" if sign.isupper() else "x" if sign.isalpha() else "d" if sign.isdigit() else sign for sign in word]
    return "".join(kind for place, kind in enumerate(kinds) if place < 2 or kinds[place - 2 : place] != [kind, kind])


class AffixEmbedding(nn.Module):
    """The sum of the embeddings of a word's affixes and shape. Features are hashed, so some share an embedding.

    Args:
        words: all words, in the order of their indices
        dim: size of an embedding
        padding_idx: index of the padding symbol, whose embedding is 0
        buckets: number of embeddings that the features share
    """

    features: Tensor

    def __init__(self, words: Sequence[str], dim: int, padding_idx: int, buckets: int = 10000):
        super().__init__()
        self.padding_idx = padding_idx
        self.table = nn.Embedding(buckets, dim)
        numbers = [[zlib.crc32(feature.encode()) % buckets for feature in features(word)] for word in words]
        # Features follow from the dictionary, so checkpoints do not store them.
        self.register_buffer("features", torch.tensor(numbers, dtype=torch.int32), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[..., dim]`` of word indices ``[...]``."""
        embedded = self.table(self.features[tokens]).sum(-2)
        return embedded.masked_fill(tokens.eq(self.padding_idx).unsqueeze(-1), 0.0)
