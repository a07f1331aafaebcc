"""``structattn_parser``: the parser of syntactic attention alone, trained on treebanks."""

from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor

from fairseq_structattn.distributions.arcs import ArcDistribution
from fairseq_structattn.distributions.trees import ROOTS
from fairseq_structattn.models.option_checks import check_at_least, check_choices, check_probabilities, option
from fairseq_structattn.modules.affixes import AffixEmbedding
from fairseq_structattn.modules.embeddings import WordEmbedding
from fairseq_structattn.modules.source_attention import BOUNDS, SCORERS, heads_of, source_attention_names


@dataclass
class ParserOptions(FairseqDataclass):
    """Options of :class:`DependencyParser`."""

    embed_dim: int = option(100, "size of embeddings, of words and of affixes")
    min_count: int = option(2, "words with a lower count in the dictionary have the embedding of <unk>")
    affixes: bool = option(False, "also embed prefixes, suffixes and shapes of words")
    source_attention: str = option(
        "projective-tree",
        f"distribution over heads: {', '.join(source_attention_names())}, or one registered elsewhere",
    )
    arc_score: str = option("biaffine", f"score of an arc between words: {', '.join(SCORERS)}")
    arc_bound: str = option("none", "tanh: bound arc scores between -1 and 1; none: no bound")
    parser_hidden_size: int = option(200, "units of the LSTM in each direction, and of the score")
    parser_layers: int = option(2, "layers of the LSTM")
    tree_roots: str = option(
        "single", "words that may be attached to the root of a tree: single (one), multi (any number)"
    )
    dropout: float = option(0.33, "dropout on embeddings, between layers of the LSTM, on its states and in the score")
    word_dropout: float = option(0.1, "share of the words whose embedding is replaced by that of <unk> in training")

    def check(self) -> None:
        """Raises ValueError for options that cannot work, naming the option, its value and valid values."""
        check_choices(self, source_attention=source_attention_names())
        check_choices(self, arc_score=SCORERS, arc_bound=BOUNDS, tree_roots=ROOTS)
        check_at_least(self, 1, "embed_dim", "parser_hidden_size", "parser_layers")
        check_at_least(self, 0, "min_count")
        check_probabilities(self, "dropout", "word_dropout")


@register_model("structattn_parser", dataclass=ParserOptions)
class DependencyParser(BaseFairseqModel):
    """A graph-based parser that uses words only: embeddings, a bidirectional LSTM, arc scores, and a distribution over
    heads (Dozat & Manning 2017 for the scores; Koo et al. 2007 for training by −log p of trees).

    Args:
        options: checked options
        dictionary: the words, with their counts in the training data
    """

    def __init__(self, options: ParserOptions, dictionary):
        super().__init__()
        self.padding_idx, self.root_idx, self.unknown_idx = dictionary.pad(), dictionary.bos(), dictionary.unk()
        self.embed_tokens = WordEmbedding(len(dictionary), options.embed_dim, self.padding_idx)
        self.affixes = None
        if options.affixes:
            self.affixes = AffixEmbedding(dictionary.symbols, options.embed_dim, self.padding_idx)
        self.scorer = SCORERS[options.arc_score](
            options.embed_dim, options.parser_hidden_size, options.arc_bound, options.parser_layers, options.dropout
        )
        self.heads_of = heads_of(options.source_attention, options.tree_roots)
        self.dropout, self.word_dropout = options.dropout, options.word_dropout
        self.register_buffer("known", _known(dictionary, options.min_count), persistent=False)

    @classmethod
    def build_model(cls, cfg, task) -> "DependencyParser":
        """Builds the model for the dictionary of `task`.

        Raises:
            ValueError: options that cannot work, by name and value
        """
        options = ParserOptions.from_namespace(cfg)
        options.check()
        return cls(options, task.source_dictionary)

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **unused) -> ArcDistribution:
        """The distribution over the heads of sentences ``[batch, words]``, padded on the right, without ``</s>``."""
        nodes = F.pad(src_tokens, (1, 0), value=self.root_idx).t()
        words = src_tokens.ne(self.padding_idx).sum(1)
        scores = self.scorer(F.dropout(self._embed(nodes), self.dropout, self.training), words)
        return self.heads_of(scores if scores.dtype == torch.float64 else scores.float(), words)

    source_attention = forward

    def _embed(self, nodes: Tensor) -> Tensor:
        known = self.known[nodes]
        if self.training and self.word_dropout:
            dropped = torch.rand(nodes.shape, device=nodes.device) < self.word_dropout
            marks = nodes.eq(self.padding_idx) | nodes.eq(self.root_idx)
            known = known.masked_fill(dropped & ~marks, self.unknown_idx)
        embedded = self.embed_tokens(known)
        return embedded if self.affixes is None else embedded + self.affixes(nodes)

    def max_positions(self) -> Optional[int]:
        """The model has no limit of its own."""
        return None


def _known(dictionary, least: int) -> Tensor:
    """The index of each word, or that of ``<unk>`` for rare words."""
    numbers = [
        number if number < dictionary.nspecial or count >= least else dictionary.unk()
        for number, count in enumerate(dictionary.count)
    ]
    return torch.tensor(numbers)
