"""What attention takes from a distribution: the marginals, or one structure, with which gradient; and in which mode."""

import pytest
import torch
from contract import OWN_NAMES
from torch.testing import assert_close

from fairseq_structattn.distributions import ProjectiveTree, get_distribution
from fairseq_structattn.modules import SourceAttention, StructuredAttention, StructuredMultiheadAttention
from fairseq_structattn.modules.attention import scaled
from fairseq_structattn.modules.estimators import (
    ARGMAX,
    ESTIMATORS,
    EXPECTATION,
    RSAMPLE,
    SAMPLE,
    STRAIGHT_THROUGH,
    Estimator,
)
from fairseq_structattn.modules.source_attention import UniformArcs

LENGTHS = torch.tensor([4, 2])
# All over positions, and one over arcs for all of these.
DISTRIBUTIONS = [name for name in OWN_NAMES if not get_distribution(name).needs_arcs] + ["projective-tree"]
DRAWS = 3000


def made(name, scores):
    """A distribution over the positions of two sentences."""
    cls = get_distribution(name)
    if "max" in name and name != "softmax":
        pytest.importorskip("entmax")
    if cls.needs_arcs:
        arcs = torch.randn(2, 5, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))
        return cls.from_scores(scores, LENGTHS, arc_scores=arcs)
    shapes = cls.parameter_shapes()
    generator = torch.Generator().manual_seed(1)
    tables = {part: torch.randn(shape, dtype=torch.double, generator=generator) for part, shape in shapes.items()}
    return cls.from_scores(scores, LENGTHS, **tables)


@pytest.fixture
def scores():
    return torch.randn(2, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_expectation_is_that_of_samples(name, scores):
    torch.manual_seed(0)
    distribution, draw = made(name, scores), Estimator(SAMPLE)
    expected = Estimator().positions(distribution, True)
    assert_close(expected, distribution.position_marginals)
    draws = torch.stack([draw.positions(distribution, True) for _ in range(DRAWS)])
    assert not draws.requires_grad and torch.equal(draws, draws.round())
    assert not draws[:, 1, 2:].any(), "nothing in the padding is selected"
    error = draws.std(0) / DRAWS**0.5
    assert ((draws.mean(0) - expected).abs() <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_straight_through_is_a_sample_with_the_gradient_of_the_expectation(name, scores):
    distribution, upstream = made(name, scores), torch.randn(2, 4, dtype=torch.double)
    torch.manual_seed(3)
    drawn = Estimator(SAMPLE).positions(distribution, True)
    torch.manual_seed(3)
    found = Estimator(STRAIGHT_THROUGH).positions(distribution, True)
    assert torch.equal(found, drawn)
    (gradient,) = torch.autograd.grad((found * upstream).sum(), scores, retain_graph=True)
    (expected,) = torch.autograd.grad((distribution.position_marginals * upstream).sum(), scores)
    assert_close(gradient, expected)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_argmax_is_the_best_structure(name, scores):
    distribution = made(name, scores)
    found = Estimator(ARGMAX).positions(distribution, True)
    assert torch.equal(found, distribution.selected_positions(distribution.argmax)) and not found.requires_grad


def test_parts_are_whole_structures():
    tree = ProjectiveTree(torch.randn(3, 5, 4, requires_grad=True))
    assert torch.equal(Estimator(ARGMAX).parts(tree, True), tree.argmax)
    assert torch.equal(Estimator().parts(tree, True), tree.marginals)
    for name in (SAMPLE, STRAIGHT_THROUGH, RSAMPLE):
        drawn = Estimator(name).parts(tree, True)
        assert tree.support.check(drawn.detach()).all() and drawn.requires_grad == (name != SAMPLE)


def attention(**options):
    torch.manual_seed(0)
    module = StructuredAttention(4, 4, distribution="linear-chain", **options)
    source = module.prepare(torch.randn(2, 5, 4), torch.tensor([5, 3]))
    return module, lambda: module(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)), source)[1]


def multihead(**options):
    torch.manual_seed(0)
    heads = "linear-chain:2,projective-tree:2"
    module = StructuredMultiheadAttention(8, 4, self_attention=True, heads=heads, normalize="none", **options)
    states = torch.randn(5, 2, 8)
    return module, lambda: module(states, states, states, need_head_weights=True)[1]


def parser(**options):
    torch.manual_seed(0)
    estimator = Estimator(options["estimator"], options["generation_estimator"])
    module = SourceAttention(UniformArcs(1, 1, "none"), "spanning-tree", "multi", estimator)
    positions = torch.eye(5).expand(2, -1, -1)
    return module, lambda: module.expect(torch.zeros(5, 2, 1), positions, torch.tensor([4, 3])).vectors


@pytest.mark.parametrize("build", [attention, multihead, parser])
@pytest.mark.parametrize(
    "names", [(SAMPLE, EXPECTATION), (STRAIGHT_THROUGH, ARGMAX), (EXPECTATION, SAMPLE), (RSAMPLE, ARGMAX)]
)
def test_training_and_generation_have_their_own(build, names):
    module, weights = build(estimator=names[0], generation_estimator=names[1])
    for mode, name in zip((True, False), names):
        module.train(mode)
        found = weights().detach()
        is_hard = name != EXPECTATION
        assert torch.equal(found, found.round()) == is_hard
        assert torch.equal(found, weights().detach()) == (name in (EXPECTATION, ARGMAX))


@pytest.mark.parametrize("name", [STRAIGHT_THROUGH, RSAMPLE])
def test_scores_are_trained(name):
    module, weights = multihead(estimator=name)
    weights().square().sum().backward()
    for own, parameter in module.named_parameters():
        if own.startswith(("q_proj.weight", "groups.0", "groups.1.root_key")):
            assert parameter.grad.abs().sum() > 0, own


def test_selecting_nothing_is_no_division_by_nothing(scores):
    """A sample of a chain may select no position: no weight, and the gradient of the marginals."""
    chain = made("sigmoid", scores - 40)
    selected = Estimator(STRAIGHT_THROUGH).positions(chain, True)
    weights = scaled(selected, 1.0, "sum")
    assert not weights.any()
    assert torch.autograd.grad(weights.sum(), scores)[0].isfinite().all()


@pytest.mark.parametrize("names", [("hard", EXPECTATION), (EXPECTATION, "hard")])
def test_other_names_are_refused(names):
    with pytest.raises(ValueError, match=r"estimator is 'hard'; choose one of: expectation, sample, straight-through"):
        Estimator(*names)
    with pytest.raises(
        ValueError, match="estimator is 'rsample', which sigmoid does not have; choose straight-through"
    ):
        StructuredAttention(4, 4, distribution="sigmoid", estimator=RSAMPLE)
    with pytest.raises(ValueError, match="which sigmoid does not have"):
        StructuredMultiheadAttention(8, 2, heads="sigmoid", generation_estimator=RSAMPLE)
    assert set(ESTIMATORS) == {EXPECTATION, SAMPLE, STRAIGHT_THROUGH, RSAMPLE, ARGMAX}
