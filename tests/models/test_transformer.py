"""The Transformer: with softmax that of fairseq; its options; and which head it tells about."""

from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, TASK, TRANSFORMER_SIZES, TRANSFORMERS, batch, build, generate, log_probs, sentences
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch.testing import assert_close

from fairseq_structattn.distributions import Categorical, LinearChain, ProjectiveTree, SpanningTree
from fairseq_structattn.models import StructuredTransformer
from fairseq_structattn.models.transformer_options import TransformerOptions

SOURCE, TARGET = sentences([7, 3, 1, 5]), sentences([4, 6, 2, 1], seed=1)
ARCH = "structattn_transformer"
CHAINS = TRANSFORMERS["transformer, chains"]
TREES = TRANSFORMERS["transformer, trees"]
TIED = {"share_all_embeddings": True}

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched")


def both(**options):
    """fairseq's Transformer and ours, with its weights."""
    theirs, ours = build("transformer", **options), build(ARCH, seed=2, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("options", [{}, TIED, {"encoder_normalize_before": True, "decoder_normalize_before": True}])
@pytest.mark.parametrize("left_pad", [True, False])
def test_with_softmax_losses_and_gradients_are_those_of_fairseq(options, left_pad):
    results = []
    for model in both(attention_dropout=0.2, **options):
        torch.manual_seed(3)
        loss = -log_probs(model.train(), batch(SOURCE, TARGET, left_pad=left_pad)).sum()
        results.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for ours, theirs in zip(*results):
        assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"adaptive_softmax_cutoff": "6,12"}])
def test_with_softmax_translations_are_those_of_fairseq(options):
    theirs, ours = both(**options)
    pairs = zip(*(generate([model], batch(SOURCE), beam=5) for model in (theirs, ours)))
    for expected, found in pairs:
        for one, other in zip(expected, found):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert_close(other["positional_scores"], one["positional_scores"], atol=1e-6, rtol=1e-6)
            assert_close(other["attention"], one["attention"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["transformer", "transformer_iwslt_de_en", "transformer_wmt_en_de"])
def test_architectures_are_those_of_fairseq(name):
    """Their sizes and, for a seed, their initial values; none of them are too large to be compared where they are."""
    options = [Namespace(), Namespace()]
    for each, arch in zip(options, (name, f"structattn_{name}")):
        ARCH_CONFIG_REGISTRY[arch](each)
    assert options[0] == options[1]
    theirs, ours = (build(arch, encoder_layers=1) for arch in (name, f"structattn_{name}"))
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    assert all(torch.equal(*pair) for pair in zip(theirs.state_dict().values(), ours.state_dict().values()))


@pytest.mark.parametrize("options", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_checkpoints_of_fairseq_load(options):
    theirs, ours = build("transformer"), build(ARCH, **options, seed=2)
    own = {name: value.clone() for name, value in ours.state_dict().items() if ".groups." in name}
    ours.load_state_dict(theirs.state_dict())
    found = ours.state_dict()
    assert bool(own) == (options != {})
    for name, value in {**theirs.state_dict(), **own}.items():
        assert torch.equal(found[name], value)
    again = build(ARCH, **options, seed=3)
    again.load_state_dict(found)
    assert_close(log_probs(again, batch(SOURCE, TARGET)), log_probs(ours, batch(SOURCE, TARGET)))


# Which heads are where


def groups(model):
    """Name of a layer -> its heads."""
    return {
        name: [(group.name, group.heads) for group in module.groups]
        for name, module in model.named_modules()
        if hasattr(module, "groups")
    }


def test_heads_are_where_the_options_say():
    found = groups(
        build(
            ARCH,
            cross_attention_heads="linear-chain:1,softmax",
            cross_attention_layers="1",
            encoder_self_attention_heads="softmax:2,projective-tree:2",
            encoder_self_attention_layers="0",
        )
    )
    assert found == {
        "encoder.layers.0.self_attn": [("softmax", 2), ("projective-tree", 2)],
        "decoder.layers.0.encoder_attn": [("softmax", 4)],
        "decoder.layers.1.encoder_attn": [("linear-chain", 1), ("softmax", 3)],
    }


@pytest.mark.parametrize("name", ["transformer, softmax", "transformer, chains", "transformer, trees"])
def test_layers_that_skip_their_attention_are_not_used(monkeypatch, name):
    """fairseq 0.12.2 has such layers in its encoder; they are right with softmax in all heads."""
    monkeypatch.setattr(TransformerEncoderLayerBase, "can_use_fastpath", True, raising=False)
    layers = build(name).encoder.layers
    assert [layer.can_use_fastpath for layer in layers] == [name != "transformer, trees"] * 2


def test_settings_reach_the_heads():
    model = build(
        ARCH, cross_attention_heads="linear-chain", attention_scale=2.0, attention_normalize="none",
        encoder_self_attention_heads="spanning-tree", tree_roots="single",
    )  # fmt: skip
    _, extra = model(**batch(SOURCE, TARGET, left_pad=False)["net_input"], return_posterior=True)
    assert_close(extra["attn"][0], 2 * extra["posterior"].marginals)
    assert extra["source_attention"].roots == "single"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"cross_attention_heads": "linear-chain:5"}, "--cross-attention-heads: 'linear-chain:5': the numbers"),
        ({"cross_attention_heads": "chain"}, "--cross-attention-heads: 'chain': unknown distribution 'chain'"),
        ({"cross_attention_heads": "projective-tree"}, "belongs into --encoder-self-attention-heads"),
        ({"cross_attention_layers": "0,2"}, "--cross-attention-layers 0,2: write all, or numbers of layers"),
        ({"encoder_self_attention_heads": "softmax:9"}, "--encoder-self-attention-heads: 'softmax:9'"),
        ({"encoder_self_attention_layers": "first"}, "--encoder-self-attention-layers first: write all"),
        ({"attention_normalize": "mean"}, "--attention-normalize mean: not known"),
        (
            {"cross_attention_heads": "softmax:3,sigmoid:1", "attention_estimator_generation": "rsample"},
            "--attention-estimator-generation rsample: sigmoid does not have it, choose straight-through",
        ),
        ({"attention_estimator": "hard"}, "--attention-estimator hard: not known, choose from expectation, sample,"),
        ({"attention_max_segment_length": 0}, "--attention-max-segment-length 0: must be at least 1"),
        ({"attention_scale": 0.0}, "--attention-scale 0.0: must be greater than 0"),
        ({"tree_roots": "two"}, "--tree-roots two: not known"),
        ({"attention_head": "1"}, "--attention-head 1: write LAYER.HEAD, with a layer from 0 to 1 and"),
        ({"attention_head": "2.0"}, "--attention-head 2.0: write LAYER.HEAD"),
        ({**TREES, "parser_head": "0.2"}, "--parser-head 0.2: this head has no distribution over arcs"),
        ({**TREES, "parser_head": "1.0"}, "--parser-head 1.0: this head has no distribution over arcs"),
        ({**CHAINS, "quant_noise_pq": 0.1}, "--quant-noise-pq 0.1 does not go together with heads softmax,l"),
        ({**CHAINS, "no_cross_attention": True}, "--no-cross-attention True does not go together"),
    ],
)  # fmt: skip
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        build(ARCH, **options)


# What it returns


def attention(model, left_pad=True, **asked):
    return model(**batch(SOURCE, TARGET, left_pad=left_pad)["net_input"], **asked)[1]


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize(
    "options, kind",
    [
        (CHAINS, LinearChain),
        ({**CHAINS, "attention_head": "0.3"}, LinearChain),
        ({**CHAINS, "attention_head": "1.0"}, Categorical),
    ],
)
def test_the_head_that_is_asked_for(options, kind, left_pad):
    model = build(ARCH, **options)
    layer, head = map(int, options.get("attention_head", "1.2").split("."))
    extra = attention(model, left_pad, return_posterior=True)
    assert type(extra["posterior"]) is kind and extra["posterior"].batch_shape == extra["attn"][0].shape[:2]
    weights = extra["posterior"].marginals
    weights = weights / weights.sum(-1, keepdim=True)
    for row, sentence in enumerate(SOURCE):
        columns = slice(-len(sentence), None) if left_pad else slice(len(sentence))
        assert_close(extra["attn"][0][row][:, columns], weights[row][:, : len(sentence)])
    assert_close(attention(model, left_pad)["attn"], extra["attn"])
    # fairseq's means over heads can be had, too: that over the first one is the first one.
    if head == 0:
        assert_close(attention(model, left_pad, alignment_layer=layer, alignment_heads=1)["attn"], extra["attn"])


def test_softmax_alone_returns_the_mean_of_fairseq():
    theirs, ours = both()
    extra = attention(ours, return_posterior=True)
    assert_close(extra["attn"][0], attention(theirs)["attn"][0], atol=1e-6, rtol=1e-6)
    assert type(extra["posterior"]) is Categorical and extra["source_attention"] is None
    assert set(attention(ours)) == set(attention(theirs))


@pytest.mark.parametrize("head, kind", [(None, ProjectiveTree), ("0.1", ProjectiveTree), ("0.3", SpanningTree)])
def test_trees_of_the_encoder(head, kind):
    model = build(ARCH, **TREES, parser_head=head)
    trees = attention(model, return_posterior=True)["source_attention"]
    assert type(trees) is kind
    tokens = batch(SOURCE)["net_input"]["src_tokens"]
    heads = model.encoder.source_attention(tokens)
    assert_close(heads.distribution.marginals, trees.marginals)
    for row, sentence in enumerate(SOURCE):
        alone = model.encoder.source_attention(sentence.unsqueeze(0))
        words = len(sentence) - 1
        found = heads.distribution.marginals[row, : words + 1, :words]
        assert_close(found, alone.distribution.marginals[0], atol=1e-5, rtol=1e-4)
        assert_close(heads.vectors[row, : len(sentence)], alone.vectors[0], atol=1e-5, rtol=1e-4)
        assert not heads.vectors[row, words:].any()


def test_models_without_trees_say_so():
    with pytest.raises(ValueError, match="no head has a distribution over arcs: no trees to show"):
        build(ARCH, **CHAINS).encoder.source_attention(batch(SOURCE)["net_input"]["src_tokens"])


def test_what_keeps_distributions_from_being_returned():
    dropped = build(ARCH, **CHAINS, decoder_layerdrop=0.999).train()
    with pytest.raises(ValueError, match="--encoder-layerdrop and --decoder-layerdrop: the layer"):
        attention(dropped, return_posterior=True)
    assert attention(dropped)["attn"] == [None]
    with pytest.raises(ValueError, match="--checkpoint-activations forgets the distributions"):
        attention(build(ARCH, **CHAINS, checkpoint_activations=True).train(), return_posterior=True)


def test_attention_to_the_source_may_be_left_out():
    model = build(ARCH, no_cross_attention=True)
    assert attention(model, return_posterior=True)["posterior"] is None


def test_dropout_is_retained_where_it_is_asked_for():
    for named in (["MultiheadAttention"], ["TransformerEncoder"], ["TransformerDecoder"], None, ["RNNDecoder"]):
        model = build(ARCH, **{**CHAINS, "dropout": 0.5, "attention_dropout": 0.5}).eval()
        model.prepare_for_inference_(Namespace(generation=Namespace(retain_dropout=True, retain_dropout_modules=named)))
        first, second = (log_probs(model, batch(SOURCE, TARGET)) for _ in range(2))
        assert torch.equal(first, second) == (named == ["RNNDecoder"])


def test_options_of_a_namespace():
    assert TransformerOptions.of(Namespace(tree_roots="single")).tree_roots == "single"
    assert TransformerOptions.of(Namespace(attention_head=None)) == TransformerOptions()
    model = StructuredTransformer.build_model(Namespace(**TRANSFORMER_SIZES), TASK)
    assert len(DICTIONARY) == model.decoder.output_projection.out_features
    assert "structattn_transformer" in ARCH_MODEL_REGISTRY
