"""Our criterion against fairseq's, its penalty worked out by hand, and what it logs."""

from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, batch, build, sentences
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy

TASK = Namespace(target_dictionary=DICTIONARY, cfg=Namespace())
SAMPLE = batch(sentences([5, 3, 7]), sentences([4, 6, 2], seed=1))
WEIGHT = 0.005


def criterion(pairwise_l2=0.0, sentence_avg=False, **options):
    return StructuredLabelSmoothedCrossEntropy(
        TASK, sentence_avg, 0.1, report_accuracy=True, pairwise_l2=pairwise_l2, **options
    )


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("sentence_avg", [False, True])
@pytest.mark.parametrize("reduce", [False, True])
def test_equals_fairseqs_own_with_weight_zero(sentence_avg, reduce):
    model = build("structattn_rnn_crf")
    stock = LabelSmoothedCrossEntropyCriterion(TASK, sentence_avg, 0.1, report_accuracy=True)
    expected, expected_size, expected_log = stock(model, SAMPLE, reduce)
    loss, sample_size, log = criterion(sentence_avg=sentence_avg)(model, SAMPLE, reduce)
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
    assert sample_size == expected_size and log.keys() == expected_log.keys()
    for own, other in zip(gradients(loss.sum(), model), gradients(expected.sum(), model)):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("sentence_avg", [False, True])
def test_penalty_adds_its_weight_times_the_table_to_an_update(sentence_avg):
    model = build("structattn_rnn_crf").double()
    table = model.decoder.attention.tables["pairwise"]
    with torch.no_grad():
        table.copy_(torch.tensor([[1.0, -2.0], [3.0, 0.5]]))
    updates = []
    for weight in (0.0, WEIGHT):
        loss, sample_size, log = criterion(weight, sentence_avg)(model, SAMPLE)
        updates.append(torch.autograd.grad(loss, table)[0] / sample_size)
    torch.testing.assert_close(updates[1] - updates[0], WEIGHT * table, atol=1e-9, rtol=0)
    # ½ · (1 + 4 + 9 + 0.25), without its weight.
    assert log["pairwise_l2"] / sample_size == pytest.approx(7.125)
    assert log["pairwise_l2_words"] == sample_size


def test_penalty_is_zero_without_a_table():
    model = build("structattn_rnn_luong_general")
    loss, _, log = criterion(WEIGHT)(model, SAMPLE)
    assert log["pairwise_l2"] == 0.0
    assert loss == criterion()(model, SAMPLE)[0]


def test_one_step_shrinks_the_table():
    model = build("structattn_rnn_crf")
    table = model.decoder.attention.tables["pairwise"]
    before = table.norm().item()
    loss, sample_size, _ = criterion(1000.0)(model, SAMPLE)
    (gradient,) = torch.autograd.grad(loss / sample_size, table)
    assert (table - 1e-4 * gradient).norm().item() < before


def test_terms_are_logged_per_sample_however_many_batches():
    model = build("structattn_rnn_crf")
    _, size, log = criterion(WEIGHT)(model, SAMPLE)
    with metrics.aggregate() as aggregated:
        StructuredLabelSmoothedCrossEntropy.reduce_metrics([log, log])
    values = aggregated.get_smoothed_values()
    square = model.decoder.attention.tables["pairwise"].pow(2).sum().item()
    assert values["pairwise_l2"] == pytest.approx(square / 2, rel=1e-3)
    assert {"loss", "nll_loss", "ppl", "accuracy"} <= set(values)
    assert values["loss"] == pytest.approx(log["loss"].item() / size / 0.6931, rel=1e-3)


def test_negative_weight_is_refused():
    with pytest.raises(ValueError, match="--pairwise-l2 -1: must be 0 or greater"):
        criterion(-1)


def test_length_to_failure_is_logged_in_percent_of_sentences():
    model = build("structattn_rnn_crf")
    reporting = criterion(report_length_to_failure=True)
    best = model(**SAMPLE["net_input"])[0].argmax(-1)
    # Right to the end, right for the first of its words, wrong from the first.
    target = SAMPLE["target"].clone()
    target[0, :3] = best[0, :3]
    target[1, 0], target[1, 1] = best[1, 0], (best[1, 1] + 1) % len(DICTIONARY)
    target[2, 0] = (best[2, 0] + 1) % len(DICTIONARY)
    _, _, log = reporting(model, {**SAMPLE, "target": target})
    with metrics.aggregate() as aggregated:
        StructuredLabelSmoothedCrossEntropy.reduce_metrics([log, log])
    words = target[1].ne(DICTIONARY.pad()) & target[1].ne(DICTIONARY.eos())
    expected = 100 * (1 + 1 / words.sum().item()) / 3
    assert aggregated.get_smoothed_values()["length_to_failure"] == pytest.approx(expected, abs=0.01)
