"""Architectures of ``structattn_rnn``: one per published system, each a set of defaults for options that are not set.

``fairseq-train --arch NAME`` and the ``_name`` of a model's hydra configuration select an architecture. To add one,
decorate a function like those below, here or in a ``--user-dir``.
"""

from fairseq.models import register_model_architecture
from omegaconf import DictConfig, open_dict

from fairseq_structattn.models.rnn import StructuredAttentionRNN  # noqa: F401  (an architecture needs its model)


def set_defaults(options, **defaults) -> None:
    """Sets each of `defaults` that the user has not set.

    Args:
        options: a namespace (``fairseq-train``) or a configuration (``fairseq-hydra-train``), changed in place
    """
    missing = {name: value for name, value in defaults.items() if name not in options}
    if isinstance(options, DictConfig):
        with open_dict(options):
            options.update(missing)
    else:
        vars(options).update(missing)


@register_model_architecture("structattn_rnn", "structattn_rnn_vanilla")
def vanilla(options) -> None:
    """Encoder-decoder without attention: the source is one fixed vector (Sutskever et al. 2014, section 3.4): four
    LSTM layers of 1000 cells, embeddings of 1000. Not reproduced: the reversed order of source words."""
    set_defaults(options, attention_distribution="none")
    _deep_lstm(options, dropout=0.0)


@register_model_architecture("structattn_rnn", "structattn_rnn_bahdanau")
def bahdanau(options) -> None:
    """RNNsearch (Bahdanau et al. 2015, section 3 and appendix A): a bidirectional GRU encoder and a GRU decoder of 1000
    units, embeddings of 620; an additive score with 1000 hidden units on the previous decoder state; the context
    inside the decoder's gates; a maxout layer of 500 units; the start state from the backward encoder.

    PyTorch's GRU applies the reset gate after the recurrent matrix where the paper does so before it; the paper's
    initialisation is not reproduced."""
    set_defaults(
        options,
        cell="gru",
        encoder_embed_dim=620,
        encoder_hidden_size=1000,
        encoder_bidirectional=True,
        decoder_embed_dim=620,
        decoder_hidden_size=1000,
        decoder_out_embed_dim=500,
        decoder_start="backward",
        decoder_readout="maxout",
        attention_score="additive",
        attention_query="previous",
        dropout=0.0,
    )


@register_model_architecture("structattn_rnn", "structattn_rnn_luong_dot")
def luong_dot(options) -> None:
    """Global attention with the dot score (Luong et al. 2015, section 3.1; sizes from section 4.1): four LSTM layers of
    1000 cells, embeddings of 1000, dropout 0.2. Their input feeding (section 3.3) is ``--input-feeding``."""
    set_defaults(options, attention_score="dot")
    _deep_lstm(options, dropout=0.2)


@register_model_architecture("structattn_rnn", "structattn_rnn_luong_general")
def luong_general(options) -> None:
    """``structattn_rnn_luong_dot`` with the general score (Luong et al. 2015, section 3.1)."""
    set_defaults(options, attention_score="general")
    _deep_lstm(options, dropout=0.2)


@register_model_architecture("structattn_rnn", "structattn_rnn_luong_concat")
def luong_concat(options) -> None:
    """``structattn_rnn_luong_dot`` with the concat score (Luong et al. 2015, section 3.1), hidden layer of 1000."""
    set_defaults(options, attention_score="concat")
    _deep_lstm(options, dropout=0.2)


@register_model_architecture("structattn_rnn", "structattn_rnn_simple")
def simple(options) -> None:
    """``structattn_rnn_crf`` with softmax, the baseline (Kim et al. 2017, section 4.2, "simple")."""
    _kim_translation(options)


@register_model_architecture("structattn_rnn", "structattn_rnn_sigmoid")
def sigmoid(options) -> None:
    """``structattn_rnn_crf`` with independent positions, not normalised (Kim et al. 2017, section 4.2, "sigmoid")."""
    set_defaults(options, attention_distribution="sigmoid")
    _kim_translation(options)


@register_model_architecture("structattn_rnn", "structattn_rnn_crf")
def crf(options) -> None:
    """Segmentation attention (Kim et al. 2017, sections 3.1 and 4.2, "structured"): a linear chain over the source,
    unary potentials by the general score, one learned 2×2 table of pairwise potentials; weights 2μ/Σμ. Two LSTM layers
    of 500 units on both sides, embeddings of 500, one direction, zero start state, no input feeding, dropout 0.3
    between layers and on the attentional state. The paper's penalty on the table is ``--pairwise-l2 0.005
    --sentence-avg`` of ``--criterion structattn_label_smoothed_cross_entropy``."""
    set_defaults(options, attention_distribution="linear-chain", attention_scale=2.0, attention_normalize="sum")
    _kim_translation(options)


@register_model_architecture("structattn_rnn", "structattn_rnn_tree")
def tree(options) -> None:
    """Syntactic attention as in tree transduction (Kim et al. 2017, section 4.1, "structured"): source words are
    embeddings without order, each concatenated with its expected head. Heads follow a distribution over projective
    trees with any number of words on the root and arc scores between −1 and 1. The decoder is an LSTM with classical
    attention (general score) and zero start state. Sizes are 50, without dropout; the paper does not state them."""
    set_defaults(options, source_attention="projective-tree")
    _kim_transduction(options)


@register_model_architecture("structattn_rnn", "structattn_rnn_flat")
def flat(options) -> None:
    """The baseline of ``structattn_rnn_tree`` (Kim et al. 2017, section 4.1, "simple"): each word chooses its head by
    a softmax, independently of the others."""
    set_defaults(options, source_attention="softmax")
    _kim_transduction(options)


@register_model_architecture("structattn_rnn", "structattn_rnn_tree_nonprojective")
def tree_nonprojective(options) -> None:
    """``structattn_rnn_tree`` with arcs that may cross: spanning trees, by the matrix-tree theorem (Koo et al. 2007,
    section 3)."""
    set_defaults(options, source_attention="spanning-tree")
    _kim_transduction(options)


@register_model_architecture("structattn_rnn", "structattn_rnn_treedec")
def treedec(options) -> None:
    """The decoder attends over projective trees of the source, with new arc scores for each target word: those of Kim
    et al. 2017, section 3.2, plus the general score of decoder state and head. Weights are expected numbers of
    dependents, divided by their sum. All else is as in ``structattn_rnn_crf``."""
    set_defaults(options, attention_distribution="projective-tree", attention_normalize="sum")
    _kim_translation(options)


def _kim_transduction(options) -> None:
    sizes = ["encoder_embed_dim", "encoder_hidden_size", "decoder_embed_dim", "decoder_hidden_size"]
    set_defaults(options, **{size: 50 for size in sizes}, decoder_out_embed_dim=50)
    set_defaults(options, encoder_layers=0, decoder_start="zero", arc_bound="tanh", dropout=0.0)


def _deep_lstm(options, dropout: float) -> None:
    sizes = ["encoder_embed_dim", "encoder_hidden_size", "decoder_embed_dim", "decoder_hidden_size"]
    set_defaults(options, encoder_layers=4, decoder_layers=4, decoder_out_embed_dim=1000, dropout=dropout)
    set_defaults(options, **{size: 1000 for size in sizes})


def _kim_translation(options) -> None:
    set_defaults(
        options,
        attention_score="general",
        encoder_embed_dim=500,
        encoder_hidden_size=500,
        encoder_layers=2,
        decoder_embed_dim=500,
        decoder_hidden_size=500,
        decoder_layers=2,
        decoder_out_embed_dim=500,
        decoder_start="zero",
        dropout=0.3,
        encoder_dropout_in=0.0,
        encoder_dropout_out=0.0,
        decoder_dropout_in=0.0,
    )
