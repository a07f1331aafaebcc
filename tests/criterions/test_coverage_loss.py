"""Coverage loss: worked out by hand, where it is zero, and what training with it does."""

from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, batch, build, sentences

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy
from fairseq_structattn.criterions.coverage_loss import coverage_loss

ALL = torch.ones(1, 3, dtype=torch.bool)
REPEATED = torch.tensor([[[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]])


def test_by_hand():
    # Coverage before the steps: (0, 0), (3/4, 1/4), (5/4, 3/4): min = 0; 1/2 + 1/4; 1 + 0.
    assert coverage_loss(REPEATED, ALL).item() == pytest.approx(1.75)


@pytest.mark.parametrize("scale", [2.0, 1e-30, 1e4])
def test_what_weights_sum_to_does_not_matter(scale):
    assert coverage_loss(scale * REPEATED, ALL).item() == pytest.approx(1.75)


def test_zero_where_nothing_is_attended_to_twice():
    assert coverage_loss(torch.eye(3).unsqueeze(0), ALL).item() == 0
    assert coverage_loss(torch.zeros(1, 3, 2), ALL).item() == 0


def test_gradients_are_finite_where_a_step_selects_nothing():
    weights = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.5, 0.5]]], requires_grad=True)
    loss = coverage_loss(weights, ALL)
    loss.backward()
    # The second step costs nothing, but would cost min(a, 1) with a weight a for the first position.
    assert loss.item() == 0.5 and weights.grad[0, 1, 0].item() == pytest.approx(1.0)
    assert weights.grad.abs().max().item() < 10


@pytest.mark.parametrize("counted, expected", [([1, 1, 0], 0.75), ([0, 1, 1], 0.5), ([0, 0, 0], 0.0)])
def test_padding_on_either_side_neither_costs_nor_covers(counted, expected):
    assert coverage_loss(REPEATED, torch.tensor([counted]).bool()).item() == pytest.approx(expected)


def test_half_precision_is_summed_in_single():
    loss = coverage_loss(torch.ones(300, 300, 1).half(), torch.ones(300, 300, dtype=torch.bool))
    assert loss.item() == 300 * 299  # more than float16 can hold


def test_gradient_is_that_of_finite_differences():
    weights = torch.rand(2, 4, 3, dtype=torch.double).requires_grad_()
    counted = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    assert torch.autograd.gradcheck(lambda weights: coverage_loss(weights, counted), weights)


@pytest.mark.parametrize("arch", ["structattn_rnn", "structattn_rnn_crf"])
def test_training_with_it_lowers_repeated_attention(arch):
    sample = batch(sentences([7, 5, 8]), sentences([6, 5, 7], seed=1))
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace())
    repeated = {}
    for weight in (0.0, 2.0):
        model = build(arch, dropout=0.0).train()
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(30):
            loss, sample_size, _ = StructuredLabelSmoothedCrossEntropy(task, False, 0.0, coverage_loss=weight)(
                model, sample
            )
            optimizer.zero_grad()
            (loss / sample_size).backward()
            optimizer.step()
        weights = model(**sample["net_input"])[1]["attn"][0]
        repeated[weight] = coverage_loss(weights, sample["target"].ne(DICTIONARY.pad())).item()
    assert repeated[2.0] < 0.9 * repeated[0.0]
