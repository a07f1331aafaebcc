"""``--attention-distribution uncoupled-chain``: the linear chain whose neighbours do not influence each other.

A control of the chain: what is left of its table of pairwise potentials when J = b₀₀ + b₁₁ − b₀₁ − b₁₀ is held at 0 is
a bias for selecting a position, which sigmoid attention does not have.
"""

from fairseq_structattn.distributions import LinearChain, register_distribution


@register_distribution("uncoupled-chain")
class UncoupledChain(LinearChain):
    """:class:`LinearChain` with the nearest table of pairwise potentials that has J = 0."""

    @classmethod
    def from_scores(cls, scores, lengths, pairwise):
        coupling = pairwise[0, 0] + pairwise[1, 1] - pairwise[0, 1] - pairwise[1, 0]
        checkered = pairwise.new_tensor([[1.0, -1.0], [-1.0, 1.0]])
        return cls(scores, pairwise - coupling / 4 * checkered, lengths)
