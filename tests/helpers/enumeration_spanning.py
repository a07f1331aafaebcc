"""Quantities of non-projective dependency trees by listing all trees: what the algorithms are tested against."""

import functools
import itertools

import torch


@functools.lru_cache(maxsize=None)
def all_trees(n, single_root):
    """Heads of all trees over words 1..n, as tuples: every choice of heads from which all words lead to the root."""

    def rooted(heads):
        for word in range(1, n + 1):
            for _ in range(n):
                word = heads[word - 1] if word else 0
            if word:
                return False
        return True

    choices = itertools.product(range(n + 1), repeat=n)
    return [heads for heads in choices if rooted(heads) and (not single_root or heads.count(0) == 1)]


def arcs(heads, n):
    """Parts 0 and 1, ``[n+1, n]``, float64."""
    parts = torch.zeros(n + 1, n, dtype=torch.double)
    for word, head in enumerate(heads):
        parts[head, word] = 1
    return parts


class EnumeratedTrees:
    """One sentence: ``scores`` ``[n+1, n]``, computed with in float64; −inf allowed, at least one tree possible."""

    def __init__(self, scores, single_root):
        scores = scores.detach().double()
        n = scores.shape[1]
        trees = all_trees(n, single_root)
        self.parts = torch.stack([arcs(heads, n) for heads in trees])
        self.scores = scores.masked_fill(self.parts == 0, 0).sum((1, 2))
        self.log_partition = self.scores.logsumexp(0)
        self.log_probs = self.scores - self.log_partition
        self.probabilities = self.log_probs.exp()
        self.marginals = self._mean(self.parts)
        self.argmax = self.parts[self.scores.argmax()]
        self.entropy = -torch.special.xlogy(self.probabilities, self.probabilities).sum()

    def gradient(self, on_log_partition, on_marginals):
        """Of ``on_log_partition · log Z + ⟨on_marginals, marginals⟩`` with respect to the scores, by Cov(parts) · g."""
        value = (self.parts * on_marginals).sum((1, 2))
        value = value - self.probabilities @ value + on_log_partition
        return self._mean(self.parts * value[:, None, None])

    def kl(self, other):
        terms = self.probabilities * (self.log_probs - other.log_probs)
        return terms.masked_fill(self.probabilities == 0, 0).sum()

    def _mean(self, values):
        return torch.einsum("t,thm->hm", self.probabilities, values)
