"""Quantities of a linear chain with K states by listing all Kⁿ sequences: what the algorithms are tested against."""

import itertools

import torch


class EnumeratedStates:
    """One chain, float64: ``unary`` ``[n, K]``, ``pairwise`` ``[n-1, K, K]`` or ``[K, K]``, ``start`` and ``end``
    ``[K]``; −inf allowed. ``parts`` ``[Kⁿ, n·K + (n-1)·K²]`` says which unary and edge parts each sequence has."""

    def __init__(self, unary, pairwise, start=None, end=None):
        n, count = unary.shape
        scores, parts, self.sequences = [], [], list(itertools.product(range(count), repeat=n))
        for sequence in self.sequences:
            score = 0.0
            nodes, edges = torch.zeros(n, count).double(), torch.zeros(max(n - 1, 0), count, count).double()
            for i, state in enumerate(sequence):
                score += unary[i, state].item()
                nodes[i, state] = 1
                if i > 0:
                    table = pairwise if pairwise.dim() == 2 else pairwise[i - 1]
                    score += table[sequence[i - 1], state].item()
                    edges[i - 1, sequence[i - 1], state] = 1
            if n > 0:
                score += 0.0 if start is None else start[sequence[0]].item()
                score += 0.0 if end is None else end[sequence[-1]].item()
            scores.append(score)
            parts.append(torch.cat((nodes.flatten(), edges.flatten())))
        self.shape = n, count
        self.scores, self.parts = torch.tensor(scores, dtype=torch.double), torch.stack(parts)
        self.log_partition = self.scores.logsumexp(0)
        possible = self.log_partition > -float("inf")
        self.probabilities = (self.scores - self.log_partition).exp() if possible else torch.zeros_like(self.scores)
        self.marginals, self.edge_marginals = self._split(self.probabilities @ self.parts)
        self.argmax = self._split(self.parts[self.scores.argmax()])[0]
        self.entropy = -torch.special.xlogy(self.probabilities, self.probabilities).sum()

    def gradients(self, on_log_partition, on_marginals, on_edges):
        """Gradients with respect to unary and edge scores of
        ``on_log_partition · log Z + ⟨on_marginals, marginals⟩ + ⟨on_edges, edge marginals⟩``, by Cov(parts) · g."""
        direction = torch.cat((on_marginals.flatten(), on_edges.flatten()))
        value = self.parts @ direction
        weighted = self.probabilities * (value - self.probabilities @ value + on_log_partition)
        return self._split(weighted @ self.parts)

    def _split(self, flat):
        n, count = self.shape
        return flat[: n * count].reshape(n, count), flat[n * count :].reshape(max(n - 1, 0), count, count)
