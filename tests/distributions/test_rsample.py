"""Samples with gradients: structures, as probable as they should be where that is promised, with gradients that point
where those of the expectation do."""

import pytest
import torch

from fairseq_structattn.distributions import (
    Bernoulli,
    BinaryTree,
    Categorical,
    IndependentHeads,
    LinearChain,
    OneSpan,
    ProjectiveTree,
    SemiMarkov,
    SpanningTree,
)

LENGTHS = torch.tensor([3, 2, 1, 0])
DRAWS = 4000


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def categorical(scores):
    return Categorical(scores, LENGTHS.clamp(min=1))


def chain(scores):
    return LinearChain(scores, 2 * normal(2, 2, seed=1), LENGTHS)


def states(scores):
    potentials = scores.unsqueeze(-1) * normal(3, seed=2)
    edges = dict(start=normal(3, seed=4), end=normal(3, seed=5), num_states=3)
    return LinearChain(potentials, normal(4, 2, 3, 3, seed=3), LENGTHS, **edges)


def independent(scores):
    return IndependentHeads(torch.nn.functional.pad(scores, (1, 0)).unsqueeze(-1) + normal(4, 4, 3, seed=6), LENGTHS)


def trees(kind, roots="multi"):
    return lambda scores: kind.from_scores(scores, LENGTHS, arc_scores=normal(4, 4, 3, seed=6), roots=roots)


def span(scores):
    return OneSpan(scores, torch.tensor([0.5], dtype=torch.double), LENGTHS.clamp(min=1))


def segments(scores):
    return SemiMarkov.from_scores(scores, LENGTHS, normal(2, 2, seed=7), normal(2, 2, seed=1))


def binary_trees(scores):
    return BinaryTree(2 * scores.unsqueeze(-1) * normal(4, 3, 3, seed=8), LENGTHS)


EXACT = {
    "categorical": categorical,
    "chain": chain,
    "states": states,
    "one span": span,
    "independent heads": independent,
}
KINDS = {
    **EXACT,
    "segments": segments,
    "binary trees": binary_trees,
    "projective trees": trees(ProjectiveTree),
    "spanning trees": trees(SpanningTree),
    "single root": trees(SpanningTree, "single"),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def scores():
    return normal(4, 3).requires_grad_()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", EXACT.values(), ids=EXACT)
def test_samples_are_as_frequent_as_probable(kind, scores):
    distribution = kind(scores.detach())
    drawn = distribution.rsample((DRAWS,), generator=generator())
    first = drawn[:, 0].flatten(1)
    for value in first.unique(dim=0):
        structure = value.view(drawn.shape[2:]).expand(drawn.shape[1:])
        with_others = torch.cat((structure[:1], distribution.argmax[1:]))
        expected = distribution.log_prob(with_others)[0].exp().item()
        frequency = (first == value).all(1).double().mean().item()
        assert abs(frequency - expected) < 4.5 * (expected * (1 - expected) / DRAWS) ** 0.5
    error = drawn.std(0) / DRAWS**0.5
    assert ((drawn.mean(0) - distribution.marginals).abs() <= 4.5 * error + 1e-9).all()


def test_samples_are_structures(kind, scores):
    distribution = kind(scores)
    drawn = distribution.rsample((5, 2), generator=generator())
    assert drawn.shape == (5, 2) + distribution.batch_shape + distribution.event_shape
    value = drawn.detach()
    assert torch.equal(value, value.round())
    possible = distribution.log_partition > -float("inf")
    assert distribution.log_prob(value)[..., possible].isfinite().all()
    assert not value[:, :, ~possible].any()
    assert torch.equal(value, distribution.rsample((5, 2), generator=generator()))
    assert not torch.equal(value, distribution.rsample((5, 2), generator=generator(1)))


def mean_gradient(distribution, scores, upstream, temperature):
    drawn = distribution.rsample((DRAWS // 4,), generator=generator(), temperature=temperature)
    (gradient,) = torch.autograd.grad((drawn * upstream).flatten(1).sum(1).mean(), scores)
    return gradient


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_gradients_point_where_those_of_the_expectation_do(kind, scores, temperature):
    distribution = kind(scores)
    upstream = normal(*distribution.marginals.shape, seed=9)
    (expected,) = torch.autograd.grad((distribution.marginals * upstream).sum(), scores)
    found = mean_gradient(kind(scores), scores, upstream, temperature)
    assert not found[1, 2:].any(), "nothing comes from the padding"
    assert torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.7
    assert 0.2 < found.norm() / expected.norm() < 5


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_relaxations_are_the_structures_at_a_low_temperature(kind, scores, temperature):
    drawn = kind(scores)._relaxed_sample(torch.Size((20,)), temperature, generator())
    difference = (drawn.relaxed - drawn.structures).abs().flatten(1).amax(1)
    assert (difference < 0.01).double().mean() > 0.8 if temperature < 1 else (difference > 0.01).all()


def test_no_state_of_a_neighbour_is_relaxed():
    """Of a chain whose first state follows from the second: its relaxation does, too."""
    coupled = LinearChain(torch.zeros(2, requires_grad=True), torch.tensor([[0.0, -30.0], [-30.0, 0.0]]))
    drawn = coupled.rsample((200,), generator=generator())
    assert torch.equal(drawn[:, 0], drawn[:, 1]) and 60 < drawn[:, 0].sum() < 140


def test_forbidden_and_impossible_parts(scores):
    forbidden = scores.detach().clone()
    forbidden[0, 1] = -float("inf")
    forbidden[2, 0] = float("nan")  # its padding begins at 1
    forbidden[1, 2] = float("nan")
    given = forbidden.requires_grad_()
    drawn = LinearChain(given, normal(2, 2, seed=1), LENGTHS).rsample((50,), generator=generator())
    assert not drawn[:, 0, 1].any() and not drawn[:, 1, 2].any() and drawn[:, 2, 0].isnan().all()
    (gradient,) = torch.autograd.grad(drawn[:, :2].sum(), given)
    assert gradient[:2].isfinite().all() and gradient[0, 1] == 0 and gradient[1, 2] == 0
    impossible = Categorical(torch.full((2, 3), -float("inf")))
    assert not impossible.rsample((4,)).any()
    dead = torch.full((2, 2), -float("inf"))
    assert not LinearChain(torch.zeros(2), dead).rsample((4,)).any()
    assert not SemiMarkov(torch.zeros(2, 1, 2), dead).rsample((4,)).any()
    assert not BinaryTree(dead).rsample((4,)).any()


@pytest.mark.parametrize("kind", [span, segments], ids=["one span", "segments"])
@pytest.mark.parametrize("mask", [-float("inf"), -1e9])
def test_forbidden_and_broken_positions(kind, mask, scores):
    given = scores.detach().clone()
    given[0, 1] = mask
    given[1, 2] = float("nan")  # in padding
    given[2, 0] = float("nan")
    given.requires_grad_()
    distribution = kind(given)
    drawn = distribution.rsample((50,), generator=generator())
    assert not distribution.selected_positions(drawn.detach())[:, 0, 1].any() and drawn[:, 2].isnan().any()
    (gradient,) = torch.autograd.grad((drawn[:, :2] * normal(*drawn.shape[2:], seed=9)).sum(), given)
    assert gradient[:2].isfinite().all() and gradient[0, 1] == 0 and gradient[0].any() and gradient[1, 2] == 0


def test_empty_sequences():
    tables = torch.zeros(2, 2)
    chain, segments = LinearChain(torch.zeros(2, 0), tables), SemiMarkov(torch.zeros(2, 0, 2, 2), tables)
    trees = ProjectiveTree(torch.zeros(2, 1, 0)), BinaryTree(torch.zeros(2, 0, 0))
    one_span = OneSpan(torch.zeros(2, 0), torch.zeros(1))
    for distribution in (Categorical(torch.zeros(2, 0)), chain, one_span, segments, *trees):
        assert distribution.rsample((3,)).shape == (3, 2) + distribution.event_shape


def test_what_is_refused(scores):
    with pytest.raises(NotImplementedError, match="Bernoulli has no rsample; use sample"):
        Bernoulli(scores).rsample()
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature is .*; it must be greater than 0"):
            chain(scores).rsample(temperature=temperature)
    assert chain(scores).has_rsample and not Bernoulli(scores).has_rsample


def test_dtype_of_results():
    assert Categorical(torch.zeros(3)).rsample().dtype == torch.float32
    assert LinearChain(torch.zeros(3), torch.zeros(2, 2)).rsample().dtype == torch.float32
    assert ProjectiveTree(torch.zeros(4, 3).bfloat16()).rsample().dtype == torch.bfloat16
