"""Coverage in the score: its formulas, position by position, and attention that goes on where it stopped."""

import pytest
import torch

from fairseq_structattn.modules.attention import StructuredAttention
from fairseq_structattn.modules.coverage import COVERAGES
from fairseq_structattn.modules.scores import score_names

KINDS = [kind for kind in COVERAGES if kind != "none"]
LENGTHS = torch.tensor([5, 2])


def build(coverage, score="additive", distribution="softmax", **options):
    torch.manual_seed(1)
    attention = StructuredAttention(
        4, 4, score, distribution, hidden_dim=6, coverage=coverage, coverage_size=3, **options
    ).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.uniform_(-1, 1)
    states = torch.randn(2, 5, 4, dtype=torch.double, requires_grad=True)
    return attention, torch.randn(2, 3, 4, dtype=torch.double), states


def test_additive_score_with_coverage_is_that_of_the_papers():
    attention, query, states = build("sum")
    _, weights = attention(query, attention.prepare(states, LENGTHS))
    score, vector = attention.score, attention.coverage.key_projection.weight[:, 0]
    covered = torch.zeros(5, dtype=torch.double)
    for step in range(3):
        hidden = score.query_projection.weight @ query[0, step] + states[0] @ score.key_projection.weight.t()
        energies = torch.tanh(hidden + covered[:, None] * vector) @ score.energy.weight[0]
        torch.testing.assert_close(weights[0, step], energies.softmax(0))
        covered = covered + weights[0, step]


def test_sum_by_hand():
    # Keys 0, V = −1, queries 1: what has been attended to loses as much in score as it has had in weight.
    attention = StructuredAttention(1, 1, "dot", "sigmoid", coverage="sum").double()
    with torch.no_grad():
        attention.coverage.key_projection.weight.fill_(-1)
    source = attention.prepare(torch.zeros(1, 1, 1, dtype=torch.double), torch.tensor([1]))
    _, weights = attention(torch.ones(1, 2, 1, dtype=torch.double), source)
    # σ(0), σ(−1/2)
    assert weights.flatten().tolist() == pytest.approx([0.5, 0.3775407])


def test_fertility_divides():
    attention, query, states = build("fertility", max_fertility=3.0)
    source = attention.prepare(states, LENGTHS)
    attend = attention.for_steps(source, 2)
    attend(query[:, :1])
    attend(query[:, 1:2])
    total = attend.weights().sum(1)
    fertility = 3 * torch.sigmoid(states @ attention.coverage.source_projection.weight[0])
    torch.testing.assert_close(attend.coverage.squeeze(-1), total / fertility)


def test_recurrent_coverage_is_a_gru():
    attention, query, states = build("gru")
    coverage = attention.coverage
    cell = torch.nn.GRUCell(1 + 4 + 4, 3).double()
    with torch.no_grad():
        projections = (coverage.weight_projection, coverage.source_projection, coverage.query_projection)
        cell.weight_ih.copy_(torch.cat([projection.weight for projection in projections], 1))
        cell.bias_ih.copy_(coverage.source_projection.bias)
        cell.weight_hh.copy_(coverage.recurrence.weight)
        cell.bias_hh.copy_(coverage.recurrence.bias)
    attend = attention.for_steps(attention.prepare(states, LENGTHS), 3)
    before = torch.zeros(3, dtype=torch.double)
    for step in range(3):
        attend(query[:, step : step + 1])
        before = cell(torch.cat((attend.weights()[0, step, 1:2], states[0, 1], query[0, step])), before)
        torch.testing.assert_close(attend.coverage[0, 1], before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", score_names())
def test_attention_goes_on_where_it_stopped(kind, score):
    attention, query, states = build(kind, score, "linear-chain", scale=2.0, normalize="sum")
    source = attention.prepare(states, LENGTHS)
    context, weights = attention(query, source)
    first = attention.for_steps(source, 1)
    first(query[:, :1])
    second = attention.for_steps(source, 2, first.coverage)
    for step in (1, 2):
        torch.testing.assert_close(second(query[:, step : step + 1]), context[:, step : step + 1])
    assert not weights[1, :, 2:].any()
    # The scores themselves depend on what came before.
    alone, _ = attention(query[:, 2:], source)
    assert not torch.allclose(alone, context[:, 2:])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_pass_through_coverage(kind):
    attention, query, states = build(kind, "general", "linear-chain")
    inputs = query.requires_grad_(), states
    assert torch.autograd.gradcheck(lambda q, s: attention(q, attention.prepare(s, LENGTHS))[0], inputs)


@pytest.mark.parametrize("kind", ["none", "sum"])
def test_posterior_is_what_the_weights_are_made_of(kind):
    attention, query, states = build(kind, "general", "linear-chain")
    source = attention.prepare(states, LENGTHS)
    torch.testing.assert_close(attention.posterior(query, source).marginals, attention(query, source)[1])


def test_unknown_coverage_is_refused():
    with pytest.raises(ValueError, match="coverage is 'all'; choose one of: none, sum, fertility, gru"):
        StructuredAttention(4, 4, coverage="all")


@pytest.mark.parametrize("kind", ["fertility", "gru"])
def test_coverage_without_the_source_states_that_it_reads_is_refused(kind):
    attention, query, states = build(kind)
    source = attention.prepare(states, LENGTHS)._replace(coverage=None)
    with pytest.raises(ValueError, match=r"source is None.* give source_projection\(states\)"):
        attention(query, source)
