"""Embeddings of words, in which the padding symbol has no part: whatever its row of the table holds, even NaN, it
reaches neither values nor gradients of words, and no training moves it."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WordEmbedding(nn.Embedding):
    """A table of embeddings, 0 for padding.

    A table that was to be read from a file which there is none of awaits the weights of a checkpoint
    (:meth:`await_weights`), and is not trained without them.
    """

    awaited: Optional[str] = None

    def forward(self, tokens: Tensor) -> Tensor:
        """``[..., embedding_dim]`` for `tokens` ``[...]``."""
        return super().forward(tokens).masked_fill(tokens.eq(self.padding_idx).unsqueeze(-1), 0.0)

    def await_weights(self, reason: str) -> None:
        """Lets training fail, with `reason`, unless ``load_state_dict`` comes first."""
        self.awaited = reason

    def train(self, mode: bool = True) -> "WordEmbedding":
        """See :class:`torch.nn.Module`.

        Raises:
            FileNotFoundError: the table has neither what the file holds that it was to be read from, nor the weights of
                a checkpoint
        """
        if mode and self.awaited is not None:
            raise FileNotFoundError(self.awaited)
        return super().train(mode)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if prefix + "weight" in state_dict:
            self.awaited = None


class TiedOutput(nn.Linear):
    """The output layer whose weights are the embeddings of the words.

    The row of the padding symbol scores as it is (NaN and infinities as 0) and is not trained: predicting words would
    move it otherwise.

    Args:
        embedding: its weights are shared
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
        # Without gradients one column is cheaper than a copy of the table.
        return F.linear(features, self.weight).index_copy_(-1, self.padding, F.linear(features, row))
