"""Chains that differ from the published one in what the paper leaves open, each a value of
``--attention-distribution``."""

from fairseq_structattn.distributions import LinearChain, register_distribution


@register_distribution("slow-chain")
class SlowChain(LinearChain):
    """The table is 0.3 times its parameter: under SGD it moves at 0.09 times the learning rate."""

    FACTOR = 0.3

    @classmethod
    def from_scores(cls, scores, lengths, pairwise):
        return cls(scores, cls.FACTOR * pairwise, lengths)


@register_distribution("started-chain")
class StartedChain(LinearChain):
    """Training starts near the table at which the modern model arrives (J = 0.9), not near zero; the penalty draws to
    that table."""

    START = ((0.45, 0.15), (-0.8, -0.2))

    @classmethod
    def from_scores(cls, scores, lengths, pairwise):
        return cls(scores, pairwise + pairwise.new_tensor(cls.START), lengths)


@register_distribution("word-chain")
class WordChain(LinearChain):
    """``</s>`` is no position of the chain; its weight is 0. The paper's sources have no such symbol."""

    @classmethod
    def from_scores(cls, scores, lengths, pairwise):
        return cls(scores, pairwise, (lengths - 1).clamp(min=0))


@register_distribution("bounded-chain")
class BoundedChain(LinearChain):
    """The chain of the authors' code, which has an edge at either end: the first and the last state score the
    means of the table's columns and rows."""

    @classmethod
    def from_scores(cls, scores, lengths, pairwise):
        return cls(scores, pairwise, lengths, start=pairwise.mean(0), end=pairwise.mean(1))
