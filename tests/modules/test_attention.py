"""StructuredAttention: weights, contexts, what it refuses."""

import pytest
import torch

from fairseq_structattn.distributions import LinearChain, ProjectiveTree, SemiMarkov
from fairseq_structattn.modules.attention import StructuredAttention

LENGTHS = torch.tensor([5, 2])


def attend(distribution, dtype=torch.float32, **options):
    torch.manual_seed(1)
    attention = StructuredAttention(6, 4, distribution=distribution, **options).to(dtype)
    states, query = torch.randn(2, 5, 4, dtype=dtype), torch.randn(2, 3, 6, dtype=dtype)
    source = attention.prepare(states, LENGTHS)
    return attention, query, source, *attention(query, source)


def test_softmax_is_classical_attention():
    attention, query, source, context, weights = attend("softmax")
    for item, length in enumerate(LENGTHS):
        scores = query[item] @ attention.score.key_projection.weight @ source.values[item, :length].t()
        torch.testing.assert_close(weights[item, :, :length], scores.softmax(-1))
    torch.testing.assert_close(context, weights @ source.values)


def test_sigmoid_is_not_normalized():
    attention, query, source, _, weights = attend("sigmoid")
    scores = query[0] @ source.keys[0].t()
    torch.testing.assert_close(weights[0], scores.sigmoid())


def test_chain_is_normalized_as_in_the_paper():
    attention, query, source, context, weights = attend("linear-chain", scale=2.0, normalize="sum")
    scores = query @ source.keys.transpose(1, 2)
    chain = LinearChain(scores, attention.tables["pairwise"], LENGTHS.unsqueeze(1))
    marginals = chain.marginals
    torch.testing.assert_close(weights, 2 * marginals / marginals.sum(-1, keepdim=True))
    torch.testing.assert_close(weights.sum(-1), torch.full((2, 3), 2.0))
    torch.testing.assert_close(context, weights @ source.values)


@pytest.mark.parametrize("distribution", ["softmax", "sigmoid", "linear-chain", "semi-markov"])
def test_padding_gets_exactly_nothing(distribution):
    *_, weights = attend(distribution)
    assert (weights[1, :, 2:] == 0).all()
    assert (weights[1, :, :2] > 0).all()


def test_segments_have_tables_of_lengths_and_neighbours():
    attention, query, source, _, weights = attend("semi-markov", max_segment_length=3, couplings="query")
    assert {name: tuple(table.shape) for name, table in attention.tables.items()} == {
        "length_scores": (3, 2), "pairwise": (2, 2),
    }  # fmt: skip
    scores = query @ source.keys.transpose(1, 2)
    unary = torch.stack((torch.zeros_like(scores), scores), -1)
    tables = attention.tables["pairwise"] + attention.couplings.projection(query).view(2, 3, 1, 2, 2).expand(
        2, 3, 4, 2, 2
    )
    lengths = LENGTHS.unsqueeze(1)
    segments = SemiMarkov.from_unary(unary, attention.tables["length_scores"], tables, lengths)
    torch.testing.assert_close(weights, segments.label_marginals[..., 1])


@pytest.mark.parametrize("distribution", ["linear-chain", "semi-markov"])
def test_gradients_reach_scores_values_and_table(distribution):
    attention, query, source, context, _ = attend(distribution, normalize="sum")
    context.pow(2).sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_where_nothing_can_be_selected_weights_and_gradients_are_zero():
    attention, query, source, _, _ = attend("sigmoid", normalize="sum")
    hopeless = source._replace(keys=source.keys * 0 - 1e6)
    query = torch.ones_like(query).requires_grad_()
    context, weights = attention(query, hopeless)
    context.sum().backward()
    assert (weights == 0).all() and (context == 0).all()
    assert torch.isfinite(query.grad).all()


def test_posterior_tells_more_than_weights():
    attention, query, source, _, _ = attend("linear-chain")
    posterior = attention.posterior(query, source)
    assert posterior.batch_shape == (2, 3)
    assert set(posterior.argmax.unique().tolist()) <= {0.0, 1.0}
    assert (posterior.entropy() >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_and_out(dtype):
    *_, context, weights = attend("linear-chain", dtype=dtype, scale=2.0, normalize="sum")
    assert context.dtype == weights.dtype == dtype
    torch.testing.assert_close(weights.float().sum(-1), torch.full((2, 3), 2.0), atol=0.02, rtol=0)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="normalize is 'max'; choose one of: none, sum"):
        StructuredAttention(4, 4, normalize="max")
    with pytest.raises(ValueError, match="linear-chain"):
        StructuredAttention(4, 4, distribution="quadratic-chain")


def test_attention_over_trees_adds_the_query_to_the_score_of_each_arc():
    torch.manual_seed(1)
    attention = StructuredAttention(6, 4, distribution="projective-tree", normalize="sum", roots="single").double()
    states, query = torch.randn(2, 5, 4, dtype=torch.double), torch.randn(2, 3, 6, dtype=torch.double)
    arcs = torch.randn(2, 5, 4, dtype=torch.double)
    source = attention.prepare(states, LENGTHS, arcs)
    context, weights = attention(query, source)
    for item, words in enumerate((LENGTHS - 1).tolist()):
        for step in range(3):
            matches = query[item, step] @ source.keys[item].t()
            scores = arcs[item, : words + 1, :words].clone()
            scores[1:] += matches[:words, None]
            dependents = ProjectiveTree(scores, roots="single").marginals[1:].sum(1)
            total = dependents.sum()
            expected = dependents / total if total > 0 else dependents
            torch.testing.assert_close(weights[item, step, :words], expected)
            assert not weights[item, step, words:].any()
    torch.testing.assert_close(context, weights @ states)


def test_steps_of_attention_over_trees_equal_one_call():
    torch.manual_seed(1)
    attention = StructuredAttention(6, 4, distribution="spanning-tree", normalize="sum").double()
    states, query = torch.randn(2, 5, 4, dtype=torch.double), torch.randn(2, 3, 6, dtype=torch.double)
    source = attention.prepare(states, LENGTHS, torch.randn(2, 5, 4, dtype=torch.double))
    attend = attention.for_steps(source, 3)
    steps = torch.cat([attend(step.unsqueeze(1)) for step in query.unbind(1)], 1)
    torch.testing.assert_close(steps, attention(query, source)[0])


@pytest.mark.parametrize("couplings", ["query", "neighbours"])
def test_couplings_add_to_the_table(couplings):
    attention, query, source, _, weights = attend("linear-chain", couplings=couplings)
    table, layer = attention.tables["pairwise"], attention.couplings
    scores = query @ source.keys.transpose(1, 2)
    for item, length in enumerate(LENGTHS):
        for step in range(query.size(1)):
            if couplings == "query":
                added = layer.projection(query[item, step]).view(2, 2).expand(length - 1, 2, 2)
            else:
                left, right = (source.values[item, :length] @ part.weight.t() for part in (layer.left, layer.right))
                hidden = torch.tanh(left[:-1] + layer.left.bias + right[1:])
                added = (hidden @ layer.projection.weight.t()).view(-1, 2, 2)
            chain = LinearChain(scores[item, step, :length], table + added)
            torch.testing.assert_close(weights[item, step, :length], chain.marginals)


@pytest.mark.parametrize("couplings", ["query", "neighbours"])
def test_couplings_are_those_of_the_step_in_attention_step_by_step(couplings):
    attention, query, source, contexts, weights = attend("linear-chain", couplings=couplings)
    steps = attention.for_steps(source, query.size(1))
    for step in query.split(1, 1):
        steps(step)
    torch.testing.assert_close(steps.weights(), weights)
    torch.testing.assert_close(steps.posterior().marginals, attention.posterior(query, source).marginals)
    contexts.pow(2).sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_one_word_has_no_neighbours():
    attention = StructuredAttention(6, 4, distribution="linear-chain", couplings="neighbours")
    _, weights = attention(torch.randn(2, 3, 6), attention.prepare(torch.randn(2, 1, 4), torch.tensor([1, 1])))
    assert weights.shape == (2, 3, 1)


def test_couplings_need_pairwise_potentials():
    with pytest.raises(ValueError, match="couplings is 'query', and 'softmax' has no pairwise potentials"):
        StructuredAttention(6, 4, couplings="query")
    with pytest.raises(ValueError, match="couplings is 'x'; choose one of: shared, query, neighbours"):
        StructuredAttention(6, 4, distribution="linear-chain", couplings="x")
