"""Word embeddings that exclude the padding symbol: the values of its row, even NaN, affect neither results nor
gradients of words, and the row is not trained."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WordEmbedding(nn.Embedding):
    """A table of embeddings, 0 for padding.

    If the file with pretrained embeddings is missing, the table awaits the weights of a checkpoint
    (:meth:`await_weights`), and cannot be trained without them.

    Args:
        num_embeddings: number of words
        embedding_dim: size of an embedding
        padding_idx: index of the padding symbol
    """

    padding_idx: int
    awaited: Optional[str] = None

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int):
        super().__init__(num_embeddings, embedding_dim, padding_idx)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[..., embedding_dim]`` of `tokens` ``[...]``."""
        return super().forward(tokens).masked_fill(tokens.eq(self.padding_idx).unsqueeze(-1), 0.0)

    def await_weights(self, reason: str) -> None:
        """Makes training fail with `reason` unless ``load_state_dict`` is called before."""
        self.awaited = reason

    def train(self, mode: bool = True) -> "WordEmbedding":
        """See :class:`torch.nn.Module`.

        Raises:
            FileNotFoundError: the table has neither the embeddings of its missing file nor the weights of a checkpoint
        """
        if mode and self.awaited is not None:
            raise FileNotFoundError(self.awaited)
        return super().train(mode)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if prefix + "weight" in state_dict:
            self.awaited = None


class TiedOutput(nn.Linear):
    """An output layer that shares its weights with the word embeddings.

    The row of the padding symbol is used as it is, with NaN and infinities replaced by 0. It gets no gradient, since
    predicting words would otherwise train it.

    Args:
        embedding: the embeddings whose weights are shared
    """

    padding: Tensor

    def __init__(self, embedding: WordEmbedding):
        super().__init__(embedding.embedding_dim, embedding.num_embeddings, bias=False)
        self.weight = embedding.weight
        self.register_buffer("padding", torch.tensor([embedding.padding_idx]), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Scores ``[..., words]`` for `features` ``[..., embedding_dim]``."""
        row = torch.nan_to_num(self.weight.detach()[self.padding], 0.0, 0.0, 0.0)
        if torch.is_grad_enabled():
            return F.linear(features, self.weight.index_copy(0, self.padding, row))
        # Without gradients, replacing one column of scores is cheaper than copying the table.
        return F.linear(features, self.weight).index_copy_(-1, self.padding, F.linear(features, row))
