"""``structattn_memn2n``: question answering over the facts of a story, with attention over single facts or chains of
facts."""

from dataclasses import dataclass
from typing import Optional, Tuple

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from torch import Tensor, nn

from fairseq_structattn.models.option_checks import check_at_least, check_choices, check_probabilities, flag, option
from fairseq_structattn.models.rnn_architectures import set_defaults
from fairseq_structattn.modules.fact_selection import ChainSelection, FactSelection, Selection, SuccessiveSelection
from fairseq_structattn.modules.sentence_vectors import SentenceVectors

SELECTIONS = ("successive", "chain", "unary-chain")
TYINGS = ("adjacent", "none")
EDGES = ("looked-for", "read")


@dataclass
class MemoryNetworkOptions(FairseqDataclass):
    """Options of ``structattn_memn2n``."""

    fact_selection: str = option(
        "successive",
        "which facts are read: successive (a softmax at each step, after what was read before), chain (all steps in "
        "one linear chain that scores successive facts together), unary-chain (a chain without such scores)",
    )
    steps: int = option(
        2, "facts that are looked for, one at each step; the largest number where questions of the data have their own"
    )
    tying: str = option(
        "adjacent",
        "tables of embeddings: adjacent (facts are looked for in the table in which the step before has read them, and "
        "the last one scores answers), none (each step has two of its own, and answers have one)",
    )
    chain_edges: str = option(
        "looked-for",
        "vector of a fact that scores the next one in a chain: looked-for (the one that its own step has scored, as "
        "published), read (the one that the answer is predicted from)",
    )
    answer_hidden_dim: int = option(
        0, "units of a rectified layer between what was read and the answer, with a connection around it; 0: none"
    )
    embed_dim: int = option(20, "size of the vectors of words, facts and questions")
    init_std: float = option(0.1, "parameters start normal with this standard deviation")
    age_noise: float = option(0.0, "in training, probability that an age is skipped before each fact")
    position_scale: float = option(
        1.0, "factor of the position encoding: 1 as published, 2 as in the code of Sukhbaatar et al. 2015"
    )
    linear_start_epochs: int = option(
        20,
        "epochs in which facts are weighed by their scores, without exponential and normaliser (linear start); 0: none "
        "(default for chains)",
    )

    def check(self) -> None:
        """Raises ValueError for options that cannot work, naming the option, its value and valid values."""
        check_choices(self, fact_selection=SELECTIONS, tying=TYINGS, chain_edges=EDGES)
        check_at_least(self, 1, "steps", "embed_dim")
        check_at_least(self, 0, "linear_start_epochs", "answer_hidden_dim")
        check_probabilities(self, "age_noise")
        for name in ("init_std", "position_scale"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{flag(name)} {getattr(self, name)}: must be greater than 0")


@register_model("structattn_memn2n", dataclass=MemoryNetworkOptions)
class MemoryNetwork(BaseFairseqModel):
    """End-to-end memory network (Sukhbaatar et al. 2015), and the models of Kim et al. 2017, section 4.3, in which a
    linear chain selects the facts.

    Questions are embedded by the first table, which also embeds the keys of facts at the first step. With adjacent
    tying, K steps have K + 1 tables: table k embeds keys and table k + 1 values, and the rows of the last table score
    answers. Without tying, there are 2K + 1 tables: table 2k − 1 embeds keys and table 2k values, and the last table
    scores answers (as in the code of Kim et al., whose paper has adjacent tying). A question that takes fewer steps
    takes the last ones, which read from the table next to that of the answers, and is embedded by the first table of
    these. Words and answers are symbols of one dictionary. Answers are scored by the sum h of query and context, or,
    with a hidden layer, by h + U₂ max(0, U₁ h), which can combine facts in ways that no sum of them does.

    Args:
        sentences: vectors of questions and facts, in all tables
        selection: module that selects K facts
        tying: adjacent or none
        linear_start_epochs: number of epochs with ``linear`` weights, see
            :class:`~fairseq_structattn.modules.fact_selection.FactSelection`
        hidden: the layer U₂ max(0, U₁ h); None: there is none
    """

    def __init__(
        self,
        sentences: SentenceVectors,
        selection: FactSelection,
        tying: str,
        linear_start_epochs: int,
        hidden: Optional[nn.Module] = None,
    ):
        super().__init__()
        self.sentences, self.selection, self.tying, self.hidden = sentences, selection, tying, hidden
        self.linear_start_epochs = linear_start_epochs
        # Part of the checkpoint, because a model saved in a linear epoch has to be used as it was trained.
        self.register_buffer("linear", torch.tensor(linear_start_epochs > 0))

    @classmethod
    def build_model(cls, cfg, task) -> "MemoryNetwork":
        """Builds the model for the dictionary of `task`.

        Args:
            cfg: the options, as fairseq's configuration, a namespace or :class:`MemoryNetworkOptions`
            task: a task with ``source_dictionary`` and ``cfg.max_facts``, the largest number of facts of a story

        Raises:
            ValueError: options that cannot work, by name and value
        """
        options = MemoryNetworkOptions.from_namespace(cfg)
        options.check()
        dictionary, dim, steps = task.source_dictionary, options.embed_dim, options.steps
        tables = steps + 1 if options.tying == "adjacent" else 2 * steps + 1
        sentences = SentenceVectors(
            len(dictionary),
            dim,
            tables,
            task.cfg.max_facts,
            dictionary.pad(),
            options.init_std,
            options.age_noise,
            options.position_scale,
        )
        hidden = _hidden_layer(dim, options.answer_hidden_dim, options.init_std)
        return cls(sentences, _selection(options), options.tying, options.linear_start_epochs, hidden)

    def set_epoch(self, epoch: int) -> None:
        """Ends the linear start after its epochs; the task calls it at the beginning of each epoch, counted from 1."""
        super().set_epoch(epoch)
        self.linear.fill_(epoch <= self.linear_start_epochs)

    def forward(
        self, facts: Tensor, lengths: Tensor, question: Tensor, steps: Optional[Tensor] = None
    ) -> Tuple[Tensor, Selection]:
        """Scores of all symbols as answers ``[batch, symbols]``, and the facts that were selected.

        Args:
            facts: ``[batch, facts, words]``, the oldest first, right-padded
            lengths: number of facts of each story, at least 1, ``[batch]``
            question: ``[batch, words]``, right-padded
            steps: number of facts that are looked for, for each question ``[batch]``; None: ``--steps``

        Raises:
            ValueError: a question that takes more steps than the model has
        """
        if steps is not None and int(steps.max()) > self.selection.steps:
            raise ValueError(
                f"a question of this data takes {int(steps.max())} steps, and the model has {self.selection.steps}: "
                f"set --steps {int(steps.max())}"
            )
        vectors = self.sentences.facts(facts, lengths)
        if self.tying == "adjacent":
            looked_for, read = vectors[:-1], vectors[1:]
        else:
            looked_for, read = vectors[:-1:2], vectors[1::2]
        table = None
        if steps is not None:
            first = self.selection.steps - steps
            looked_for, read = (_from_step(first, part) for part in (looked_for, read))
            table = first if self.tying == "adjacent" else 2 * first
        query = self.sentences.question(question, table)
        selection = self.selection(query, looked_for, read, lengths, bool(self.linear), steps)
        answer = selection.answer
        if self.hidden is not None:
            answer = answer + self.hidden(answer)
        return answer @ self.sentences.table(-1).t(), selection

    def get_normalized_probs(self, net_output, log_probs, sample=None) -> Tensor:
        """(Log-)probabilities of all symbols, ``[batch, symbols]``, at least in float32."""
        logits = net_output[0]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return torch.log_softmax(logits, -1) if log_probs else torch.softmax(logits, -1)


def _from_step(first: Tensor, vectors: Tensor) -> Tensor:
    """Vectors ``[steps, batch, …]``, from the step `first` ``[batch]`` of each question on; unused ones follow."""
    steps, batch = vectors.shape[:2]
    number = (torch.arange(steps, device=first.device).unsqueeze(1) + first) % steps
    return vectors[number, torch.arange(batch, device=first.device)]


def _selection(options: MemoryNetworkOptions) -> FactSelection:
    if options.fact_selection == "successive":
        return SuccessiveSelection(options.embed_dim, options.steps)
    edges = options.fact_selection == "chain"
    return ChainSelection(
        options.embed_dim, options.steps, edges, options.init_std, edges_from_read=options.chain_edges == "read"
    )


def _hidden_layer(dim: int, hidden_dim: int, init_std: float) -> Optional[nn.Module]:
    if hidden_dim == 0:
        return None
    layer = nn.Sequential(nn.Linear(dim, hidden_dim, bias=False), nn.ReLU(), nn.Linear(hidden_dim, dim, bias=False))
    for weight in layer.parameters():
        nn.init.normal_(weight, std=init_std)
    return layer


@register_model_architecture("structattn_memn2n", "structattn_memn2n_chain")
def chain(options) -> None:
    """Kim et al. 2017, "binary CRF": the facts of all steps under one chain, whose edges score successive facts."""
    set_defaults(options, fact_selection="chain", linear_start_epochs=0)


@register_model_architecture("structattn_memn2n", "structattn_memn2n_unary_chain")
def unary_chain(options) -> None:
    """Kim et al. 2017, "unary CRF": the same without edges."""
    set_defaults(options, fact_selection="unary-chain", linear_start_epochs=0)
