"""Options of ``structattn_rnn``: one dataclass for ``fairseq-train`` and ``fairseq-hydra-train`` alike."""

from dataclasses import dataclass, field
from typing import Collection, Dict, List, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_structattn.distributions import distribution_names, get_distribution
from fairseq_structattn.distributions.semi_markov import MAX_SEGMENT_LENGTH
from fairseq_structattn.distributions.trees import ROOTS
from fairseq_structattn.models.option_checks import check_estimators
from fairseq_structattn.modules.attention import NORMALIZATIONS
from fairseq_structattn.modules.bridge import STARTS
from fairseq_structattn.modules.couplings import COUPLINGS, SHARED_COUPLINGS
from fairseq_structattn.modules.coverage import COVERAGES, NO_COVERAGE
from fairseq_structattn.modules.estimators import ESTIMATORS, EXPECTATION, estimators_help
from fairseq_structattn.modules.readout import READOUTS
from fairseq_structattn.modules.recurrent import CELLS
from fairseq_structattn.modules.scores import DotScore, get_score, score_names
from fairseq_structattn.modules.source_attention import BOUNDS, SCORERS, source_attention_names
from fairseq_structattn.modules.span_attention import span_attention_names

QUERIES = ("current", "previous")
NO_ATTENTION = "none"


def _option(default, text: str):
    return field(default=default, metadata={"help": text})


@dataclass
class RNNOptions(FairseqDataclass):
    """Options may be combined freely, except for the combinations that :meth:`check` rejects with a reason."""

    cell: str = _option("lstm", f"recurrent cell: {', '.join(CELLS)}")
    encoder_embed_dim: int = _option(512, "size of source embeddings")
    encoder_embed_path: Optional[str] = _option(
        None, "text file of pretrained source embeddings, a word and its numbers on each line"
    )
    encoder_freeze_embed: bool = _option(False, "do not train source embeddings")
    encoder_hidden_size: int = _option(512, "units of an encoder layer, in each direction")
    encoder_layers: int = _option(1, "layers of the encoder; 0: the source states are embeddings, without order")
    encoder_bidirectional: bool = _option(False, "read the source in both directions")
    decoder_embed_dim: int = _option(512, "size of target embeddings")
    decoder_embed_path: Optional[str] = _option(None, "text file of pretrained target embeddings")
    decoder_freeze_embed: bool = _option(False, "do not train target embeddings")
    decoder_hidden_size: int = _option(512, "units of a decoder layer")
    decoder_layers: int = _option(1, "layers of the decoder")
    decoder_out_embed_dim: int = _option(
        512, "size of the vector that predicts a word; an attentional state of another size is projected to it"
    )
    decoder_start: str = _option(
        "bridge",
        "initial state of the decoder: bridge (a learned map of the encoder's final states), backward (likewise, of "
        "the backward encoder's state at the first word), zero",
    )
    decoder_readout: str = _option(
        "tanh", f"layer that combines state and context for the prediction: {', '.join(READOUTS)}"
    )
    attention_distribution: str = _option(
        "softmax",
        f"distribution of the latent variable: {', '.join(distribution_names())}, or one registered elsewhere; "
        f"{NO_ATTENTION} is a model without attention",
    )
    attention_score: str = _option("general", f"score of a source position: {', '.join(score_names())}")
    attention_query: str = _option(
        "current",
        "decoder state that attends: current (the context then helps to predict), previous (the context is an input "
        "of the decoder's cell)",
    )
    attention_hidden_size: Optional[int] = _option(
        None, "hidden layer of additive and concat scores (default: --decoder-hidden-size)"
    )
    attention_scale: float = _option(1.0, "factor on the attention weights")
    attention_normalize: str = _option(
        "none", "sum: divide marginals by their sum before scaling; none: use them as they are"
    )
    attention_couplings: str = _option(
        SHARED_COUPLINGS,
        "what pairwise potentials depend on: shared (one table for all), query (a table for each target word), "
        "neighbours (a table for each pair of source states)",
    )
    attention_max_segment_length: int = _option(
        MAX_SEGMENT_LENGTH, "longest segment, in source positions, in --attention-distribution semi-markov"
    )
    attention_estimator: str = _option(EXPECTATION, estimators_help("training"))
    attention_estimator_generation: str = _option(EXPECTATION, estimators_help("validation and translation"))
    attention_coverage: str = _option(
        NO_COVERAGE,
        "summary of earlier attention weights that the score reads: none, sum (their sum), fertility (their sum "
        "divided by an expected fertility), gru (a recurrent summary)",
    )
    attention_coverage_size: int = _option(10, "units for each source position in --attention-coverage gru")
    attention_max_fertility: float = _option(
        2.0, "largest number of target words of a source position, in --attention-coverage fertility"
    )
    source_attention: str = _option(
        NO_ATTENTION,
        "expected head that is concatenated to each source word, under a distribution over trees or, with softmax, "
        f"over heads independent of each other: {NO_ATTENTION}, {', '.join(source_attention_names())}, or one "
        f"registered elsewhere; or what the spans around the word hold: {', '.join(span_attention_names())}",
    )
    arc_score: str = _option(
        "parser",
        "score of an arc between source words: parser (additive, of the states of a bidirectional LSTM), "
        "biaffine (of the same states), uniform (equal for all arcs, without a parser)",
    )
    arc_bound: str = _option("none", "tanh: bound arc scores between -1 and 1; none: no bound")
    parser_hidden_size: Optional[int] = _option(
        None, "units of the parser's LSTM in each direction, and of its score (default: --encoder-embed-dim)"
    )
    tree_roots: str = _option(
        "multi", "words that may be attached to the root of a tree: multi (any number), single (one)"
    )
    input_feeding: bool = _option(False, "the decoder also reads the vector that predicted the previous word")
    decoder_graphs: bool = _option(
        False,
        "on a GPU, train decoders with input feeding, coverage or --attention-query previous by CUDA graphs, which "
        "launch the loop over target words as one",
    )
    share_decoder_input_output_embed: bool = _option(False, "target embeddings are also the output layer")
    share_all_embeddings: bool = _option(
        False, "one table for source embeddings, target embeddings and output layer (joint dictionary)"
    )
    adaptive_softmax_cutoff: Optional[List[int]] = _option(
        None, "comma separated cutoffs: an adaptive softmax replaces the output layer (--criterion adaptive_loss)"
    )
    dropout: float = _option(0.1, "dropout; the more specific options take precedence")
    layer_dropout: Optional[float] = _option(None, "dropout between recurrent layers (default: --dropout)")
    encoder_dropout_in: Optional[float] = _option(None, "dropout on source embeddings (default: --dropout)")
    encoder_dropout_out: Optional[float] = _option(
        None, "dropout on the source states that attention reads (default: --dropout)"
    )
    decoder_dropout_in: Optional[float] = _option(None, "dropout on target embeddings (default: --dropout)")
    decoder_dropout_out: Optional[float] = _option(
        None, "dropout on the vector that predicts a word (default: --dropout)"
    )
    init_range: float = _option(
        0.1, "initial parameters are uniform in [-R, R]; 0: embeddings are normal, all others as in PyTorch"
    )
    max_source_positions: int = _option(100000, "longest source sentence, in tokens")
    max_target_positions: int = _option(100000, "longest target sentence, in tokens")

    def dropout_of(self, place: str) -> float:
        """Dropout probability of the option `place`, one of ``*_dropout*``; by default that of ``dropout``."""
        value = getattr(self, place)
        return self.dropout if value is None else value

    def source_dim(self) -> int:
        """Size of a source state that the decoder attends to."""
        state_dim = self.encoder_hidden_size * (2 if self.encoder_bidirectional else 1)
        state_dim = state_dim if self.encoder_layers else self.encoder_embed_dim
        return state_dim * (1 if self.source_attention == NO_ATTENTION else 2)

    def check(self) -> None:
        """Raises ValueError for options that cannot work, naming the option, its value and valid values."""
        self._check_choices()
        self._check_couplings()
        self._check_numbers()
        if self.decoder_start != "zero" and self.encoder_layers == 0:
            raise ValueError(
                f"--decoder-start {self.decoder_start} starts from the encoder's final state, which there is none of "
                "with --encoder-layers 0: choose --decoder-start zero"
            )
        if self.decoder_start == "backward" and not self.encoder_bidirectional:
            raise ValueError("--decoder-start backward needs a backward encoder: add --encoder-bidirectional")
        if self.attention_distribution == NO_ATTENTION and self.attention_query == "previous":
            raise ValueError(
                f"--attention-query previous has no meaning with --attention-distribution {NO_ATTENTION}: "
                "leave it out or choose a distribution"
            )
        if self.attention_distribution == NO_ATTENTION and self.attention_coverage != NO_COVERAGE:
            raise ValueError(
                f"--attention-coverage {self.attention_coverage} has no meaning with --attention-distribution "
                f"{NO_ATTENTION}: leave it out or choose a distribution"
            )
        self._check_estimators()
        self._check_graphs()
        self._check_score()
        self._check_embeddings()

    def _check_estimators(self) -> None:
        if self.attention_distribution != NO_ATTENTION:
            check_estimators(self, [self.attention_distribution])

    def _check_graphs(self) -> None:
        if not self.decoder_graphs:
            return
        loops = self.input_feeding or self.attention_query == "previous" or self.attention_coverage != NO_COVERAGE
        if not loops:
            raise ValueError(
                "--decoder-graphs has no effect on a decoder without a loop over target words: leave it out, or add "
                "--input-feeding, --attention-coverage or --attention-query previous"
            )
        if self.attention_estimator != EXPECTATION:
            raise ValueError(
                f"--decoder-graphs --attention-estimator {self.attention_estimator}: graphs compute expectations only, "
                "leave one of the options out"
            )

    def _check_score(self) -> None:
        compares = self.attention_distribution != NO_ATTENTION and issubclass(get_score(self.attention_score), DotScore)
        if compares and self.decoder_hidden_size != self.source_dim():
            raise ValueError(
                f"--attention-score {self.attention_score} compares vectors of equal size, but decoder states have "
                f"{self.decoder_hidden_size} units and encoder states {self.source_dim()}: set --decoder-hidden-size "
                f"{self.source_dim()}, or choose --attention-score general"
            )

    def _check_couplings(self) -> None:
        if self.attention_couplings == SHARED_COUPLINGS:
            return
        without = self.attention_distribution == NO_ATTENTION
        if without or "pairwise" not in get_distribution(self.attention_distribution).parameter_shapes():
            raise ValueError(
                f"--attention-couplings {self.attention_couplings} needs pairwise potentials, which "
                f"--attention-distribution {self.attention_distribution} has not: choose linear-chain or semi-markov, "
                "or leave it out"
            )

    def _check_choices(self) -> None:
        choices: Dict[str, Collection[str]] = {
            "cell": CELLS,
            "decoder_start": STARTS,
            "decoder_readout": READOUTS,
            "attention_distribution": [NO_ATTENTION, *distribution_names()],
            "attention_score": score_names(),
            "attention_query": QUERIES,
            "attention_normalize": NORMALIZATIONS,
            "attention_couplings": COUPLINGS,
            "attention_coverage": COVERAGES,
            "attention_estimator": ESTIMATORS,
            "attention_estimator_generation": ESTIMATORS,
            "source_attention": [NO_ATTENTION, *source_attention_names(), *span_attention_names()],
            "arc_score": SCORERS,
            "arc_bound": BOUNDS,
            "tree_roots": ROOTS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{_flag(name)} {getattr(self, name)}: not known, choose from {', '.join(allowed)}")

    def _check_numbers(self) -> None:
        sizes = ["encoder_embed_dim", "encoder_hidden_size", "attention_hidden_size", "parser_hidden_size"]
        sizes += ["decoder_embed_dim", "decoder_hidden_size", "decoder_layers", "decoder_out_embed_dim"]
        sizes += ["max_source_positions", "max_target_positions", "attention_coverage_size"]
        sizes += ["attention_max_segment_length"]
        for name in sizes:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{_flag(name)} {value}: must be at least 1")
        for name in ("encoder_layers", "init_range"):
            if getattr(self, name) < 0:
                raise ValueError(f"{_flag(name)} {getattr(self, name)}: must be at least 0")
        for name in [name for name in self.__dataclass_fields__ if "dropout" in name]:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{_flag(name)} {value}: must be at least 0 and less than 1")
        for name in ("attention_scale", "attention_max_fertility"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{_flag(name)} {getattr(self, name)}: must be greater than 0")

    def _check_embeddings(self) -> None:
        if self.share_all_embeddings and self.encoder_embed_dim != self.decoder_embed_dim:
            raise ValueError(
                f"--share-all-embeddings needs one size, but --encoder-embed-dim is {self.encoder_embed_dim} and "
                f"--decoder-embed-dim {self.decoder_embed_dim}: make them equal"
            )
        if self.share_all_embeddings and self.decoder_embed_path not in (None, self.encoder_embed_path):
            raise ValueError(
                f"--share-all-embeddings has one table, but --decoder-embed-path {self.decoder_embed_path} is not "
                f"--encoder-embed-path {self.encoder_embed_path}: give one of them"
            )
        tied = self.share_all_embeddings or self.share_decoder_input_output_embed
        if tied and self.decoder_embed_dim != self.decoder_out_embed_dim:
            raise ValueError(
                "sharing target embeddings with the output layer needs one size, but --decoder-embed-dim is "
                f"{self.decoder_embed_dim} and --decoder-out-embed-dim {self.decoder_out_embed_dim}: make them equal"
            )
        if tied and self.adaptive_softmax_cutoff:
            raise ValueError(
                "--adaptive-softmax-cutoff replaces the output layer that --share-decoder-input-output-embed and "
                "--share-all-embeddings tie: leave one of them out"
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
