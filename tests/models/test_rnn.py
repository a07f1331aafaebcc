"""The model as a whole, for every architecture: batches, padding, generation, gradients."""

import pytest
import torch
from building import DICTIONARY, PRESETS, STOCK, TASK, TRANSFORMERS, batch, build, generate, log_probs, sentences
from fairseq.models import ARCH_MODEL_REGISTRY

VARIANTS = {
    **{preset: {"arch": preset} for preset in PRESETS},
    "input feeding": {"arch": "structattn_rnn_luong_general", "input_feeding": True},
    "crf, input feeding, gru": {"arch": "structattn_rnn_crf", "input_feeding": True, "cell": "gru"},
    "previous query, input feeding": {"arch": "structattn_rnn_bahdanau", "input_feeding": True, "cell": "lstm"},
    "bidirectional, other depth": {"arch": "structattn_rnn_crf", "encoder_bidirectional": True, "decoder_layers": 3},
    "bridged from a deeper encoder": {
        "arch": "structattn_rnn", "decoder_start": "bridge", "encoder_layers": 3, "decoder_layers": 1,
    },
    "couplings of the query": {"arch": "structattn_rnn_crf", "attention_couplings": "query", "input_feeding": True},
    "couplings of neighbours": {"arch": "structattn_rnn_crf", "attention_couplings": "neighbours"},
    "coverage, general score": {"arch": "structattn_rnn", "attention_coverage": "sum"},
    "coverage by fertility, chain, input feeding": {
        "arch": "structattn_rnn_crf", "attention_coverage": "fertility", "input_feeding": True,
    },
    "coverage by gru, additive score, previous query": {
        "arch": "structattn_rnn_bahdanau", "attention_coverage": "gru", "attention_coverage_size": 3,
    },
    "coverage by gru, trees": {"arch": "structattn_rnn_treedec", "attention_coverage": "gru"},
    "coverage, additive score, sigmoid": {
        "arch": "structattn_rnn_sigmoid", "attention_coverage": "sum", "attention_score": "additive",
    },
    "vanilla, input feeding": {"arch": "structattn_rnn_vanilla", "input_feeding": True},
    **{name: {"arch": name} for name in TRANSFORMERS},
}  # fmt: skip
LENGTHS = [9, 3, 1, 6, 9, 2, 5, 4]
SOURCE, TARGET = sentences(LENGTHS), sentences([4, 7, 2, 1, 9, 3, 5, 6], seed=1)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def options(request):
    return request.param


@pytest.fixture
def model(options):
    return build(**options)


def has_attention(model):
    return not (hasattr(model.decoder, "attention") and model.decoder.attention is None)


def attention_of(model, sample):
    return model(**sample["net_input"])[1]["attn"][0]


def test_a_sentence_does_not_depend_on_its_batch(model):
    source = sentences([1 + index % 11 for index in range(64)])
    target = sentences([1 + index % 7 for index in range(64)], seed=1)
    together = log_probs(model, batch(source, target))
    for index in range(64):
        alone = log_probs(model, batch(source[index : index + 1], target[index : index + 1]))
        torch.testing.assert_close(together[index : index + 1, : len(target[index])], alone, atol=1e-4, rtol=0)


def leaving_at_different_times(options):
    """A model under which sentences are finished, and leave the batch, at different steps; and its hypotheses."""
    for seed in range(100):
        model = build(seed=seed, **options)
        together = generate([model], batch(SOURCE))
        if len({max(len(one["tokens"]) for one in hypotheses) for hypotheses in together}) > 2:
            return model, together
    raise AssertionError("no seed gives such a model")


def test_generation_does_not_depend_on_the_batch(options):
    model, together = leaving_at_different_times(options)
    for sentence, hypotheses in zip(SOURCE, together):
        (alone,) = generate([model], batch([sentence]))
        for one, other in zip(hypotheses, alone):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            torch.testing.assert_close(one["positional_scores"], other["positional_scores"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("changed", [{"left_pad": False}, {"width": 16}, {"left_pad": False, "width": 16}])
def test_padding_changes_nothing(model, changed):
    expected, padded = batch(SOURCE, TARGET), batch(SOURCE, TARGET, **changed)
    torch.testing.assert_close(log_probs(model, padded), log_probs(model, expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("padding", [{}, {"width": 16}, {"left_pad": False}, {"left_pad": False, "width": 16}])
def test_attention_has_the_columns_of_src_tokens(model, padding):
    if not has_attention(model):
        assert attention_of(model, batch(SOURCE, TARGET)) is None
        return
    sample = batch(SOURCE, TARGET, **padding)
    weights, tokens = attention_of(model, sample), sample["net_input"]["src_tokens"]
    assert weights.shape == (len(SOURCE), max(map(len, TARGET)), tokens.size(1))
    for index, length in enumerate(LENGTHS):
        alone = attention_of(model, batch(SOURCE[index : index + 1], TARGET[index : index + 1]))[0]
        real = tokens[index].ne(DICTIONARY.pad())
        torch.testing.assert_close(weights[index, : len(TARGET[index]), real], alone, atol=1e-5, rtol=0)
        assert (weights[index][:, ~real] == 0).all()
        assert real.sum() == length


def test_attention_is_there_in_training_and_has_gradients(model):
    if not has_attention(model):
        return
    weights = attention_of(model.train(), batch(SOURCE, TARGET))
    weights.pow(2).sum().backward()
    assert model.encoder.embed_tokens.weight.grad.abs().sum() > 0


def test_every_parameter_is_trained(model):
    model.train()
    log_probs(model, batch(SOURCE, TARGET)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_scores_of_beam_search_are_those_of_forced_decoding(model):
    for sentence, hypotheses in zip(SOURCE, generate([model], batch(SOURCE))):
        for hypothesis in hypotheses:
            sample = batch([sentence], [hypothesis["tokens"]])
            forced = log_probs(model, sample)[0]
            torch.testing.assert_close(hypothesis["positional_scores"], forced, atol=1e-4, rtol=0)
            if has_attention(model):
                weights = attention_of(model, sample)[0].t()
                torch.testing.assert_close(hypothesis["attention"][-len(sentence) :], weights, atol=1e-4, rtol=0)


def test_prefix_is_kept_and_scored(model):
    prefix = torch.stack([sentence[:2] for sentence in sentences([9] * len(SOURCE), seed=2)])
    for sentence, words, hypotheses in zip(SOURCE, prefix, generate([model], batch(SOURCE), prefix_tokens=prefix)):
        best = hypotheses[0]
        assert best["tokens"][:2].tolist() == words.tolist()
        forced = log_probs(model, batch([sentence], [best["tokens"]]))[0]
        torch.testing.assert_close(best["positional_scores"], forced, atol=1e-4, rtol=0)


def test_very_long_and_empty_sentences(model):
    source = sentences([301, 1])
    for hypotheses in generate([model], batch(source), beam=2):
        assert torch.isfinite(hypotheses[0]["score"])


@pytest.mark.precision
def test_half_precision_and_autocast(model):
    sample = batch(SOURCE, TARGET)
    expected = log_probs(model, sample)
    for dtype, tolerance in ((torch.bfloat16, 0.35), (torch.float16, 0.1)):
        with torch.autocast("cpu", dtype):
            lowered = log_probs(model, sample)
        torch.testing.assert_close(lowered.float(), expected, atol=tolerance, rtol=0)
        model.zero_grad()
        lowered.sum().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
        with torch.no_grad(), torch.autocast("cpu", dtype):
            torch.testing.assert_close(log_probs(model, sample).float(), expected, atol=tolerance, rtol=0)
    for dtype, tolerance in ((torch.bfloat16, 0.5), (torch.float16, 0.1)):
        lowered = log_probs(model.to(dtype), sample)
        lowered.sum().backward()
        torch.testing.assert_close(lowered.float(), expected, atol=tolerance, rtol=0)


def test_ensemble_with_a_stock_model(model):
    stock = ARCH_MODEL_REGISTRY["lstm"].build_model(STOCK, TASK).eval()
    # Stock lstm wants the longest sentence first, as fairseq sorts them.
    for hypotheses in generate([model, stock], batch(sorted(SOURCE, key=len, reverse=True))):
        assert torch.isfinite(hypotheses[0]["score"])


def test_ensemble_of_a_model_with_itself_is_the_model(model):
    alone, twice = generate([model], batch(SOURCE)), generate([model, model], batch(SOURCE))
    for one, other in zip(alone, twice):
        assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
        torch.testing.assert_close(one[0]["attention"], other[0]["attention"], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_changes_nothing():
    model, sample = build("structattn_rnn_crf"), batch(SOURCE, TARGET)
    expected = log_probs(model, sample)
    compiled = torch.compile(model, backend="eager")
    scores, _ = compiled(**sample["net_input"])
    found = scores.log_softmax(-1).gather(-1, sample["target"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.masked_fill(sample["target"].eq(DICTIONARY.pad()), 0.0), expected)
