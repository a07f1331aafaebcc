"""Source attention: every source word attends to its head in a latent dependency tree, the syntactic attention of Kim
et al. 2017."""

import functools
from typing import Callable, Dict, List, NamedTuple, Optional, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.distributions import IndependentHeads, distribution_names, get_distribution
from fairseq_structattn.distributions.arcs import ArcDistribution
from fairseq_structattn.distributions.trees import ROOTS, DependencyTree
from fairseq_structattn.modules.additive import additive_scores
from fairseq_structattn.modules.estimators import Estimator
from fairseq_structattn.modules.recurrent import SentenceRNN

BOUNDS = ("none", "tanh")
# The name of independent heads here, a softmax for each word; in decoder attention, softmax selects one position.
SOFTMAX = "softmax"

# From arc scores [batch, n+1, n] and lengths [batch], or None without padding, to a distribution over the heads of n
# words.
HeadsOf = Callable[[Tensor, Optional[Tensor]], ArcDistribution]


def source_attention_names() -> List[str]:
    """Distributions over the heads of words: ``softmax``, independent heads, and every registered
    :class:`~fairseq_structattn.distributions.arcs.ArcDistribution`."""
    return list(_over_arcs())


def _over_arcs() -> Dict[str, Type[ArcDistribution]]:
    found: Dict[str, Type[ArcDistribution]] = {SOFTMAX: IndependentHeads}
    for name in distribution_names():
        cls = get_distribution(name)
        if issubclass(cls, ArcDistribution):
            found[name] = cls
    return found


def heads_of(name: str, roots: str) -> HeadsOf:
    """The function that makes the distribution registered as `name` from arc scores.

    Args:
        name: one of :func:`source_attention_names`
        roots: ``"multi"`` or ``"single"``, number of words that may be attached to the root; used by trees only

    Raises:
        ValueError: another name, or other roots
    """
    known = _over_arcs()
    if name not in known:
        raise ValueError(f"unknown distribution over heads {name!r}; choose one of: {', '.join(known)}")
    if roots not in ROOTS:
        raise ValueError(f"roots is {roots!r}; choose one of: {', '.join(ROOTS)}")
    cls = known[name]
    return functools.partial(cls, roots=roots) if issubclass(cls, DependencyTree) else cls


class ExpectedHeads(NamedTuple):
    """The result of source attention for a batch of sentences, right-padded, ``</s>`` last.

    Attributes:
        distribution: distribution over the heads of the n words of each sentence, without ``</s>``: ``marginals`` and
            ``argmax`` are ``[batch, src_len, src_len-1]``, with ``[:, h, m]`` for head h (0: the root) of word m + 1
        vectors: expected heads ``[batch, src_len, state_dim]``; 0 for ``</s>`` and on padding
    """

    distribution: ArcDistribution
    vectors: Tensor


class ArcScorer(nn.Module):
    """Scores of all arcs between the words of a sentence, and from the root symbol to the words.

    ``θ(h → m) = s·tanh(W₁ x_h + W₂ x_m + b)`` with states x of a bidirectional LSTM over root and words (Kim et al.
    2017, section 4.1 and appendix A.1; the scorer of Kiperwasser & Goldberg 2016). The paper applies a tanh to θ.

    Args:
        embed_dim: size of a word embedding
        hidden_dim: units of the LSTM in each direction, and of the hidden layer of the score
        bound: ``"tanh"``, the outer tanh, which keeps scores between −1 and 1; ``"none"``
        layers: number of layers of the LSTM
        dropout: probability, between its layers and on its states
    """

    def __init__(self, embed_dim: int, hidden_dim: int, bound: str, layers: int = 1, dropout: float = 0.0):
        super().__init__()
        self.rnn = SentenceRNN("lstm", embed_dim, hidden_dim, layers, bidirectional=True, dropout=dropout)
        self.dropout = dropout
        self.head_projection = nn.Linear(self.rnn.output_dim, hidden_dim, bias=False)
        self.dependent_projection = nn.Linear(self.rnn.output_dim, hidden_dim)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)
        self.bound = bound

    def forward(self, embedded: Tensor, words: Tensor) -> Tensor:
        """Scores ``[batch, n+1, n]`` for embeddings ``[n+1, batch, embed_dim]`` of the root and n words. The number of
        words outside padding is ``words`` ``[batch]``."""
        states, _ = self.rnn(embedded, words + 1)
        states = F.dropout(states.transpose(0, 1), self.dropout, self.training)
        scores = self._score(states, states[:, 1:])
        return torch.tanh(scores) if self.bound == "tanh" else scores

    def _score(self, heads: Tensor, dependents: Tensor) -> Tensor:
        """Scores ``[batch, n+1, n]``, from LSTM states of heads ``[batch, n+1, dim]`` and words ``[batch, n, dim]``."""
        heads, dependents = self.head_projection(heads), self.dependent_projection(dependents)
        return additive_scores(heads.unsqueeze(2), dependents.unsqueeze(1), self.energy)


class BiaffineArcScorer(ArcScorer):
    """``θ(h → m) = r_h·U d_m + u·r_h`` with ``r_h = ReLU(W₁ x_h + b₁)`` and ``d_m = ReLU(W₂ x_m + b₂)``, where x are
    states of a bidirectional LSTM (Dozat & Manning, "Deep Biaffine Attention for Neural Dependency Parsing", ICLR 2017,
    section 3.1). The second term scores how likely a word has dependents. The arguments are those of
    :class:`ArcScorer`; `dropout` is also applied to r and d."""

    def __init__(self, embed_dim: int, hidden_dim: int, bound: str, layers: int = 1, dropout: float = 0.0):
        super().__init__(embed_dim, hidden_dim, bound, layers, dropout)
        self.head_projection = nn.Linear(self.rnn.output_dim, hidden_dim)
        # From r to U^T r.
        self.energy = nn.Linear(hidden_dim, hidden_dim, bias=False)
        self.head_score = nn.Linear(hidden_dim, 1, bias=False)

    def _score(self, heads: Tensor, dependents: Tensor) -> Tensor:
        heads, dependents = F.relu(self.head_projection(heads)), F.relu(self.dependent_projection(dependents))
        heads = F.dropout(heads, self.dropout, self.training)
        dependents = F.dropout(dependents, self.dropout, self.training)
        return torch.bmm(self.energy(heads), dependents.transpose(1, 2)) + self.head_score(heads)


class UniformArcs(nn.Module):
    """All arcs score 0: a control without a parser. The arguments are those of :class:`ArcScorer`."""

    def __init__(self, embed_dim: int, hidden_dim: int, bound: str, layers: int = 1, dropout: float = 0.0):
        super().__init__()

    def forward(self, embedded: Tensor, words: Tensor) -> Tensor:
        """Zeros ``[batch, n+1, n]`` for embeddings ``[n+1, batch, embed_dim]``."""
        nodes, batch = embedded.shape[:2]
        return embedded.new_zeros(batch, nodes, nodes - 1)


SCORERS = {"parser": ArcScorer, "biaffine": BiaffineArcScorer, "uniform": UniformArcs}


class SourceAttention(nn.Module):
    """The expected head of each word (Kim et al. 2017, sections 3.2 and 4.1).

    Args:
        scorer: module that scores arcs, such as :class:`ArcScorer`
        distribution: one of :func:`source_attention_names`
        roots: ``"multi"``, any number of words are attached to the root, as in the paper; ``"single"``, exactly one is
        estimator: whether vectors are expected or those of one structure (default: expected)

    Raises:
        ValueError: an unknown distribution or other roots
    """

    def __init__(self, scorer: nn.Module, distribution: str, roots: str, estimator: Optional[Estimator] = None):
        super().__init__()
        self.estimator = estimator or Estimator()
        self.scorer = scorer
        self.heads_of = heads_of(distribution, roots)

    def forward(self, embedded: Tensor, states: Tensor, lengths: Tensor) -> ExpectedHeads:
        """Parses a batch of sentences, right-padded, the root symbol first and ``</s>`` last.

        Args:
            embedded: ``[1 + src_len, batch, embed_dim]``
            states: vectors whose expectation is taken, ``[batch, 1 + src_len, state_dim]``
            lengths: ``[batch]``, ``</s>`` included, the root not
        """
        distribution, expected = self.expect(embedded[:-1], states[:, :-1], (lengths - 1).clamp(min=0))
        return ExpectedHeads(distribution, F.pad(expected, (0, 0, 0, 1)))

    def expect(self, embedded: Tensor, states: Tensor, words: Tensor) -> ExpectedHeads:
        """Parses a batch of sentences without ``</s>``, right-padded, the root symbol first.

        Args:
            embedded: ``[1 + n, batch, embed_dim]``
            states: vectors whose expectation is taken, ``[batch, 1 + n, state_dim]``
            words: number of words of each sentence, ``[batch]``

        Returns:
            the distribution and expected heads ``[batch, n, state_dim]``, 0 on padding
        """
        scores = self.scorer(embedded, words)
        # Below float32 inference is not accurate.
        scores = scores if scores.dtype == torch.float64 else scores.float()
        distribution = self.heads_of(scores, words)
        arcs = self.estimator.parts(distribution, self.training).to(states.dtype)
        return ExpectedHeads(distribution, torch.bmm(arcs.transpose(1, 2), states))
