"""What every distribution promises: one template over the cases of :mod:`contract`, and all backends."""

import pytest
import torch
from contract import CASES, INF, POSITIONS, Exact

from fairseq_structattn.distributions import (
    ProjectiveTree,
    SpanningTree,
    finite_masks,
    use_backend,
)
from fairseq_structattn.distributions.kernels import numba_compile, triton_launch

ITEMS = 3
MASKS = (1e4, 1e9, 1e18, torch.finfo(torch.float32).max)
needs_numba = pytest.mark.skipif(not numba_compile.available(), reason="needs numba")


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        chosen = [
            pytest.param(case, backend, id=f"{case.name}-{backend}", marks=[needs_numba] if backend == "cpu" else [])
            for case in CASES
            if getattr(metafunc.function, "concerns", lambda case: True)(case)
            for backend in _backends(case)
        ]
        metafunc.parametrize("case, backend", chosen, indirect=["backend"])


def only(concerns):
    """Decorator: a test of the cases that ``concerns`` is true of."""

    def decorate(test):
        test.concerns = concerns
        return test

    return decorate


def _backends(case):
    """Those that differ for a case: in closed form, nothing does."""
    if "logits" in case.shapes or case.name == "independent-heads":
        return ("auto",)
    # A binary chain has a recursion of its own where there is no compiler.
    return ("reference", "cpu") + (("without-numba",) if case.name.startswith("binary") else ())


@pytest.fixture
def backend(request, monkeypatch):
    if request.param == "without-numba":
        monkeypatch.setattr(numba_compile, "available", lambda: False)
        yield request.param
        return
    with use_backend(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(actual, expected, tolerance=2e-6):
    # Of what the dtype cannot hold, infinity is right.
    expected = torch.as_tensor(expected, dtype=torch.double).to(actual.dtype)
    torch.testing.assert_close(actual.detach().double(), expected.double(), rtol=tolerance, atol=tolerance)


def tracked(potentials):
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in potentials.items()}


def check_values(distribution, exact, tolerance=2e-6, entropy_tolerance=None):
    """All that an instance tells, against enumeration of its items."""
    samples = distribution.sample((20,))
    assert samples.shape == (20,) + distribution.marginals.shape and not samples.requires_grad
    for i, item in enumerate(exact):
        close(distribution.log_partition[i], item.log_partition, tolerance)
        close(distribution.marginals[i], item.marginals, tolerance)
        close(distribution.entropy[i], item.entropy, entropy_tolerance or tolerance)
        parts = item.parts()
        likely = [k for k, log_p in enumerate(item.log_probs) if log_p > -INF]
        if not likely:
            assert not distribution.argmax[i].any() and not samples[:, i].any()
            continue
        most = max(item.log_probs)
        best = [k for k in likely if item.log_probs[k] >= most - 1e-5 * max(1, abs(most))]
        assert any(torch.equal(distribution.argmax[i].double(), parts[k]) for k in best)
        for sample in samples[:, i]:
            assert any(torch.equal(sample.double(), parts[k]) for k in likely if item.probs[k] > 1e-30)
    for k in range(max(len(item.structures) for item in exact)):
        structure = torch.stack([item.parts()[k % len(item.structures)] if item.structures else
                                 torch.zeros(item.shape) for item in exact])  # fmt: skip
        log_prob = distribution.log_prob(structure)
        for i, item in enumerate(exact):
            if item.structures:
                close(log_prob[i], item.log_probs[k % len(item.structures)], tolerance)


def check_gradients(case, distribution, potentials, exact, tolerance=2e-6):
    on_log_partition = torch.randn(len(exact))
    on_marginals = torch.randn(distribution.marginals.shape).to(distribution.marginals)
    possible = torch.tensor([item.log_partition > -INF for item in exact])
    loss = (distribution.log_partition.masked_fill(~possible, 0) * on_log_partition).sum()
    loss = loss + (distribution.marginals * on_marginals).sum()
    names = list(potentials)
    actual = dict(zip(names, torch.autograd.grad(loss, [potentials[name] for name in names])))
    expected = [item.gradients(on_log_partition[i].item(), on_marginals[i]) for i, item in enumerate(exact)]
    for name in names:
        each = torch.stack([gradients[name] for gradients in expected])
        close(actual[name], each.sum(0) if name in case.shared else each, tolerance)


# Every member, with and without gradients, lengths and impossible items


@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("with_lengths", (False, True))
def test_every_member(case, backend, needs_grad, with_lengths):
    potentials = case.draw(ITEMS, 2.0)
    lengths = torch.tensor([POSITIONS, 0, POSITIONS - 1]) if with_lengths else None
    potentials = tracked(potentials) if needs_grad else potentials
    distribution, other = case.build(potentials, lengths), case.build(case.draw(ITEMS), lengths)
    exact = [Exact(case, potentials, i, POSITIONS if lengths is None else int(lengths[i])) for i in range(ITEMS)]
    check_values(distribution, exact, 1e-9)
    assert distribution.support_size.tolist() == [len(item.structures) for item in exact]
    exact_other = [
        Exact(case, {name: t for name, t in other._given.items()}, i, int(other.lengths[i])) for i in range(ITEMS)
    ]
    close(distribution.kl(other), [a.kl(b) for a, b in zip(exact, exact_other)], 1e-9)
    if needs_grad:
        check_gradients(case, distribution, potentials, exact, 1e-9)


@only(lambda case: "pairwise" in case.shapes)
@pytest.mark.parametrize("needs_grad", (False, True))
def test_members_of_chains(case, backend, needs_grad):
    lengths, potentials = torch.tensor([POSITIONS, 0, POSITIONS - 1]), case.draw(ITEMS, 2.0)
    potentials = tracked(potentials) if needs_grad else potentials
    edges = case.build(potentials, lengths).edge_marginals
    assert edges.requires_grad == needs_grad
    for i in range(ITEMS):
        expected, item = torch.zeros(edges.shape[1:]), Exact(case, potentials, i, int(lengths[i]))
        for structure, p in zip(item.structures, item.probs):
            states = [index[-2:] for name, index in structure.scores if name == "pairwise"]
            for edge, (a, b) in enumerate(states):
                expected[edge, a, b] += p
        close(edges[i], expected)


@only(lambda case: "arc_scores" in case.shapes)
@pytest.mark.parametrize("needs_grad", (False, True))
def test_members_of_arcs(case, backend, needs_grad):
    potentials = case.draw(ITEMS, 2.0)
    potentials = tracked(potentials) if needs_grad else potentials
    distribution = case.build(potentials, None)
    close(distribution.position_marginals, distribution.marginals[..., 1:, :].sum(-1), 1e-12)
    # All heads known, and all but that of the second word.
    for known in ([0, 1, 2], [0, 2]):
        heads = distribution.argmax.argmax(-2)
        heads[:, [word for word in range(POSITIONS) if word not in known]] = -1
        log_prob = distribution.log_prob_of_heads(heads)
        assert log_prob.requires_grad == needs_grad
        for i in range(ITEMS):
            item = Exact(case, potentials, i)
            agree = [all(s.ones[m][0] == heads[i, m] for m in known) for s in item.structures]
            close(log_prob[i].exp(), sum(p for p, right in zip(item.probs, agree) if right), 1e-9)


@only(lambda case: not case.name.startswith("chain-of"))  # positions of a chain of states are not selected
@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("with_lengths", (False, True))
def test_members_that_learn_from_alignments(case, backend, needs_grad, with_lengths):
    potentials = case.draw(ITEMS)
    potentials = tracked(potentials) if needs_grad else potentials
    lengths = torch.tensor([POSITIONS, 0, POSITIONS - 1]) if with_lengths else None
    distribution = case.build(potentials, lengths)
    alignment = torch.tensor([[0.0, 1, 0], [0, 0, 0], [1, 0, 0]])
    log_prob = distribution.alignment_log_prob(alignment)
    assert log_prob.shape == (ITEMS,) and log_prob.requires_grad == needs_grad
    assert log_prob[1] == 0 and (log_prob[[0, 2]] < 0).all()
    if "arc_scores" in case.shapes:
        weights = distribution.position_marginals
        expected = (alignment * (weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)).clamp(min=1e-9).log()).sum(-1)
    else:
        expected = distribution.log_prob(alignment).masked_fill(torch.tensor([False, True, False]), 0)
    close(log_prob, expected.detach(), 1e-9)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_members_have_the_dtype_of_the_potentials(case, backend, dtype):
    potentials = tracked(case.draw(ITEMS, dtype=dtype))
    distribution = case.build(potentials, None)
    for name in ("log_partition", "marginals", "argmax", "entropy"):
        assert getattr(distribution, name).dtype == dtype, name
    assert distribution.sample().dtype == distribution.log_prob(distribution.sample()).dtype == dtype
    assert distribution.kl(distribution).dtype == dtype
    (distribution.marginals.sum() + distribution.entropy.sum() + distribution.log_partition.sum()).backward()
    assert all(tensor.grad.dtype == dtype and torch.isfinite(tensor.grad).all() for tensor in potentials.values())


# Finite masks


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sign", (-1, 1))
def test_finite_masks(case, backend, mask, sign):
    """Few or many masks, in place of scores or added to them: of some items, each structure needs one."""
    items, potentials = 8, {}
    for name, scores in case.draw(items, dtype=torch.float32).items():
        beside = (slice(None),) + (None,) * (scores.dim() - 1)
        share, added = torch.arange(len(scores)) % 3 / 3, torch.arange(len(scores)) % 2 == 0
        masked = torch.rand(scores.shape) < share[beside]
        masks = torch.where(masked, torch.tensor(sign * mask), torch.zeros(()))
        potentials[name] = torch.where(masked & ~added[beside], masks, scores + masks)
    potentials = tracked(potentials)
    distribution = case.build(potentials, None)
    exact = [Exact(case, potentials, i) for i in range(items)]
    check_values(distribution, exact, 4e-6)
    check_gradients(case, distribution, potentials, exact, 1e-5)


@pytest.mark.parametrize("deviation", (1e-30, 1e-5, 1e3, 1e5, 1e7, 1e12, 1e30, 1e38))
def test_any_range(case, backend, deviation):
    drawn = case.draw(ITEMS, dtype=torch.float32)
    potentials = tracked({name: scores.clamp(-3, 3) * deviation for name, scores in drawn.items()})
    exact = [Exact(case, potentials, i) for i in range(ITEMS)]
    # Of sums of scores of 1e12, float64 has four digits behind the point.
    tolerance = max(4e-6, 1e-14 * deviation) if deviation < 1e12 else 4e-6
    distribution = case.build(potentials, None)
    check_values(distribution, exact, tolerance)
    check_gradients(case, distribution, potentials, exact, tolerance)


@pytest.mark.parametrize("mask", MASKS[1:])
def test_masks_that_nobody_sees(case, backend, mask, monkeypatch):
    """As on a GPU, where values are not looked at: right as long as some structure needs no mask."""
    monkeypatch.setattr(finite_masks, "readable", lambda tensor: False)
    potentials = {name: s.to(torch.float32) for name, s in case.draw(20).items()}
    for name, scores in list(potentials.items())[:1]:
        potentials[name] = torch.where(torch.rand(scores.shape) < 0.3, torch.tensor(-mask), scores)
    potentials, exact = tracked(potentials), [Exact(case, potentials, i) for i in range(20)]
    needless = torch.tensor([item.log_partition > -1e4 for item in exact])
    assert needless.sum() > 4
    distribution = case.build(potentials, None)
    for i in needless.nonzero().squeeze(1).tolist():
        close(distribution.log_partition[i], exact[i].log_partition, 4e-6)
        close(distribution.marginals[i], exact[i].marginals, 4e-6)
        close(distribution.entropy[i], exact[i].entropy, 4e-6)
        assert any(torch.equal(distribution.argmax[i].double(), parts) for parts in exact[i].parts())


def test_masks_of_float64(case, backend):
    smallest = torch.finfo(torch.double).min
    potentials = {name: torch.where(torch.rand(s.shape) < 0.3, smallest, s) for name, s in case.draw(ITEMS).items()}
    distribution = case.build(tracked(potentials), None)
    exact = [Exact(case, potentials, i) for i in range(ITEMS)]
    for i, item in enumerate(exact):
        close(distribution.marginals[i], item.marginals, 1e-7)
        close(distribution.entropy[i], item.entropy, 1e-7)


# Rounding


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("deviation, offset", ((1.0, 0.0), (1.0, 1e3), (30.0, -1e3), (1e3, 0.0), (1e3, 1e3)))
def test_nothing_is_lost_to_cancellation(case, backend, dtype, deviation, offset):
    potentials = case.draw(20, deviation, offset, dtype)
    distribution, same = (case.build(tracked(potentials), None) for _ in range(2))
    assert (distribution.entropy >= 0).all()
    assert (distribution.log_prob(distribution.sample((50,))) <= 0).all()
    assert (distribution.log_prob(distribution.argmax) <= 0).all()
    divergence = distribution.kl(same)
    assert (divergence >= 0).all() and (divergence < 1e-6).all()
    digits = {torch.float32: 4e-7, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    for i in range(3):
        item = Exact(case, potentials, i)
        close(distribution.entropy[i], item.entropy, digits)
        close(distribution.marginals[i], item.marginals, digits)


# What is no structure


def test_what_is_no_structure_has_no_probability(case, backend):
    potentials = tracked(case.draw(ITEMS))
    lengths = torch.tensor([POSITIONS, POSITIONS - 1, 1])
    distribution = case.build(potentials, lengths)
    good = distribution.argmax
    for number in (0.5, 2.0, -1.0, float("nan"), INF):
        bad = good.clone()
        bad[(slice(None), 0) + (0,) * (bad.dim() - 2)] = number
        log_prob = distribution.log_prob(bad)
        assert log_prob.tolist() == [-INF] * ITEMS, number
        (gradient,) = torch.autograd.grad(log_prob.sum(), list(potentials.values())[:1], retain_graph=True)
        assert not gradient.isnan().any()
    assert torch.isfinite(distribution.log_prob(good)).all()
    padded = good.clone().masked_fill(~distribution._real_parts(), float("nan"))
    assert torch.equal(distribution.log_prob(padded), distribution.log_prob(good))


@pytest.mark.parametrize("cls", (ProjectiveTree, SpanningTree))
@pytest.mark.parametrize("choice", ("reference", pytest.param("cpu", marks=needs_numba)))
def test_divergence_from_trees_of_a_single_root(cls, choice):
    scores = torch.randn(3, 4, 3)
    # A single word may be the root's child: both have the same trees.
    scores[2, 0, 1:] = -INF
    with use_backend(choice):
        multi, single = cls(scores), cls(scores, roots="single")
        assert multi.kl(single)[:2].tolist() == [INF, INF]
        close(multi.kl(single)[2], 0.0)
        multi, single = (
            [Exact(case, {"arc_scores": scores}, i) for i in range(3)]
            for roots in ("multi", "single")
            for case in CASES
            if case.name == f"{'projective' if cls is ProjectiveTree else 'spanning'}-{roots}"
        )
        close(cls(scores, roots="single").kl(cls(scores)), [a.kl(b) for a, b in zip(single, multi)])


def test_divergence_from_what_is_forbidden(case, backend):
    potentials = case.draw(ITEMS)
    name = list(potentials)[0]
    forbidden = {key: tensor.clone() for key, tensor in potentials.items()}
    forbidden[name][(0,) + (0,) * (forbidden[name].dim() - 1)] = -INF
    all_allowed, some = case.build(potentials, None), case.build(forbidden, None)
    assert all_allowed.kl(some).tolist() == [INF, 0, 0]
    assert torch.isfinite(some.kl(all_allowed)).all()


# NaN, +inf, and potentials that change


@pytest.mark.parametrize("number", (float("nan"), INF))
def test_an_item_that_is_no_number_leaves_the_others_alone(case, backend, number):
    potentials = {name: t.clone() for name, t in case.draw(ITEMS).items()}
    healthy = case.build(tracked(potentials), None)
    broken = {name: t.clone() for name, t in potentials.items()}
    name = list(potentials)[0]
    broken[name][(1,) + (0,) * (broken[name].dim() - 2) + (1,)] = number
    broken = tracked(broken)
    distribution, others = case.build(broken, None), [0, 2]
    results = {key: getattr(distribution, key) for key in ("log_partition", "marginals", "entropy", "argmax")}
    results["log_prob"] = distribution.log_prob(healthy.argmax)
    results["kl"], results["kl_to"] = distribution.kl(healthy), healthy.kl(distribution)
    results["sample"] = distribution.sample()
    for key, result in results.items():
        real = distribution._real_parts()[1] if result.dim() > 1 else ...
        assert result[1][real].isnan().all(), key
        assert not result[others].isnan().any(), key
    for key in ("log_partition", "marginals", "entropy", "argmax"):
        close(results[key][others], getattr(healthy, key)[others], 1e-9)
    loss = results["log_partition"].sum() + (results["marginals"] ** 2).sum() + results["entropy"].sum()
    gradients = dict(zip(broken, torch.autograd.grad(loss, list(broken.values()))))
    assert gradients[name][1].isnan().any()
    for key in set(gradients) - set(case.shared):
        assert torch.isfinite(gradients[key][others]).all(), key


def test_potentials_changed_in_place_are_an_error(case, backend):
    potentials = case.draw(ITEMS)
    distribution = case.build(potentials, None)
    before = distribution.marginals
    name = list(potentials)[-1]
    potentials[name] += 1
    assert distribution.marginals is before
    for compute in (
        lambda: distribution.entropy,
        lambda: distribution.sample(),
        lambda: distribution.log_prob(before.round()),
        lambda: case.build(case.draw(ITEMS), None).kl(distribution),
    ):
        with pytest.raises(RuntimeError, match=f"{name} changed in place.*make a new one"):
            compute()


def test_potentials_changed_before_anything_is_computed(case, backend):
    potentials = case.draw(ITEMS)
    distribution = case.build(potentials, None)
    for tensor in potentials.values():
        tensor += torch.randn(tensor.shape)
    check_values(distribution, [Exact(case, potentials, i) for i in range(ITEMS)], 1e-9)


# Kernels for GPUs, in Triton's interpreter: slow, so that only little is asked of them

interpreted = pytest.mark.skipif(
    not (triton_launch.available() and triton_launch.interpreted()), reason="needs Triton's interpreter"
)


@interpreted
@pytest.mark.parametrize("case", [c for c in CASES if c.on_gpu], ids=[c.name for c in CASES if c.on_gpu])
@pytest.mark.parametrize("kind", ("ordinary", "masks", "masks that nobody sees"))
def test_kernels_for_gpus(case, kind, monkeypatch):
    potentials = case.draw(2, dtype=torch.float32)
    if kind == "masks that nobody sees":
        monkeypatch.setattr(finite_masks, "readable", lambda tensor: False)
        for scores in list(potentials.values())[:1]:
            scores[(slice(None), 1) + (0,) * (scores.dim() - 2)] = -MASKS[-1]
    if kind == "masks":
        potentials = {name: torch.where(torch.rand(s.shape) < 0.3, -MASKS[-1], s) for name, s in potentials.items()}
    potentials = tracked(potentials)
    exact = [Exact(case, potentials, i) for i in range(2)]
    with use_backend("cuda"):
        distribution = case.build(potentials, None)
        check_values(distribution, exact, 1e-5)
        check_gradients(case, distribution, potentials, exact, 1e-5)
        assert (distribution.entropy >= 0).all() and (distribution.kl(distribution) == 0).all()
