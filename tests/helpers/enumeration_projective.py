"""Quantities of projective dependency trees by listing all of them: what the algorithms are tested against."""

import functools
import itertools

import torch


def reaches(heads, word, ancestor):
    """Whether following the heads (`heads[m - 1]` is the head of word m) leads from a word to an ancestor or itself."""
    for _ in range(len(heads) + 1):
        if word == ancestor:
            return True
        if word == 0:
            return False
        word = heads[word - 1]
    return False


def is_projective_tree(heads):
    """By the definition: whatever lies between a word and its head descends from that head."""
    words = range(1, len(heads) + 1)
    return all(reaches(heads, m, 0) for m in words) and all(
        reaches(heads, between, heads[m - 1])
        for m in words
        for between in range(min(m, heads[m - 1]) + 1, max(m, heads[m - 1]))
    )


@functools.lru_cache(maxsize=None)
def all_trees(n, roots):
    """The head of each word in each tree, `[trees, n]`."""
    trees = [
        heads
        for heads in itertools.product(range(n + 1), repeat=n)
        if is_projective_tree(heads) and (roots == "multi" or heads.count(0) == 1)
    ]
    return torch.tensor(trees, dtype=torch.long).reshape(len(trees), n)


class EnumeratedTrees:
    """All trees of one sentence, float64: `scores` `[n+1, n]`, −inf allowed; what stands for self-loops is not used."""

    def __init__(self, scores, roots):
        scores = scores.detach().double()
        n = scores.shape[1]
        heads = all_trees(n, roots)
        self.arcs = torch.zeros(len(heads), n + 1, n, dtype=torch.double)
        self.scores = torch.zeros(len(heads), dtype=torch.double)
        for word in range(n):
            self.arcs[torch.arange(len(heads)), heads[:, word], word] = 1
            self.scores += scores[heads[:, word], word]
        self.log_partition = self.scores.logsumexp(0) if len(heads) > 0 else torch.tensor(-float("inf")).double()
        possible = self.log_partition > -float("inf")
        self.probabilities = (self.scores - self.log_partition).exp() if possible else torch.zeros_like(self.scores)
        self.marginals = torch.einsum("t,thm->hm", self.probabilities, self.arcs)
        self.argmax = self.arcs[self.scores.argmax()] if possible else torch.zeros_like(self.marginals)
        self.entropy = -torch.special.xlogy(self.probabilities, self.probabilities).sum()

    def gradient(self, on_log_partition, on_marginals):
        """Gradient of ``on_log_partition · log Z + ⟨on_marginals, marginals⟩``, by Cov(arcs) · g."""
        value = torch.einsum("thm,hm->t", self.arcs, on_marginals)
        value = on_log_partition + value - self.probabilities @ value
        return torch.einsum("t,thm->hm", self.probabilities * value, self.arcs)

    def kl(self, other):
        ratio = torch.special.xlogy(self.probabilities, self.probabilities / other.probabilities)
        return ratio.masked_fill(self.probabilities == 0, 0).sum()
