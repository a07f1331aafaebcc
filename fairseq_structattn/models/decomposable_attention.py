"""``structattn_decomposable``: alignment and comparison of two sentences, each word concatenated with its head."""

from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from torch import Tensor, nn

from fairseq_structattn.distributions.arcs import NO_HEAD, ArcDistribution
from fairseq_structattn.distributions.trees import ROOTS
from fairseq_structattn.models.option_checks import check_at_least, check_choices, check_probabilities, option
from fairseq_structattn.models.pretrained import is_built_for_checkpoint
from fairseq_structattn.models.renamed_parameters import SOURCE_ATTENTION, rename
from fairseq_structattn.models.rnn_architectures import set_defaults
from fairseq_structattn.models.word_vectors import fixed_embedding
from fairseq_structattn.modules.embeddings import WordEmbedding
from fairseq_structattn.modules.source_attention import (
    BOUNDS,
    SCORERS,
    ExpectedHeads,
    SourceAttention,
    source_attention_names,
)

NONE, GIVEN = "none", "given"


@dataclass
class DecomposableOptions(FairseqDataclass):
    """Defaults are those of the published code of Kim et al. 2017."""

    embed_dim: int = option(300, "size of word embeddings")
    embed_path: Optional[str] = option(
        None,
        "text file of word vectors, which are brought to unit norm and not trained; words not in it share 100 "
        "random vectors (default: embeddings are learned)",
    )
    hidden_size: int = option(300, "size to which embeddings are projected, and units of each hidden layer")
    source_attention: str = option(
        NONE,
        f"vector that is concatenated to each word: {NONE}; {GIVEN}, its head in the data (--load-heads); or its "
        "expected head, under a distribution over trees or, with softmax, over heads independent of each other: "
        f"{', '.join(source_attention_names())}, or one registered elsewhere",
    )
    arc_score: str = option("parser", f"score of an arc between words: {', '.join(SCORERS)}")
    arc_bound: str = option("tanh", "tanh: bound arc scores between -1 and 1; none: no bound")
    parser_hidden_size: int = option(100, "units of the parser's LSTM in each direction, and of its score")
    parser_layers: int = option(1, "layers of the parser's LSTM")
    tree_roots: str = option(
        "multi", "words that may be attached to the root of a tree: multi (any number), single (one)"
    )
    dropout: float = option(0.2, "dropout before each layer that attends, compares or classifies")
    init_std: float = option(0.01, "standard deviation of initial parameters, learned embeddings excepted")

    def check(self) -> None:
        """Raises ValueError for options that cannot work, naming the option, its value and valid values."""
        check_choices(
            self,
            source_attention=[NONE, GIVEN, *source_attention_names()],
            arc_score=SCORERS,
            arc_bound=BOUNDS,
            tree_roots=ROOTS,
        )
        check_at_least(self, 1, "embed_dim", "hidden_size", "parser_hidden_size", "parser_layers")
        check_at_least(self, 0, "init_std")
        check_probabilities(self, "dropout")


class Sentences(NamedTuple):
    """A batch of sentences, the root symbol before the first word.

    Attributes:
        words: vectors of the words, each concatenated with that of its head, ``[batch, 1 + words, dim]``
        mask: mask of positions outside padding, ``[batch, 1 + words]``
        heads: the distribution over heads, or None
    """

    words: Tensor
    mask: Tensor
    heads: Optional[ArcDistribution]


@register_model("structattn_decomposable", dataclass=DecomposableOptions)
class DecomposableAttention(BaseFairseqModel):
    """Decomposable attention (Parikh et al., "A Decomposable Attention Model for Natural Language Inference", EMNLP
    2016) over words with their heads (Kim et al. 2017, section 4.4).

    A word x̂ⱼ is its projected embedding xⱼ or, with a source attention, [xⱼ; Σᵢ p(i is the head of j) xᵢ]. F, G and H
    have two ReLU layers each, and ``eᵢⱼ = F(âᵢ)·F(b̂ⱼ)``. Each word is compared with its aligned words, ``G([âᵢ;
    Σⱼ softmaxⱼ(eᵢⱼ) b̂ⱼ])``, and H classifies the sums over the words of both sentences. Both sentences have the same
    parser, and the root symbol, whose head vector is 0, before their first word.

    Args:
        options: checked options
        embedding: embeddings of the words
        root: index of the root symbol in the embeddings
        classes: number of labels
    """

    def __init__(self, options: DecomposableOptions, embedding: WordEmbedding, root: int, classes: int):
        super().__init__()
        self.padding_idx, self.root_idx = embedding.padding_idx, root
        size = options.hidden_size
        self.embed_tokens = embedding
        self.projection = nn.Linear(options.embed_dim, size, bias=False)
        self.source = options.source_attention
        self.source_attn = None if self.source in (NONE, GIVEN) else _source_attention(options)
        width = size if self.source == NONE else 2 * size
        self.attend = _layers(width, size, options.dropout)
        self.compare = _layers(2 * width, size, options.dropout)
        self.classify = nn.Sequential(_layers(2 * size, size, options.dropout), nn.Linear(size, classes))
        for name, parameter in self.named_parameters():
            if options.init_std and not name.startswith("embed_tokens"):
                nn.init.normal_(parameter, std=options.init_std)

    @classmethod
    def build_model(cls, cfg, task) -> "DecomposableAttention":
        """Builds the model for the dictionaries of `task`, a ``structattn_sentence_pair``.

        Raises:
            ValueError: options that cannot work, by name and value, or another task
        """
        options = DecomposableOptions.from_namespace(cfg)
        options.check()
        labels = getattr(task, "label_dictionary", None)
        if labels is None:
            raise ValueError(
                "structattn_decomposable classifies pairs of sentences: add --task structattn_sentence_pair"
            )
        embedding = _embedding(options, task.source_dictionary, not is_built_for_checkpoint())
        return cls(options, embedding, task.source_dictionary.bos(), len(labels) - labels.nspecial)

    def forward(
        self,
        premise: Tensor,
        hypothesis: Tensor,
        premise_heads: Optional[Tensor] = None,
        hypothesis_heads: Optional[Tensor] = None,
        **unused,
    ) -> Tuple[Tensor, dict]:
        """Classifies a batch of pairs.

        Args:
            premise: ``[batch, words]``, padded on the right
            hypothesis: likewise
            premise_heads: given heads ``[batch, words]``, 0 for the root, −1 if unknown; used with
                ``source_attention="given"``
            hypothesis_heads: likewise

        Returns:
            scores of the labels ``[batch, classes]``, and a dictionary: ``"attn"`` has the alignments of the premise
            ``[batch, 1 + premise, 1 + hypothesis]`` and those of the hypothesis, with the last two sizes exchanged, the
            root first; ``"source_attention"`` has the two distributions over heads, or None
        """
        first, second = self._read(premise, premise_heads), self._read(hypothesis, hypothesis_heads)
        scores = torch.bmm(self.attend(first.words), self.attend(second.words).transpose(1, 2))
        to_second, to_first = _softmax(scores, second.mask), _softmax(scores.transpose(1, 2), first.mask)
        compared = torch.cat((self._compare(first, to_second, second), self._compare(second, to_first, first)), -1)
        heads = None if first.heads is None else (first.heads, second.heads)
        return self.classify(compared), {"attn": [to_second, to_first], "source_attention": heads}

    def source_attention(self, tokens: Tensor) -> ArcDistribution:
        """The distribution over the heads of the words of sentences ``[batch, words]``, padded on the right.

        Raises:
            ValueError: the model has no parser
        """
        if self.source_attn is None:
            raise ValueError(f"this model was trained with --source-attention {self.source}: it has no trees to show")
        words, mask = self._embed(tokens)
        return self._expect(self.source_attn, words, mask).distribution

    def _read(self, tokens: Tensor, heads: Optional[Tensor]) -> Sentences:
        words, mask = self._embed(tokens)
        if self.source == NONE:
            return Sentences(words, mask, None)
        if self.source_attn is None:
            return Sentences(torch.cat((words, self._given(words, heads)), -1), mask, None)
        distribution, expected = self._expect(self.source_attn, words, mask)
        return Sentences(torch.cat((words, F.pad(expected, (0, 0, 1, 0))), -1), mask, distribution)

    def _embed(self, tokens: Tensor) -> Tuple[Tensor, Tensor]:
        """Projected embeddings ``[batch, 1 + words, hidden_size]``, the root first, and their mask."""
        nodes = F.pad(tokens, (1, 0), value=self.root_idx)
        return self.projection(self.embed_tokens(nodes)), nodes.ne(self.padding_idx)

    @staticmethod
    def _expect(source_attn: SourceAttention, words: Tensor, mask: Tensor) -> ExpectedHeads:
        return source_attn.expect(words.transpose(0, 1), words, mask.sum(1) - 1)

    @staticmethod
    def _given(words: Tensor, heads: Optional[Tensor]) -> Tensor:
        """The vector of each node's given head; 0 for the root symbol and unknown heads."""
        if heads is None:
            raise ValueError(
                "--source-attention given needs the heads of the words in every split: add --load-heads and, in the "
                "data folder, SPLIT.heads.premise and SPLIT.heads.hypothesis"
            )
        heads = F.pad(heads, (1, 0), value=NO_HEAD).unsqueeze(-1)
        found = words.gather(1, heads.clamp(min=0).expand(-1, -1, words.size(-1)))
        return found.masked_fill(heads == NO_HEAD, 0)

    def _compare(self, own: Sentences, weights: Tensor, other: Sentences) -> Tensor:
        aligned = torch.bmm(weights, other.words)
        compared = self.compare(torch.cat((own.words, aligned), -1))
        return compared.masked_fill(~own.mask.unsqueeze(-1), 0).sum(1)

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Probabilities of the labels ``[batch, classes]``, or their logarithms."""
        scores = net_output[0].float()
        return F.log_softmax(scores, -1) if log_probs else F.softmax(scores, -1)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Lets checkpoints of version 0.1.0 load."""
        super().upgrade_state_dict_named(state_dict, name)
        rename(state_dict, name, *SOURCE_ATTENTION)

    def max_positions(self) -> Optional[tuple]:
        """The model has no limit of its own."""
        return None


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the positions of the last dimension outside padding; the root is always one of them."""
    weights = F.softmax(scores.float().masked_fill(~mask.unsqueeze(1), float("-inf")), -1)
    return weights.to(scores.dtype)


def _layers(inputs: int, units: int, dropout: float) -> nn.Sequential:
    layers: List[nn.Module] = []
    for size in (inputs, units):
        layers += [nn.Dropout(dropout), nn.Linear(size, units), nn.ReLU()]
    return nn.Sequential(*layers)


def _embedding(options: DecomposableOptions, dictionary, is_read: bool) -> WordEmbedding:
    if options.embed_path is not None:
        return fixed_embedding(options.embed_path, dictionary, options.embed_dim, is_read)
    learned = WordEmbedding(len(dictionary), options.embed_dim, dictionary.pad())
    # Of norm about 1, like the pretrained vectors.
    nn.init.normal_(learned.weight, std=options.embed_dim**-0.5)
    nn.init.zeros_(learned.weight[dictionary.pad()])
    return learned


def _source_attention(options: DecomposableOptions) -> SourceAttention:
    scorer = SCORERS[options.arc_score](
        options.hidden_size, options.parser_hidden_size, options.arc_bound, options.parser_layers
    )
    return SourceAttention(scorer, options.source_attention, options.tree_roots)


@register_model_architecture("structattn_decomposable", "structattn_decomposable_flat")
def flat(options) -> None:
    """Kim et al. 2017, section 4.4, "simple": each word chooses a head by a softmax of its own."""
    set_defaults(options, source_attention="softmax")


@register_model_architecture("structattn_decomposable", "structattn_decomposable_tree")
def tree(options) -> None:
    """Kim et al. 2017, section 4.4, "structured": the expected head under projective trees with any number of words
    attached to the root. With ``--tree-supervision`` in the first epochs it is their "pretrained structured"."""
    set_defaults(options, source_attention="projective-tree")


@register_model_architecture("structattn_decomposable", "structattn_decomposable_tree_nonprojective")
def tree_nonprojective(options) -> None:
    """``structattn_decomposable_tree`` with arcs that may cross."""
    set_defaults(options, source_attention="spanning-tree")


@register_model_architecture("structattn_decomposable", "structattn_decomposable_given")
def given(options) -> None:
    """Kim et al. 2017, section 4.4, "no attention + hard parent": the head that a parser found."""
    set_defaults(options, source_attention=GIVEN)
