"""Fixed word vectors, which are not trained."""

import zlib

import torch
import torch.nn.functional as F

from fairseq_structattn.models.pretrained import load_pretrained
from fairseq_structattn.modules.embeddings import WordEmbedding

# Number of random vectors shared by words without a vector; the spelling of a word determines which one it gets.
UNKNOWN_VECTORS = 100


def fixed_embedding(path: str, dictionary, dim: int, is_read: bool) -> WordEmbedding:
    """Word vectors as in the published code of Kim et al. 2017: they have unit norm and are not trained; words that are
    not in the file share 100 random vectors.

    Args:
        path: see :func:`~fairseq_structattn.models.pretrained.load_pretrained`, also for errors
        dictionary: dictionary of the model, whose padding symbol has the vector 0
        dim: size of a vector
        is_read: False for a model whose weights come from a checkpoint and that does not need the file
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
