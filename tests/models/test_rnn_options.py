"""Options: what is refused and how, embeddings, adaptive softmax, defaults of the presets."""

import re
from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, PRESETS, batch, build, dictionary, generate, log_probs, sentences
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf

SOURCE, TARGET = sentences([5, 3, 7]), sentences([4, 6, 2], seed=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"cell": "rnn"}, "--cell rnn: not known, choose from lstm, gru"),
        ({"attention_distribution": "hard"}, "--attention-distribution hard: not known, choose from none,"),
        ({"attention_score": "cosine"}, "--attention-score cosine: not known, choose from additive"),
        ({"attention_query": "next"}, "--attention-query next: not known, choose from current, previous"),
        ({"attention_normalize": "max"}, "--attention-normalize max: not known"),
        (
            {"attention_estimator": "rsample", "attention_distribution": "sigmoid"},
            "--attention-estimator rsample: sigmoid does not have it, choose straight-through",
        ),
        ({"attention_estimator": "hard"}, "--attention-estimator hard: not known, choose from expectation, sample,"),
        ({"attention_estimator_generation": "soft"}, "--attention-estimator-generation soft: not known"),
        ({"attention_couplings": "all"}, "--attention-couplings all: not known, choose from shared, query, neighbours"),
        ({"attention_couplings": "query"}, "needs pairwise potentials, which --attention-distribution softmax has not"),
        ({"attention_coverage": "all"}, "--attention-coverage all: not known, choose from none, sum, fertility, gru"),
        ({"attention_coverage": "sum", "attention_distribution": "none"}, "leave it out or choose a distribution"),
        ({"attention_coverage_size": 0}, "--attention-coverage-size 0: must be at least 1"),
        ({"attention_max_fertility": 0.0}, "--attention-max-fertility 0.0: must be greater than 0"),
        ({"attention_scale": 0.0}, "--attention-scale 0.0: must be greater than 0"),
        ({"decoder_start": "copy"}, "--decoder-start copy: not known, choose from bridge"),
        ({"decoder_readout": "relu"}, "--decoder-readout relu: not known, choose from tanh, maxout"),
        ({"decoder_start": "backward"}, "add --encoder-bidirectional"),
        ({"attention_query": "previous", "attention_distribution": "none"}, "leave it out or choose a distribution"),
        ({"attention_score": "dot", "encoder_bidirectional": True}, "set --decoder-hidden-size 24"),
        ({"dropout": 1.0}, "--dropout 1.0: must be at least 0 and less than 1"),
        ({"layer_dropout": -0.1}, "--layer-dropout -0.1"),
        ({"encoder_layers": -1}, "--encoder-layers -1: must be at least 0"),
        ({"encoder_layers": 0, "decoder_start": "bridge"}, "choose --decoder-start zero"),
        (
            {"source_attention": "tree"},
            "--source-attention tree: not known, choose from none, softmax, projective-tree",
        ),
        ({"arc_bound": "sigmoid"}, "--arc-bound sigmoid: not known, choose from none, tanh"),
        ({"arc_score": "dot"}, "--arc-score dot: not known, choose from parser, biaffine, uniform"),
        ({"tree_roots": "two"}, "--tree-roots two: not known, choose from single, multi"),
        ({"parser_hidden_size": 0}, "--parser-hidden-size 0: must be at least 1"),
        ({"decoder_hidden_size": -4}, "--decoder-hidden-size -4: must be at least 1"),
        ({"init_range": -0.1}, "--init-range -0.1: must be at least 0"),
        ({"share_all_embeddings": True, "encoder_embed_dim": 9}, "--encoder-embed-dim is 9"),
        ({"share_decoder_input_output_embed": True, "decoder_embed_dim": 9}, "--decoder-embed-dim is 9"),
        ({"share_all_embeddings": True, "decoder_embed_path": "x"}, "--decoder-embed-path x"),
        ({"adaptive_softmax_cutoff": [5, 900]}, "--adaptive-softmax-cutoff 5,900: the target dictionary has only 24"),
        ({"adaptive_softmax_cutoff": [5], "share_all_embeddings": True}, "leave one of them out"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options, message):
    with pytest.raises(ValueError) as error:
        build("structattn_rnn", **options)
    assert message in str(error.value)


def test_sharing_embeddings_needs_one_dictionary():
    task = Namespace(source_dictionary=dictionary(7), target_dictionary=DICTIONARY)
    with pytest.raises(ValueError, match="--joined-dictionary"):
        build("structattn_rnn", task=task, share_all_embeddings=True)


def test_shared_embeddings_are_one_tensor():
    model = build("structattn_rnn", share_all_embeddings=True)
    assert model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight
    inputs = batch(SOURCE, TARGET)["net_input"]
    features, _ = model.decoder.extract_features(inputs["prev_output_tokens"], model.encoder(inputs["src_tokens"]))
    scores = model(**inputs)[0]
    torch.testing.assert_close(scores, features @ model.encoder.embed_tokens.weight.t())


def test_tied_target_embeddings_leave_the_source_alone():
    model = build("structattn_rnn", share_decoder_input_output_embed=True)
    assert model.encoder.embed_tokens.weight is not model.decoder.embed_tokens.weight
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight


def test_padding_embedding_is_zero_and_others_are_in_range():
    model = build("structattn_rnn", init_range=0.1)
    for name, parameter in model.named_parameters():
        if name != "decoder.output_projection.bias":
            assert 0 < parameter.abs().max() <= 0.1, name
    assert not model.encoder.embed_tokens.weight[DICTIONARY.pad()].any()


def test_without_a_range_parameters_start_as_pytorch_has_them():
    model = build("structattn_rnn_tree", init_range=0.0, encoder_embed_dim=64)
    words = model.encoder.embed_tokens.weight[DICTIONARY.nspecial :]
    assert 0.9 < words.std() < 1.1
    assert not model.encoder.embed_tokens.weight[DICTIONARY.pad()].any()


def test_adaptive_softmax_gives_probabilities_and_generates():
    model = build("structattn_rnn_crf", adaptive_softmax_cutoff=[6, 12])
    sample = batch(SOURCE, TARGET)
    output = model(**sample["net_input"])
    probabilities = model.get_normalized_probs(output, log_probs=False)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3, 6))
    hypothesis = generate([model], batch(SOURCE[:1]))[0][0]
    forced = log_probs(model, batch(SOURCE[:1], [hypothesis["tokens"]]))[0]
    torch.testing.assert_close(hypothesis["positional_scores"], forced, atol=1e-4, rtol=0)


def test_longest_sentences():
    model = build("structattn_rnn", max_source_positions=30, max_target_positions=40)
    assert model.max_positions() == (30, 40)
    assert model.max_decoder_positions() == 40


def test_user_overrides_preset_and_finer_dropout_overrides_dropout():
    model = build("structattn_rnn_crf", dropout=0.25, decoder_dropout_in=0.5)
    assert model.decoder.dropout_out == model.encoder.rnn.dropout == 0.25
    assert model.decoder.dropout_in == 0.5
    assert model.encoder.dropout_in == model.encoder.dropout_out == 0.0


def published(arch):
    options = Namespace(arch=arch)
    ARCH_CONFIG_REGISTRY[arch](options)
    return vars(options)


def test_published_sizes():
    crf = published("structattn_rnn_crf")
    assert (crf["encoder_layers"], crf["encoder_hidden_size"], crf["dropout"]) == (2, 500, 0.3)
    assert (crf["attention_scale"], crf["attention_normalize"], crf["decoder_start"]) == (2.0, "sum", "zero")
    bahdanau = published("structattn_rnn_bahdanau")
    assert (bahdanau["encoder_embed_dim"], bahdanau["decoder_hidden_size"]) == (620, 1000)
    assert bahdanau["decoder_out_embed_dim"] == 500
    luong = published("structattn_rnn_luong_general")
    assert (luong["encoder_layers"], luong["decoder_hidden_size"], luong["dropout"]) == (4, 1000, 0.2)


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset != "structattn_rnn"])
def test_presets_fill_a_hydra_configuration(preset):
    config = OmegaConf.create({"_name": preset, "encoder_layers": 7})
    OmegaConf.set_struct(config, True)
    ARCH_CONFIG_REGISTRY[preset](config)
    expected = published(preset)
    del expected["arch"]
    assert {**expected, "_name": preset, "encoder_layers": 7} == dict(config)


def test_every_preset_says_where_it_comes_from():
    for preset in PRESETS:
        if preset != "structattn_rnn":
            assert re.search(r"20\d\d,\s+section", ARCH_CONFIG_REGISTRY[preset].__doc__), preset
