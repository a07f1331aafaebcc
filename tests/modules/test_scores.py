"""Scores against their formulas, pair by pair."""

import math

import pytest
import torch

from fairseq_structattn.modules.scores import Score, build_score, register_score, score_names

BATCH, TARGETS, SOURCES, DIM = 2, 3, 5, 4


def scores_of(name, query_dim=DIM, source_dim=DIM, hidden_dim=6):
    torch.manual_seed(0)
    score = build_score(name, query_dim, source_dim, hidden_dim).double()
    query = torch.randn(BATCH, TARGETS, query_dim, dtype=torch.double)
    states = torch.randn(BATCH, SOURCES, source_dim, dtype=torch.double)
    return score, query, states, score(query, score.key_projection(states))


def expected(query, states, formula):
    return torch.stack(
        [torch.stack([torch.stack([formula(q, h) for h in row]) for q in rows]) for rows, row in zip(query, states)]
    )


def test_dot():
    _, query, states, scores = scores_of("dot")
    torch.testing.assert_close(scores, expected(query, states, lambda q, h: q @ h))


def test_scaled_dot():
    _, query, states, scores = scores_of("scaled-dot")
    torch.testing.assert_close(scores, expected(query, states, lambda q, h: q @ h / math.sqrt(DIM)))


def test_general_compares_different_sizes():
    score, query, states, scores = scores_of("general", source_dim=7)
    weight = score.key_projection.weight
    torch.testing.assert_close(scores, expected(query, states, lambda q, h: q @ (weight @ h)))


@pytest.mark.parametrize("name", ["additive", "concat"])
def test_additive_is_luongs_concat(name):
    score, query, states, scores = scores_of(name, source_dim=7)
    matrix = torch.cat((score.query_projection.weight, score.key_projection.weight), 1)
    energy = score.energy.weight[0]
    formula = expected(query, states, lambda q, h: energy @ torch.tanh(matrix @ torch.cat((q, h))))
    torch.testing.assert_close(scores, formula)


@pytest.mark.parametrize("name", ["dot", "scaled-dot"])
def test_dot_names_the_way_out_when_sizes_differ(name):
    with pytest.raises(ValueError, match=r"4 units .* 7: make them equal, or choose the score general"):
        build_score(name, DIM, 7, 6)


def test_unknown_score_lists_the_known():
    with pytest.raises(ValueError, match="unknown attention score 'cosine'; choose one of: additive, concat, dot"):
        build_score("cosine", DIM, DIM, DIM)


def test_a_name_is_registered_once():
    class Other(Score):
        pass

    with pytest.raises(ValueError, match="name 'dot' belongs to"):
        register_score("dot")(Other)
    assert score_names() == ["additive", "concat", "dot", "general", "scaled-dot"]
