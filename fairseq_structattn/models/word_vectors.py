"""Word vectors that are given, not learned."""

import zlib

import torch
import torch.nn.functional as F

from fairseq_structattn.models.pretrained import load_pretrained
from fairseq_structattn.modules.embeddings import WordEmbedding

# Vectors that words without one share; which of them a word has depends on its letters alone.
UNKNOWN_VECTORS = 100


def fixed_embedding(path: str, dictionary, dim: int, is_read: bool) -> WordEmbedding:
    """Word vectors as the published code of Kim et al. 2017 has them: of unit norm and not trained; words that the file
    does not know share 100 random vectors.

    Args:
        path: see :func:`~fairseq_structattn.models.pretrained.load_pretrained`, which also says what is raised
        dictionary: of the model; its padding symbol has the vector 0
        dim: size of a vector
        is_read: False for a model that gets its weights from a checkpoint: it does without the file
    """
    unknown = torch.randn(UNKNOWN_VECTORS, dim, generator=torch.Generator().manual_seed(0))
    embedding = WordEmbedding(len(dictionary), dim, dictionary.pad())
    embedding.weight.requires_grad = False
    embedding.weight.copy_(unknown[[zlib.crc32(word.encode()) % UNKNOWN_VECTORS for word in dictionary.symbols]])
    if is_read:
        load_pretrained(embedding, dictionary, None, path)
    embedding.weight.copy_(F.normalize(embedding.weight, dim=-1))
    embedding.weight[dictionary.pad()] = 0
    return embedding
