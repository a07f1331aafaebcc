"""What users of torch.distributions know, and structures as integers: over the cases of :mod:`contract`."""

import math

import pytest
import torch
from contract import CASES, INF, POSITIONS, Exact, close, each_case, on_every_backend, quantity_of, tracked
from torch.distributions import Distribution, Independent, kl_divergence

from fairseq_structattn.distributions import (
    Categorical,
    IndependentHeads,
    LinearChain,
    ProjectiveTree,
    SpanningTree,
)

ITEMS = 3
LENGTHS = torch.tensor([POSITIONS, 0, POSITIONS - 1])


def build(case, with_lengths=True, **options):
    return case.build(case.draw(ITEMS, deviation=2.0), LENGTHS if with_lengths else None, **options)


# The best structures


@on_every_backend
@pytest.mark.parametrize("k", (4, 70))
@pytest.mark.parametrize("kind", ("ordinary", "ties", "forbidden"))
def test_topk_equals_enumeration(case, backend, k, kind):
    potentials = case.draw(ITEMS, deviation=2.0)
    if kind != "ordinary":
        potentials = {name: scores.round() for name, scores in potentials.items()}
    if kind == "forbidden":
        potentials = {name: s.masked_fill(torch.rand(s.shape) < 0.25, -INF) for name, s in potentials.items()}
    potentials = tracked(potentials)
    distribution = case.build(potentials, LENGTHS)
    best = distribution.topk(k)
    assert best.structures.shape == (k,) + distribution.marginals.shape and best.log_probs.shape == (k, ITEMS)
    for i in range(ITEMS):
        item = Exact(case, potentials, i, int(LENGTHS[i]))
        expected = sorted(item.log_probs, reverse=True)[:k]
        close(best.log_probs[:, i], expected + [-INF] * (k - len(expected)), 1e-9)
        log_probs = {tuple(parts.flatten().tolist()): p for parts, p in zip(item.parts(), item.log_probs)}
        found = [tuple(parts.flatten().tolist()) for parts in best.structures[:, i]]
        count = sum(p > -INF for p in expected)
        assert len(set(found[:count])) == count and not any(map(any, found[count:]))
        close(best.log_probs[:count, i], [log_probs[parts] for parts in found[:count]], 1e-9)
    if kind == "ordinary":
        loss = best.log_probs[:2].masked_fill(best.log_probs[:2] == -INF, 0).sum()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, list(potentials.values())))


@on_every_backend
def test_max_is_the_score_of_argmax_and_argmax_its_gradient(case, backend):
    potentials = tracked(case.draw(ITEMS, deviation=2.0))
    distribution, name = case.build(potentials, LENGTHS), list(potentials)[0]
    for i in range(ITEMS):
        item = Exact(case, potentials, i, int(LENGTHS[i]))
        close(distribution.max[i], float(item.best) if item.structures else -INF, 1e-9)
    (gradient,) = torch.autograd.grad(distribution.max.sum(), potentials[name])
    close(gradient, distribution.argmax, 0)
    assert torch.equal(distribution.mode, distribution.argmax)


@each_case
@pytest.mark.parametrize("k", (0, 2.0, True))
def test_topk_of_no_positive_number(case, k):
    with pytest.raises(ValueError, match="k is .*positive integer"):
        build(case).topk(k)


# Structures as integers


@on_every_backend
def test_integers_and_indicators(case, backend):
    distribution = build(case)
    for parts in (distribution.argmax, distribution.sample((2,)), distribution.topk(3).structures):
        integers = distribution.as_integers(parts)
        event = () if case.name == "categorical" else (POSITIONS,)
        assert integers.dtype == torch.long and integers.shape[parts.dim() - len(distribution.event_shape) :] == event
        if event:
            assert integers[..., ~distribution.position_mask].eq(-1).all()
        marks = case.name == "bernoulli" or case.name.startswith("binary-chain")
        nothing = (parts == 0).flatten(-len(distribution.event_shape)).all(-1)
        assert marks or integers[nothing].eq(-1).all()
        assert torch.equal(distribution.as_indicators(integers), parts)
        assert distribution.as_indicators(integers).dtype == distribution.dtype


def test_integers_by_hand():
    assert Categorical(torch.zeros(3)).as_integers(torch.tensor([0.0, 0, 1])) == 2
    chain = LinearChain(torch.zeros(2, 3, 3), torch.zeros(3, 3), torch.tensor([3, 1]), num_states=3)
    states = torch.tensor([[2, 0, 1], [1, 7, -5]])
    assert chain.as_indicators(states).nonzero().tolist() == [[0, 0, 2], [0, 1, 0], [0, 2, 1], [1, 0, 1]]
    assert chain.as_integers(chain.as_indicators(states)).tolist() == [[2, 0, 1], [1, -1, -1]]
    tree = SpanningTree(torch.zeros(4, 3))
    arcs = torch.zeros(4, 3)
    arcs[2, 0] = arcs[0, 1] = arcs[2, 2] = 1
    assert tree.as_integers(arcs).tolist() == [2, 0, 2] and torch.equal(
        tree.as_indicators(torch.tensor([2, 0, 2])), arcs
    )


@pytest.mark.parametrize("case", [c for c in CASES if (c.chain and not c.segments) or c.arcs], ids=lambda c: c.name)
def test_log_prob_of_integers_with_samples_and_broadcasting(case):
    potentials = tracked(case.draw(ITEMS, deviation=2.0))
    distribution = case.build(potentials, LENGTHS)
    log_prob_of = distribution.log_prob_of_heads if case.arcs else distribution.log_prob_of_states
    samples = distribution.sample((2, 4))
    integers = distribution.as_integers(samples)
    close(log_prob_of(integers), distribution._log_prob(samples), 1e-12)
    partly = torch.where(torch.rand(integers.shape) < 0.5, -1, integers)
    found = log_prob_of(partly)
    assert found.shape == (2, 4, ITEMS) and found.requires_grad
    for i, length in enumerate(LENGTHS.tolist()):
        item = Exact(case, potentials, i, length)
        values = [distribution.as_integers(parts.expand(distribution.marginals.shape))[i] for parts in item.parts()]
        for one, log_prob in zip(partly[..., i, :].reshape(-1, POSITIONS), found[..., i].flatten()):
            agree = [((one == value) | (one == -1))[:length].all() for value in values]
            close(log_prob.exp(), sum(p for p, right in zip(item.probs, agree) if right), 1e-9)
    shared = integers[0, 0, 0]
    close(log_prob_of(shared), log_prob_of(shared.expand(ITEMS, -1)), 0)
    assert log_prob_of(torch.full((5, 1, POSITIONS), 9))[..., 0].eq(-INF).all()
    with pytest.raises(ValueError, match=rf"has shape \(4, {POSITIONS}\); it must be \({ITEMS}, {POSITIONS}\)"):
        log_prob_of(torch.zeros(4, POSITIONS).long())
    with pytest.raises(ValueError, match=r"has shape \(1,\)"):
        log_prob_of(torch.zeros(1).long())


# As torch.distributions has it


@each_case
def test_shapes_moments_and_support(case):
    distribution = build(case, False)
    assert isinstance(distribution, Distribution)
    assert distribution.batch_shape + distribution.event_shape == distribution.marginals.shape
    assert distribution.mean is distribution.marginals
    close(distribution.variance, distribution.mean * (1 - distribution.mean), 0)
    close(distribution.perplexity(), distribution.entropy().exp(), 1e-12)
    assert distribution.support.is_discrete and distribution.support.event_dim == len(distribution.event_shape)
    samples = distribution.sample((4,))
    assert distribution.support.check(samples).all() and not distribution.support.check(samples + 0.5).any()
    for name, constraint in distribution.arg_constraints.items():
        assert constraint.check(getattr(distribution, name)).all()
    if distribution.has_rsample:
        assert distribution.support.check(distribution.rsample((2,))).all()
    else:
        with pytest.raises(NotImplementedError):
            distribution.rsample()


@on_every_backend
def test_cross_entropy_and_registered_divergence(case, backend):
    distribution, other = build(case), build(case)
    potentials = [{name: t for name, t in d._given.items()} for d in (distribution, other)]
    for i, length in enumerate(LENGTHS.tolist()):
        item, theirs = (Exact(case, p, i, length) for p in potentials)
        expected = -sum(p * log_q for p, log_q in zip(item.probs, theirs.log_probs) if p > 0)
        close(distribution.cross_entropy(other)[i], expected, 1e-9)
    close(kl_divergence(distribution, other), distribution.cross_entropy(other) - distribution.entropy(), 1e-9)
    assert torch.equal(kl_divergence(distribution, other), distribution.kl(other))


@on_every_backend
def test_generators_govern_samples_and_leave_the_global_one_alone(case, backend):
    distribution, generator = case.build(case.draw(20), None), torch.Generator()
    before, samples = torch.get_rng_state(), []
    for seed in (3, 3, 4):
        samples.append(distribution.sample((2,), generator=generator.manual_seed(seed)))
    assert torch.equal(samples[0], samples[1]) and not torch.equal(samples[0], samples[2])
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(distribution.sample((2,)), samples[2])


@on_every_backend
def test_expand(case, backend):
    potentials = tracked(case.draw(ITEMS))
    distribution = case.build(potentials, LENGTHS)
    expanded = distribution.expand((2, ITEMS))
    assert type(expanded) is type(distribution) and expanded.batch_shape == (2, ITEMS)
    for name in ("log_partition", "marginals", "argmax", "entropy"):
        value = quantity_of(distribution, name)
        close(quantity_of(expanded, name), value.expand((2,) + value.shape), 1e-12)
    assert expanded.log_prob(expanded.sample((4,))).shape == (4, 2, ITEMS)
    (on_first,) = torch.autograd.grad(expanded.marginals.square().sum(), potentials[list(potentials)[0]])
    (once,) = torch.autograd.grad(distribution.marginals.square().sum(), potentials[list(potentials)[0]])
    close(on_first, 2 * once, 1e-10)


@each_case
def test_log_prob_broadcasts(case):
    distribution = build(case, False)
    parts = distribution.argmax
    expected = distribution.log_prob(parts[:1].expand_as(parts))
    close(distribution.log_prob(parts[:1]), expected, 0)
    close(distribution.log_prob(parts[0]), expected, 0)
    with pytest.raises(ValueError, match="parts has shape"):
        distribution.log_prob(parts[:2])


@each_case
def test_what_is_no_structure_raises_where_arguments_are_validated(case, monkeypatch):
    # torch.compile and torchrl turn the default off for the whole process.
    monkeypatch.setattr(Distribution, "_validate_args", True)
    distribution, loose = build(case), build(case, validate_args=False)
    wrong = distribution.sample((2,))
    wrong[1, 2] = 0.5
    with pytest.raises(ValueError, match=r"item \(1, 2\) of the value is none of the .*given as parts 0 and 1"):
        distribution.log_prob(wrong)
    assert loose.log_prob(wrong)[1, 2] == -INF
    assert distribution.log_prob(distribution.sample((2,)))[:, [0, 2]].isfinite().all()
    Distribution.set_default_validate_args(False)
    assert distribution.log_prob(wrong)[1, 2] == -INF
    with pytest.raises(ValueError, match="is none of"):
        build(case, validate_args=True).log_prob(wrong)


@each_case
@pytest.mark.parametrize("number", (math.nan, INF))
def test_potentials_that_are_no_numbers_raise_where_it_is_insisted_on(case, number):
    potentials = case.draw(ITEMS)
    first = list(potentials.values())[0]
    first[1] = number
    case.build(potentials, LENGTHS, validate_args=True)
    first[(2,) + (0,) * (first.dim() - 1)] = number
    with pytest.raises(ValueError, match=r"of item \(2,\) of .* holds NaN or \+inf"):
        case.build(potentials, LENGTHS, validate_args=True)
    assert case.build(potentials, LENGTHS).marginals[2].isnan().any()


def test_representations_tell_shapes_lengths_and_settings():
    chain = LinearChain(torch.zeros(2, 3, 4), torch.zeros(4, 4), torch.tensor([3, 1]), num_states=4)
    assert repr(chain) == (
        "LinearChain(unary: torch.Size([2, 3, 4]), pairwise: torch.Size([4, 4]), lengths: [3, 1], num_states: 4)"
    )
    assert repr(SpanningTree(torch.zeros(4, 3), roots="single")) == (
        "SpanningTree(arc_scores: torch.Size([4, 3]), roots: 'single')"
    )
    assert repr(ProjectiveTree(torch.zeros(4, 3)).support) == "Structures(projective dependency trees over 3 words)"
    assert repr(Categorical(torch.zeros(9, 2), torch.ones(9).long())).endswith("lengths: torch.Size([9]))")


def test_entropy_is_a_method():
    with pytest.raises(AttributeError, match="'method' object|'function' object"):
        _ = Categorical(torch.zeros(3)).entropy.shape


# Other libraries


@each_case
def test_independent_takes_them(case):
    distribution = build(case, False)
    together = Independent(distribution, 1)
    samples = together.sample((4,))
    close(together.log_prob(samples), distribution.log_prob(samples).sum(-1), 1e-12)
    close(together.entropy(), distribution.entropy().sum(), 1e-12)
    close(kl_divergence(together, Independent(build(case, False), 1)).isfinite().double(), 1.0)
    assert together.event_shape == distribution.marginals.shape and together.mode is distribution.argmax
    assert together.support.check(samples).all() and together.expand((2,)).sample().shape == (2,) + samples.shape[1:]


def test_pyro_learns_a_chain():
    pyro = pytest.importorskip("pyro")
    from pyro.distributions.torch_distribution import TorchDistributionMixin

    class PyroChain(LinearChain, TorchDistributionMixin):
        pass

    observed = torch.tensor([[1.0, 1, 0], [1, 1, 0]])
    pyro.clear_param_store()

    def model():
        unary = pyro.param("unary", torch.zeros(3))
        with pyro.plate("sentences", 2):
            return pyro.sample("z", PyroChain(unary, torch.zeros(2, 2)).expand((2,)), obs=observed)

    # -log p(observed) of both sentences; the guide has nothing to say.
    loss = pyro.infer.Trace_ELBO().differentiable_loss(model, lambda: None)
    close(loss, 2 * 3 * math.log(2))
    (gradient,) = torch.autograd.grad(loss, pyro.param("unary").unconstrained())
    close(gradient, torch.tensor([-1.0, -1, 1]))
    trace = pyro.poutine.trace(pyro.poutine.uncondition(model)).get_trace()
    assert trace.nodes["z"]["value"].shape == (2, 3) and trace.log_prob_sum().isfinite()


@pytest.mark.parametrize("kind", ("RANDOM", "MODE", "DETERMINISTIC", "MEAN"))
def test_torchrl_takes_a_tree_for_a_policy(kind):
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from tensordict.nn import InteractionType, ProbabilisticTensorDictModule

    policy = ProbabilisticTensorDictModule(
        in_keys=["arc_scores"],
        out_keys=["action"],
        distribution_class=SpanningTree,
        distribution_kwargs={"roots": "single"},
        default_interaction_type=InteractionType[kind],
        return_log_prob=kind != "MEAN",
    )
    scores = torch.randn(2, 4, 3)
    found = policy(TensorDict({"arc_scores": scores}, [2]))
    tree = SpanningTree(scores, roots="single")
    if kind == "MEAN":
        close(found["action"], tree.marginals)
        return
    close(found["action_log_prob"], tree.log_prob(found["action"]))
    assert kind == "RANDOM" or torch.equal(found["action"], tree.argmax)


def test_heads_of_words_that_are_no_trees_are_structures_of_their_own():
    cycle = torch.tensor([2, 1])
    assert IndependentHeads(torch.zeros(3, 2)).log_prob_of_heads(cycle).isfinite()
    assert SpanningTree(torch.zeros(3, 2)).log_prob_of_heads(cycle) == -INF
