"""Quantities of a binary linear chain by listing all 2ⁿ state sequences: what the algorithms are tested against."""

import itertools

import torch


class EnumeratedChain:
    """One chain, float64: ``unary`` ``[n]``, ``pairwise`` ``[n-1, 2, 2]`` or ``[2, 2]``; −inf allowed."""

    def __init__(self, unary, pairwise):
        unary, pairwise = unary.detach().double(), pairwise.detach().double()
        n = len(unary)
        self.states = torch.tensor(list(itertools.product((0, 1), repeat=n))).reshape(2**n, n)
        self.pairs = torch.zeros(2**n, max(n - 1, 0), 2, 2, dtype=torch.double)
        scores = []
        for number, states in enumerate(self.states.tolist()):
            score = sum(unary[i].item() for i in range(n) if states[i] == 1)
            for i, (a, b) in enumerate(zip(states, states[1:])):
                self.pairs[number, i, a, b] = 1
                score += (pairwise if pairwise.dim() == 2 else pairwise[i])[a, b].item()
            scores.append(score)
        self.scores = torch.tensor(scores, dtype=torch.double)
        self.log_partition = self.scores.logsumexp(0)
        self.probabilities = (self.scores - self.log_partition).exp()
        self.marginals = self.probabilities @ self.states.double()
        self.edge_marginals = torch.einsum("s,siab->iab", self.probabilities, self.pairs)
        self.argmax = self.states[self.scores.argmax()]
        self.entropy = -torch.special.xlogy(self.probabilities, self.probabilities).sum()

    def gradients(self, on_log_partition, on_marginals, on_edges):
        """Gradients with respect to unary ``[n]`` and edge scores ``[n-1, 2, 2]`` of
        ``on_log_partition · log Z + ⟨on_marginals, marginals⟩ + ⟨on_edges, edge marginals⟩``, by Cov(parts) · g."""
        value = on_log_partition + self._centred(
            self.states.double() @ on_marginals + (self.pairs * on_edges).sum((1, 2, 3))
        )
        weighted = self.probabilities * value
        return weighted @ self.states.double(), torch.einsum("s,siab->iab", weighted, self.pairs)

    def kl(self, other):
        both = torch.special.xlogy(self.probabilities, self.probabilities / other.probabilities)
        return both.masked_fill(self.probabilities == 0, 0).sum()

    def _centred(self, value):
        return value - self.probabilities @ value
