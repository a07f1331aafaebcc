"""Sentence vectors: sums of word embeddings, weighted by position, plus an embedding of the age of the sentence."""

from typing import Optional

import torch
from torch import Tensor, nn


class SentenceVectors(nn.Module):
    """Vectors of sentences in each of several tables of embeddings.

    A sentence of J words is s Σⱼ lⱼ ⊙ E[wordⱼ] with lⱼ[k] = (1 − j/J) − (k/d)(1 − 2j/J), j and k counted from 1
    (position encoding); s is 1 in the paper, and 2 in the code of its authors, where the mean of s lⱼ is 1. The vector
    of a fact that is `age` facts older than the last one also has the term T[age] (temporal encoding). Sukhbaatar et
    al., "End-To-End Memory Networks" (NIPS 2015), section 4.1.

    Args:
        num_words: rows of each table E; words are counted in bags, which suits vocabularies of a few thousand words
        dim: d, size of a vector
        num_tables: number of tables, each with its own E and T
        max_facts: rows of each table T, the largest number of facts of a story
        padding: index of the padding symbol
        init_std: standard deviation of the normal distribution that initialises embeddings
        age_noise: in training, probability that an age is skipped before each fact, as if an empty fact were inserted,
            to regularise T (section 4.1, random noise)
        position_scale: s
    """

    units: Tensor

    def __init__(
        self,
        num_words: int,
        dim: int,
        num_tables: int,
        max_facts: int,
        padding: int,
        init_std: float = 0.1,
        age_noise: float = 0.0,
        position_scale: float = 1.0,
    ):
        super().__init__()
        self.dim, self.num_tables, self.padding = dim, num_tables, padding
        self.age_noise, self.position_scale = age_noise, position_scale
        # The tables are concatenated, so that one product serves all of them.
        self.words = nn.Parameter(torch.empty(num_words, num_tables * dim))
        self.ages = nn.Parameter(torch.empty(max_facts, num_tables * dim))
        for table in (self.words, self.ages):
            nn.init.normal_(table, std=init_std)
        self.register_buffer("units", torch.arange(1, dim + 1) / dim, persistent=False)

    def question(self, tokens: Tensor, tables: Optional[Tensor] = None) -> Tensor:
        """Vectors of questions, ``[batch, dim]``.

        Args:
            tokens: ``[batch, words]``, right-padded
            tables: number of the table for each question, ``[batch]``; None: the first
        """
        if tables is None:
            return self._sums(tokens, self.table(0))
        vectors = self._sums(tokens, self.words).unflatten(-1, (self.num_tables, self.dim))
        return vectors[torch.arange(len(tokens), device=tokens.device), tables]

    def facts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Vectors of facts in all tables, ``[tables, batch, facts, dim]``; 0 in padding.

        Args:
            tokens: ``[batch, facts, words]``, the oldest fact first, both right-padded
            lengths: number of facts of each story, ``[batch]``
        """
        age = lengths.unsqueeze(1) - 1 - torch.arange(tokens.shape[1], device=tokens.device)
        vectors = self._sums(tokens, self.words) + self.ages[self._noisy(age)]
        vectors = vectors.masked_fill((age < 0).unsqueeze(-1), 0)
        return vectors.unflatten(-1, (self.num_tables, self.dim)).movedim(-2, 0)

    def table(self, number: int) -> Tensor:
        """Embeddings of the words in one table, ``[num_words, dim]``."""
        return self.words.unflatten(-1, (self.num_tables, self.dim))[:, number]

    def _noisy(self, age: Tensor) -> Tensor:
        """Ages clamped to those that have an embedding, with noise in training; padding has an age too."""
        if self.training and self.age_noise > 0:
            skipped = (torch.rand(age.shape, device=age.device) < self.age_noise) & (age >= 0)
            age = age + skipped.flip(1).cumsum(1).flip(1)
        return age.clamp(0, self.ages.shape[0] - 1)

    def _sums(self, tokens: Tensor, table: Tensor) -> Tensor:
        """s Σⱼ lⱼ ⊙ E[wordⱼ], ``[…, columns of table]``. Since lⱼ[k] is linear in k, a sentence is a sum of two
        weighted bags of words, which takes a fifth of the time of looking words up."""
        real = tokens != self.padding
        place = torch.arange(1, tokens.shape[-1] + 1, device=tokens.device) / real.sum(-1, keepdim=True).clamp(min=1)
        weights = (self.position_scale * torch.stack((1 - place, 1 - 2 * place))).masked_fill(~real, 0).to(table.dtype)
        bags = weights.new_zeros(weights.shape[:-1] + table.shape[:1]).scatter_add_(
            -1, tokens.expand_as(weights), weights
        )
        plain, by_unit = bags @ table
        return plain - self.units.to(table.dtype).repeat(table.shape[1] // self.dim) * by_unit
