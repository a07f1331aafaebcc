"""The terms on attention as parts of the criterion: what is computed, added, divided by and logged."""

from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, STOCK, TASK, batch, build, sentences
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy

SAMPLE = {
    **batch(sentences([6, 4, 5]), sentences([3, 5, 4], seed=1)),
    # First target words of the first two sentences, of which the second has two links.
    "alignments": torch.tensor([[1, 0], [3, 5], [2, 5]]),
    "align_weights": torch.tensor([1.0, 0.5, 0.5]),
    "source_heads": torch.tensor([[2, 3, 0, 3, 4], [0, 1, 2, -1, -1], [4, 4, 4, 0, -1]]),
    "source_heads_path": "train.heads.src",
}
TERMS = ("guided_alignment", "coverage_loss", "attention_entropy", "tree_supervision")
WEIGHTS = {"guided_alignment": 0.3, "coverage_loss": 0.7, "attention_entropy": -0.2, "tree_supervision": 0.4}


def criterion(sentence_avg=False, load_alignments=True, **weights):
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace(load_alignments=load_alignments))
    return StructuredLabelSmoothedCrossEntropy(task, sentence_avg, 0.1, **weights)


@pytest.fixture(scope="module")
def model():
    return build("structattn_rnn_crf", source_attention="projective-tree", encoder_layers=1).double()


@pytest.mark.parametrize("sentence_avg", [False, True])
def test_terms_are_added_as_sums_over_words(model, sentence_avg):
    plain, size, _ = LabelSmoothedCrossEntropyCriterion(TASK, sentence_avg, 0.1)(model, SAMPLE)
    loss, sample_size, log = criterion(sentence_avg, **WEIGHTS)(model, SAMPLE)
    assert sample_size == size == (3 if sentence_avg else 12)
    expected = plain + sum(weight * log[name] for name, weight in WEIGHTS.items())
    torch.testing.assert_close(loss, expected)
    assert all(log[name] > 0 for name in TERMS)
    words = {name: log[f"{name}_words"].item() for name in TERMS}
    assert words == {"guided_alignment": 2, "coverage_loss": 12, "attention_entropy": 12, "tree_supervision": 12}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_weight_zero_is_neither_computed_nor_logged(model, name):
    made = criterion(**{**WEIGHTS, name: 0.0})
    assert [term.name for term in made.terms] == sorted(set(TERMS) - {name})
    _, _, log = made(model, SAMPLE)
    assert name not in log and f"{name}_words" not in log


def test_without_terms_the_model_is_asked_for_nothing(model):
    stock = ARCH_MODEL_REGISTRY["lstm"].build_model(STOCK, TASK).eval()
    sample = batch(sentences([6, 5, 4]), sentences([3, 5, 4], seed=1))
    loss, _, log = criterion()(stock, sample)
    assert torch.isfinite(loss) and not set(TERMS) & set(log)


def test_terms_are_not_added_to_losses_of_single_words(model):
    expected = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1)(model, SAMPLE, reduce=False)[0]
    torch.testing.assert_close(criterion(**WEIGHTS)(model, SAMPLE, reduce=False)[0], expected)


def test_logs_are_per_word_however_many_batches(model):
    log = criterion(**WEIGHTS)(model, SAMPLE)[2]
    nothing = {key: torch.zeros_like(torch.as_tensor(value)) for key, value in log.items()}
    with metrics.aggregate() as aggregated:
        StructuredLabelSmoothedCrossEntropy.reduce_metrics([log, log, nothing])
    values = aggregated.get_smoothed_values()
    for name in TERMS:
        assert values[name] == pytest.approx((log[name] / log[f"{name}_words"]).item(), abs=1e-3)
    with metrics.aggregate() as aggregated:
        StructuredLabelSmoothedCrossEntropy.reduce_metrics([{**nothing, "sample_size": 1, "ntokens": 1}])
    assert all(aggregated.get_smoothed_values()[name] == 0 for name in TERMS)
    with metrics.aggregate() as aggregated:
        StructuredLabelSmoothedCrossEntropy.reduce_metrics([criterion()(model, SAMPLE)[2]])
    assert not set(TERMS) & set(aggregated.get_smoothed_values())


def test_every_batch_logs_the_same_entries(model):
    bare = {name: part for name, part in SAMPLE.items() if name not in ("alignments", "source_heads")}
    terms = criterion(**WEIGHTS)
    loss, _, log = terms(model.eval(), bare)
    assert log.keys() == terms(model, SAMPLE)[2].keys()
    assert log["guided_alignment"] == log["tree_supervision"] == 0 and torch.isfinite(loss)


@pytest.mark.parametrize(
    "arch, weights, missing, message",
    [
        (
            "structattn_rnn_vanilla",
            {"guided_alignment": 1.0},
            None,
            "--guided-alignment: the model returns no attention",
        ),
        ("structattn_rnn_vanilla", {"coverage_loss": 1.0}, None, "--coverage-loss: the model returns no attention"),
        ("structattn_rnn_vanilla", {"attention_entropy": 1.0}, None, "--attention-entropy: the model returns no"),
        ("structattn_rnn", {"tree_supervision": 1.0}, None, "no trees over the source: choose a --source-attention"),
        (
            "structattn_rnn_tree",
            {"tree_supervision": 1.0},
            "source_heads",
            "--task structattn_translation --load-heads",
        ),
    ],
)
def test_what_a_term_lacks_is_named(arch, weights, missing, message):
    sample = {name: part for name, part in SAMPLE.items() if name != missing}
    with pytest.raises(ValueError, match=message):
        criterion(**weights)(build(arch).train(), sample)


@pytest.mark.parametrize("name", ["guided_alignment", "attention_entropy", "tree_supervision"])
def test_other_models_have_no_posterior(name):
    stock = ARCH_MODEL_REGISTRY["lstm"].build_model(STOCK, TASK)
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} needs the distributions"):
        criterion(**{name: 1.0})(stock, SAMPLE)


@pytest.mark.parametrize("name", ["guided_alignment", "coverage_loss", "tree_supervision"])
def test_negative_weights_are_refused_but_for_the_entropy(name):
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} -0.5: must be 0 or greater"):
        criterion(**{name: -0.5})
    criterion(attention_entropy=-0.5)


def test_guided_alignment_needs_alignments():
    with pytest.raises(ValueError, match="--guided-alignment 0.5 needs word alignments: add --load-alignments"):
        criterion(load_alignments=False, guided_alignment=0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = build("structattn_rnn_crf", source_attention="projective-tree", encoder_layers=1)
    expected = criterion(**WEIGHTS)(model, SAMPLE)[2]
    loss, _, log = criterion(**WEIGHTS)(model.to(dtype), SAMPLE)
    for name in TERMS:
        assert log[name].dtype == torch.float32
        torch.testing.assert_close(log[name], expected[name], atol=0.1, rtol=0.1)
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
