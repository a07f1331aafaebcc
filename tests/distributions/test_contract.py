"""What every distribution promises: one template over the cases of :mod:`contract`, and all backends."""

import threading

import pytest
import torch
from contract import (
    CASES,
    INF,
    OWN_NAMES,
    POSITIONS,
    Exact,
    close,
    needs_numba,
    on_backends_of,
    on_every_backend,
    on_kernels,
    outputs,
    quantity_of,
    tracked,
    with_the_paper,
)

from fairseq_structattn.distributions import (
    ProjectiveTree,
    SpanningTree,
    SparseCategorical,
    finite_masks,
    get_distribution,
    use_backend,
)

ITEMS = 3
LENGTHS = torch.tensor([POSITIONS, 0, POSITIONS - 1])
QUANTITIES = ("log_partition", "marginals", "argmax", "entropy")
MASKS = (1e4, 1e9, 1e18, torch.finfo(torch.float32).max)


def test_every_registered_distribution_is_a_case():
    tested = {type(case.build(case.draw(1), None)) for case in CASES}
    ours = map(get_distribution, OWN_NAMES)
    # test_sparse has what holds of distributions that are no exponential families.
    assert {cls for cls in ours if not issubclass(cls, SparseCategorical)} <= tested


def check_values(distribution, exact, tolerance=2e-6, entropy_tolerance=None):
    """All that an instance tells, against enumeration of its items."""
    samples = distribution.sample((20,))
    assert samples.shape == (20,) + distribution.marginals.shape and not samples.requires_grad
    for i, item in enumerate(exact):
        close(distribution.log_partition[i], item.log_partition, tolerance)
        close(distribution.marginals[i], item.marginals, tolerance)
        if hasattr(distribution, "edge_marginals"):
            close(distribution.edge_marginals[i], item.edge_marginals, tolerance)
        close(distribution.entropy()[i], item.entropy, entropy_tolerance or tolerance)
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


def check_gradients(case, distribution, potentials, exact, tolerance=2e-6, beside=0.0):
    """Of all outputs, for upstream gradients that are ``beside`` where a part is forbidden."""
    on_log_partition = torch.randn(len(exact))
    upstream = [torch.randn(output.shape).to(output) for output in outputs(distribution)[1:]]
    possible = torch.tensor([item.log_partition > -INF for item in exact])
    results = (distribution.log_partition.masked_fill(~possible, 0) * on_log_partition).sum()
    expected = [item.gradients(on_log_partition[i].item(), *(g[i] for g in upstream)) for i, item in enumerate(exact)]
    if case.arcs:
        upstream[0] = upstream[0].masked_fill(potentials["arc_scores"].detach() == -INF, beside)
    names = list(potentials)
    actual = torch.autograd.grad(
        [results] + outputs(distribution)[1:],
        [potentials[name] for name in names],
        [torch.ones_like(results)] + upstream,
    )
    for name, gradient in zip(names, actual):
        each = torch.stack([gradients[name] for gradients in expected])
        close(gradient, each.sum(0) if name in case.shared else each, tolerance)


def loss_of(distribution, upstream=1.0):
    """A scalar made of all outputs."""
    finite = distribution.log_partition.masked_fill(distribution.log_partition == -INF, 0)
    return finite.sin().sum() + sum((output.square() * upstream).sum() for output in outputs(distribution)[1:])


# Every member, with and without gradients, lengths and impossible items


@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("with_lengths", (False, True))
@with_the_paper
def test_every_member(case, backend, needs_grad, with_lengths):
    potentials = case.draw(ITEMS, deviation=2.0)
    lengths = LENGTHS if with_lengths else None
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


@with_the_paper
@pytest.mark.parametrize("deviation", (1.0, 300.0))
def test_forbidden_parts(case, backend, deviation):
    """Items with and without a structure; what comes for a forbidden part is of no consequence."""
    items, potentials = 9, case.draw(9, deviation=deviation)
    for name, scores in potentials.items():
        forbidden = torch.rand(scores.shape) < (0.1 if name in case.shared else 0.45)
        # Of the last item, nothing is possible where something has to be chosen.
        forbidden[-1] |= name not in case.shared
        potentials[name] = scores.masked_fill(forbidden, -INF)
    potentials = tracked(potentials)
    exact = [Exact(case, potentials, i) for i in range(items)]
    distribution, other = case.build(potentials, None), case.build(case.draw(items), None)
    check_values(distribution, exact, 1e-9, 1e-10 * max(deviation, 10))
    lost = backend == "cpu" or case.name.startswith("spanning")
    check_gradients(case, distribution, potentials, exact, 1e-9, INF if case.arcs and lost else 0.0)
    impossible = torch.tensor([item.log_partition == -INF for item in exact])
    assert impossible.any() or case.name in ("bernoulli", "binary-chain", "binary-chain-per-edge")
    assert distribution.kl(other)[impossible].eq(0).all() and other.kl(distribution)[impossible].eq(INF).all()


@on_every_backend
def test_gradients_of_what_is_made_of_outputs(case, backend):
    potentials, others = tracked(case.draw(2)), tracked(case.draw(2))
    lengths = torch.tensor([POSITIONS, POSITIONS - 1])

    def quantities(*tensors):
        half = len(tensors) // 2
        one, other = (case.build(dict(zip(potentials, part)), lengths) for part in (tensors[:half], tensors[half:]))
        return one.kl(other), one.cross_entropy(other), one.log_prob(one.argmax), one.entropy(), one.max

    assert torch.autograd.gradcheck(quantities, (*potentials.values(), *others.values()), fast_mode=True)


@on_every_backend
def test_each_output_alone_has_its_gradient(case, backend):
    potentials = tracked(case.draw(ITEMS))
    distribution, leaves = case.build(potentials, LENGTHS), list(potentials.values())
    values = [torch.where(v == -INF, torch.zeros_like(v), v) for v in outputs(distribution)]
    upstream = [torch.randn(value.shape).double() for value in values]

    def gradients(values, upstream):
        found = torch.autograd.grad(values, leaves, upstream, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves)]

    each = [gradients([value], [g]) for value, g in zip(values, upstream)]
    for together, alone in zip(gradients(values, upstream), zip(*each)):
        close(together, sum(alone), 1e-12)
    # The gradient of a sum is one number, repeated.
    for value, ones in zip(values, map(torch.ones_like, values)):
        for one, other in zip(gradients([value.sum()], [torch.ones(()).double()]), gradients([value], [ones])):
            close(one, other, 1e-12)


@on_backends_of(lambda case: case.arcs)
def test_what_all_heads_of_a_word_gain_changes_nothing_but_log_partition(case, backend):
    scores, gains = case.draw(ITEMS)["arc_scores"], torch.tensor([90.0, -90.0, 45.0]).double()
    plain, shifted = (tracked({"arc_scores": each}) for each in (scores, scores + gains))
    one, other = (case.build(potentials, None) for potentials in (plain, shifted))
    close(other.log_partition, one.log_partition + gains.sum(), 1e-10)
    close(other.marginals, one.marginals, 1e-10)
    first, second = (
        torch.autograd.grad(tree.marginals.square().sum(), potentials["arc_scores"])[0]
        for tree, potentials in ((one, plain), (other, shifted))
    )
    close(second, first, 1e-10)


@on_backends_of(lambda case: case.arcs)
def test_position_marginals_of_trees_are_expected_dependents(case, backend):
    distribution = case.build(case.draw(ITEMS), LENGTHS)
    close(distribution.position_marginals, distribution.marginals[..., 1:, :].sum(-1), 1e-12)


# Positions of a chain of states are not selected, nor are those of segments with a single label.
@on_backends_of(lambda case: not case.name.startswith(("chain-of", "segments-per-edge")))
@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("with_lengths", (False, True))
def test_members_that_learn_from_alignments(case, backend, needs_grad, with_lengths):
    potentials = case.draw(ITEMS)
    potentials = tracked(potentials) if needs_grad else potentials
    distribution = case.build(potentials, LENGTHS if with_lengths else None)
    alignment = torch.tensor([[0.0, 1, 0], [0, 0, 0], [1, 0, 0]])
    log_prob = distribution.alignment_log_prob(alignment)
    assert log_prob.shape == (ITEMS,) and log_prob.requires_grad == needs_grad
    assert log_prob[1] == 0 and (log_prob[[0, 2]] < 0).all()
    if case.segments:
        expected = distribution.log_prob_of_labels(alignment.long())
        expected = expected.masked_fill(torch.tensor([False, True, False]), 0)
    elif case.arcs or case.span or case.spans:
        weights = distribution.position_marginals
        expected = (alignment * (weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)).clamp(min=1e-9).log()).sum(-1)
    else:
        expected = distribution._log_prob(alignment).masked_fill(torch.tensor([False, True, False]), 0)
    close(log_prob, expected.detach(), 1e-9)


@on_every_backend
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_members_have_the_dtype_of_the_potentials(case, backend, dtype):
    potentials = tracked(case.draw(ITEMS, dtype=dtype))
    distribution = case.build(potentials, None)
    for name in ("log_partition", "marginals", "argmax", "entropy"):
        assert quantity_of(distribution, name).dtype == dtype, name
    assert distribution.sample().dtype == distribution.log_prob(distribution.sample()).dtype == dtype
    assert distribution.kl(distribution).dtype == dtype
    (distribution.marginals.sum() + distribution.entropy().sum() + distribution.log_partition.sum()).backward()
    assert all(tensor.grad.dtype == dtype and torch.isfinite(tensor.grad).all() for tensor in potentials.values())


# Padding, batches, layouts and modes


def garbage_in_padding(case, distribution, tensors, garbage):
    """Copies of tensors shaped like the potentials, or the outputs, with ``garbage`` wherever there is padding."""
    real = distribution.position_mask
    where = {"pairwise": ~real[..., 1:, None, None], "start": ~real.any(-1, True), "end": ~real.any(-1, True)}
    first = list(case.shapes(POSITIONS))[0]
    result = {}
    for name, tensor in tensors.items():
        if name in case.shared:
            result[name] = tensor.clone()
        else:
            result[name] = tensor.masked_fill(~distribution._real_parts() if name == first else where[name], garbage)
    return result


@with_the_paper
@pytest.mark.parametrize("garbage", (float("nan"), INF, -INF))
def test_padding_reaches_neither_values_nor_gradients(case, backend, garbage):
    lengths, potentials = torch.tensor([0, 1, 2, 3]), case.draw(4)
    clean = case.build(tracked(potentials), lengths)
    poisoned = case.build(tracked(garbage_in_padding(case, clean, potentials, garbage)), lengths)
    upstream = {name: torch.randn(tensor.shape).double() for name, tensor in potentials.items()}
    # No more than the marginals: an infinite upstream gradient may come of their logarithm, for example.
    (first, *_), results = upstream, []
    for distribution, on_marginals in (
        (clean, upstream[first]),
        (poisoned, garbage_in_padding(case, clean, {first: upstream[first]}, garbage)[first]),
    ):
        tensors = list(distribution._given.values())
        gradients = torch.autograd.grad(
            distribution.marginals, tensors, on_marginals, retain_graph=True, allow_unused=True
        )
        more = torch.autograd.grad(loss_of(distribution) + distribution.entropy().sum(), tensors)
        values = [quantity_of(distribution, name) for name in QUANTITIES] + [distribution.kl(clean)]
        results.append(values + outputs(distribution) + [g for g in gradients if g is not None] + list(more))
    assert all(map(torch.equal, *results))
    padding = ~clean._real_parts()
    for value in (poisoned.marginals, poisoned.argmax, poisoned.sample((3,)), results[1][-len(potentials)]):
        assert value.masked_select(padding).eq(0).all()
    structure = clean.argmax.masked_fill(padding, garbage)
    assert torch.equal(clean._log_prob(structure), clean._log_prob(clean.argmax))


@on_every_backend
def test_items_do_not_depend_on_each_other(case, backend):
    """Alone, in another order, in a batch of another shape, beside extreme ones, and with lengths that broadcast."""
    lengths, n = torch.tensor([5, 1, 3, 0, 2, 5]), 5
    potentials = case.draw(6, n=n, deviation=3.0)
    first = list(potentials)[0]
    potentials[first][5] *= 500

    def everything(distribution):
        values = [quantity_of(distribution, name) for name in QUANTITIES] + outputs(distribution)
        return values + [torch.autograd.grad(loss_of(distribution), distribution._given[first])[0]]

    def pick(rows, shape=None):
        chosen = {k: t if k in case.shared else t[rows] for k, t in potentials.items()}
        if shape:
            chosen = {k: t if k in case.shared else t.reshape(shape + t.shape[1:]) for k, t in chosen.items()}
        return everything(case.build(tracked(chosen), lengths[rows].reshape(shape) if shape else lengths[rows]))

    together, order = pick(torch.arange(6)), torch.tensor([3, 1, 5, 0, 2, 4])
    for value, shuffled, stacked in zip(together, pick(order), pick(torch.arange(6), (2, 3))):
        close(shuffled, value[order], 1e-13)
        close(stacked.flatten(0, 1), value, 1e-13)
    for i, length in enumerate(lengths.tolist()):
        alone = {k: t if k in case.shared else t[i : i + 1] for k, t in potentials.items()}
        shapes = case.shapes(length)
        short = {k: t if k in case.shared else t[tuple(map(slice, (1,) + shapes[k]))] for k, t in alone.items()}
        for value, own in zip(together, everything(case.build(tracked(short), None))):
            close(value[i][tuple(map(slice, own.shape[1:]))], own[0], 1e-12)
    wide = {k: t if k in case.shared else t[:4].reshape((2, 2) + t.shape[1:]) for k, t in potentials.items()}
    broadcast, repeated = (
        everything(case.build(tracked(wide), each))
        for each in (torch.tensor([[4], [2]]), torch.tensor([[4, 4], [2, 2]]))
    )
    assert all(map(torch.equal, broadcast, repeated))


@on_every_backend
@pytest.mark.parametrize("batch, n", (((), 3), ((0,), 3), ((2,), 0), ((0,), 0), ((2, 3), 1), ((2, 0, 2), 2)))
def test_any_shape(case, backend, batch, n):
    potentials = tracked(case.draw(*batch, n=n))
    distribution = case.build(potentials, None)
    shape = tuple(list(potentials.values())[0].shape)
    samples = distribution.sample((2, 1))
    assert distribution.marginals.shape == distribution.argmax.shape == shape and samples.shape == (2, 1) + shape
    for value in (distribution.log_partition, distribution.entropy(), distribution.support_size, distribution.max):
        assert value.shape == batch
    assert distribution._log_prob(samples).shape == (2, 1) + batch
    assert distribution.kl(distribution).shape == batch and distribution.topk(2).structures.shape == (2,) + shape
    possible = distribution.support_size > 0
    assert distribution.log_partition[~possible].eq(-INF).all() and distribution.marginals[~possible].eq(0).all()
    assert torch.equal(distribution.log_prob(samples).isfinite().all(0)[0], possible)
    gradients = torch.autograd.grad(loss_of(distribution), list(potentials.values()), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)


@on_every_backend
def test_memory_layouts(case, backend):
    """Transposed and expanded tensors, of potentials and of upstream gradients."""
    potentials = case.draw(ITEMS)

    def transposed(tensor):
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)

    for view in (transposed, lambda tensor: tensor[:1].expand_as(tensor)):
        views = {name: t if name in case.shared else view(t) for name, t in potentials.items()}
        results = []
        for tensors in (views, {name: tensor.contiguous() for name, tensor in views.items()}):
            leaves = [tensor.detach().requires_grad_() for tensor in tensors.values()]
            distribution = case.build(dict(zip(tensors, leaves)), None)
            torch.manual_seed(1)
            upstream = transposed(torch.randn(distribution.marginals.shape).double())
            values = outputs(distribution) + [distribution.argmax, distribution.sample((2,))]
            gradients = torch.autograd.grad(distribution.marginals, leaves, upstream, allow_unused=True)
            results.append(values + [gradient for gradient in gradients if gradient is not None])
        for one, other in zip(*results):
            close(one, other, 1e-13)


@on_every_backend
@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.double))
def test_tensors_and_flags_of_the_caller_are_untouched(case, backend, needs_grad, dtype):
    potentials = {name: tensor.requires_grad_(needs_grad) for name, tensor in case.draw(ITEMS, dtype=dtype).items()}
    before, lengths = {name: tensor.detach().clone() for name, tensor in potentials.items()}, LENGTHS.clone()
    distribution = case.build(potentials, lengths)
    for name in QUANTITIES + ("max",):
        assert quantity_of(distribution, name).requires_grad == (needs_grad and name != "argmax"), name
    assert not distribution.sample((2,)).requires_grad and not distribution.topk(2).structures.requires_grad
    if needs_grad:
        torch.autograd.grad(loss_of(distribution), list(potentials.values()))
    assert torch.equal(lengths, LENGTHS)
    for name, tensor in potentials.items():
        assert torch.equal(tensor, before[name]) and tensor.requires_grad == needs_grad and tensor.grad is None


@on_every_backend
def test_modes_of_autograd(case, backend):
    potentials = tracked(case.draw(ITEMS))
    distribution = case.build(potentials, LENGTHS)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not distribution.marginals.requires_grad and not distribution.entropy().requires_grad
            inside = case.build({name: tensor * 1 for name, tensor in potentials.items()}, LENGTHS)
            values = [quantity_of(inside, name) for name in QUANTITIES] + outputs(inside)
            assert inside.sample((2,)).shape == (2,) + distribution.marginals.shape
        for value, expected in zip(values, [quantity_of(distribution, n) for n in QUANTITIES] + outputs(distribution)):
            close(value, expected, 1e-12)
    # What was seen without a gradient does not cut off a later loss.
    assert distribution.marginals.requires_grad and distribution.marginals is distribution.marginals
    name = list(potentials)[-1]
    only_one = case.build({key: t if key == name else t.detach() for key, t in potentials.items()}, LENGTHS)
    (gradient,) = torch.autograd.grad(loss_of(only_one), potentials[name])
    close(gradient, torch.autograd.grad(loss_of(distribution), potentials[name])[0], 1e-12)


@on_every_backend
def test_autocast_changes_nothing(case, backend):
    results, potentials = [], tracked(case.draw(ITEMS, n=6, dtype=torch.float32))
    for enabled in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            distribution = case.build(potentials, None)
            values = [quantity_of(distribution, name) for name in QUANTITIES] + outputs(distribution)
            values += [distribution.log_prob(distribution.sample()), distribution.kl(distribution), distribution.max]
            results.append(values + list(torch.autograd.grad(loss_of(distribution), list(potentials.values()))))
    assert all(map(torch.equal, *results)) and results[0][-1].dtype == torch.float32


@on_every_backend
def test_two_runs_and_several_threads_give_the_same_bits(case, backend):
    potentials = tracked(case.draw(20, n=6, dtype=torch.float32))

    def run():
        generator = torch.Generator().manual_seed(5)
        distribution = case.build(potentials, None)
        values = outputs(distribution) + [distribution.argmax, distribution.sample((3,), generator)]
        return values + list(torch.autograd.grad(loss_of(distribution), list(potentials.values())))

    expected, found, before = run(), [run()], torch.get_num_threads()
    callers = [threading.Thread(target=lambda: found.append(run())) for _ in range(3)]
    torch.set_num_threads(3)
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(before)
    assert len(found) == 4 and all(torch.equal(a, b) for values in found for a, b in zip(values, expected))


# Kernels beside the specification, at sizes that no list of structures has


def beside_reference(case, potentials, lengths, tolerances):
    """All outputs and gradients beside those of the reference in float64."""
    torch.manual_seed(9)
    upstream = None
    results = []
    for name, dtype in ((None, None), ("reference", torch.double)):
        leaves = {key: tensor.detach().to(dtype or tensor.dtype).requires_grad_() for key, tensor in potentials.items()}
        with use_backend(name or "auto"):
            distribution = case.build(leaves, lengths)
            values = outputs(distribution)
            upstream = upstream or [torch.randn(value.shape).to(value) for value in values]
            finite = values[0].masked_fill(values[0] == -INF, 0)
            # One position has no neighbour.
            gradients = torch.autograd.grad(
                [finite] + values[1:], list(leaves.values()), [g.to(finite) for g in upstream], allow_unused=True
            )
            gradients = [torch.zeros(t.shape) if g is None else g for g, t in zip(gradients, leaves.values())]
            results.append(values + gradients + [distribution.log_prob(distribution.argmax)])
    for number, (actual, expected) in enumerate(zip(*results)):
        close(actual.double(), expected, tolerances[min(number, len(tolerances) - 1)])


@on_kernels
@pytest.mark.parametrize("n", (1, 2, 7, 9, 17, 33, 65))
@pytest.mark.parametrize("deviation", (1.0, 60.0))
def test_kernels_agree_with_the_reference(case, backend, n, deviation):
    items = 4
    potentials = case.draw(items, n=n, deviation=deviation)
    for name, scores in potentials.items():
        forbidden = torch.rand(scores.shape) < 0.1
        forbidden[:2] = False
        potentials[name] = scores if name in case.shared else scores.masked_fill(forbidden, -INF)
    beside_reference(case, potentials, torch.tensor([n, n, n // 2, max(n - 1, 0)]), (1e-9,))


@on_kernels
@pytest.mark.parametrize("number", range(8))
def test_kernels_agree_with_the_reference_at_random(case, backend, number):
    torch.manual_seed(number)
    n, items = int(torch.randint(1, 15, ())), int(torch.randint(0, 6, ()))
    potentials = case.draw(items, n=n, deviation=(0.1, 1.0, 10.0, 500.0)[number % 4])
    share = (0.0, 0.1, 0.5)[number % 3]
    potentials = {name: s.masked_fill(torch.rand(s.shape) < share, -INF) for name, s in potentials.items()}
    beside_reference(case, potentials, torch.randint(0, n + 1, (items,)) if number % 2 else None, (1e-8,))


@on_kernels
@pytest.mark.parametrize("deviation", (1.0, 30.0, 1000.0))
def test_kernels_lose_nothing_to_float32(case, backend, deviation):
    potentials = case.draw(8, n=30, deviation=deviation, dtype=torch.float32)
    beside_reference(case, potentials, torch.randint(0, 31, (8,)), (1e-6, 3e-6))


# Samples


@on_every_backend
def test_samples_have_the_probabilities_of_structures(case, backend):
    potentials, lengths, draws = case.draw(2), torch.tensor([POSITIONS, POSITIONS - 1]), 4000
    potentials = {name: s.masked_fill(torch.rand(s.shape) < 0.1, -INF) for name, s in potentials.items()}
    samples = case.build(potentials, lengths).sample((draws,))
    for i, length in enumerate(lengths.tolist()):
        item = Exact(case, potentials, i, length)
        parts, probs = torch.stack(item.parts()).flatten(1), torch.tensor(item.probs)
        counts = (samples[:, i].flatten(1)[:, None] == parts).all(-1).sum(0)
        assert counts.sum() == (draws if item.log_partition > -INF else 0)
        assert ((counts / draws - probs).abs() <= 4.5 * (probs * (1 - probs) / draws).sqrt() + 2 / draws).all()


# Finite masks


@on_every_backend
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


@on_every_backend
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


@on_every_backend
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
        close(distribution.entropy()[i], exact[i].entropy, 4e-6)
        assert any(torch.equal(distribution.argmax[i].double(), parts) for parts in exact[i].parts())


@on_every_backend
def test_masks_of_float64(case, backend):
    smallest = torch.finfo(torch.double).min
    potentials = {name: torch.where(torch.rand(s.shape) < 0.3, smallest, s) for name, s in case.draw(ITEMS).items()}
    distribution = case.build(tracked(potentials), None)
    exact = [Exact(case, potentials, i) for i in range(ITEMS)]
    for i, item in enumerate(exact):
        close(distribution.marginals[i], item.marginals, 1e-7)
        close(distribution.entropy()[i], item.entropy, 1e-7)


# Rounding


@on_every_backend
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("deviation, offset", ((1.0, 0.0), (1.0, 1e3), (30.0, -1e3), (1e3, 0.0), (1e3, 1e3)))
def test_nothing_is_lost_to_cancellation(case, backend, dtype, deviation, offset):
    potentials = case.draw(20, deviation=deviation, offset=offset, dtype=dtype)
    distribution, same = (case.build(tracked(potentials), None) for _ in range(2))
    assert (distribution.entropy() >= 0).all()
    assert (distribution.log_prob(distribution.sample((50,))) <= 0).all()
    assert (distribution.log_prob(distribution.argmax) <= 0).all()
    divergence = distribution.kl(same)
    assert (divergence >= 0).all() and (divergence < 1e-6).all()
    digits = {torch.float32: 4e-7, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    for i in range(3):
        item = Exact(case, potentials, i)
        close(distribution.entropy()[i], item.entropy, digits)
        close(distribution.marginals[i], item.marginals, digits)


# What is no structure


@on_every_backend
def test_what_is_no_structure_has_no_probability(case, backend):
    potentials = tracked(case.draw(ITEMS))
    lengths = torch.tensor([POSITIONS, POSITIONS - 1, 1])
    distribution = case.build(potentials, lengths, validate_args=False)
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


@on_every_backend
def test_divergence_from_what_is_forbidden(case, backend):
    potentials = case.draw(ITEMS)
    name = list(potentials)[0]
    forbidden = {key: tensor.clone() for key, tensor in potentials.items()}
    forbidden[name][(0,) + (0,) * (forbidden[name].dim() - 1)] = -INF
    all_allowed, some = case.build(potentials, None), case.build(forbidden, None)
    assert all_allowed.kl(some).tolist() == [INF, 0, 0]
    assert torch.isfinite(some.kl(all_allowed)).all()


# NaN, +inf, and potentials that change


@on_every_backend
@pytest.mark.parametrize("number", (float("nan"), INF))
def test_an_item_that_is_no_number_leaves_the_others_alone(case, backend, number):
    potentials = {name: t.clone() for name, t in case.draw(ITEMS).items()}
    healthy = case.build(tracked(potentials), None)
    broken = {name: t.clone() for name, t in potentials.items()}
    name = list(potentials)[0]
    broken[name][(1,) + (0,) * (broken[name].dim() - 2) + (-1,)] = number
    broken = tracked(broken)
    distribution, others = case.build(broken, None), [0, 2]
    results = {key: quantity_of(distribution, key) for key in ("log_partition", "marginals", "entropy", "argmax")}
    results["log_prob"] = distribution.log_prob(healthy.argmax)
    results["kl"], results["kl_to"] = distribution.kl(healthy), healthy.kl(distribution)
    results["sample"] = distribution.sample()
    for key, result in results.items():
        real = distribution._real_parts()[1] if result.dim() > 1 else ...
        assert result[1][real].isnan().all(), key
        assert not result[others].isnan().any(), key
    for key in ("log_partition", "marginals", "entropy", "argmax"):
        close(results[key][others], quantity_of(healthy, key)[others], 1e-9)
    loss = results["log_partition"].sum() + (results["marginals"] ** 2).sum() + results["entropy"].sum()
    gradients = dict(zip(broken, torch.autograd.grad(loss, list(broken.values()))))
    assert gradients[name][1].isnan().any()
    for key in set(gradients) - set(case.shared):
        assert torch.isfinite(gradients[key][others]).all(), key


@on_every_backend
def test_potentials_changed_in_place_are_an_error(case, backend):
    potentials = case.draw(ITEMS)
    distribution = case.build(potentials, None)
    before = distribution.marginals
    name = list(potentials)[-1]
    potentials[name] += 1
    assert distribution.marginals is before
    for compute in (
        lambda: distribution.entropy(),
        lambda: distribution.sample(),
        lambda: distribution.log_prob(before.round()),
        lambda: case.build(case.draw(ITEMS), None).kl(distribution),
    ):
        with pytest.raises(RuntimeError, match=f"{name} changed in place.*make a new one"):
            compute()


@on_every_backend
def test_potentials_changed_before_anything_is_computed(case, backend):
    potentials = case.draw(ITEMS)
    distribution = case.build(potentials, None)
    for tensor in potentials.values():
        tensor += torch.randn(tensor.shape)
    check_values(distribution, [Exact(case, potentials, i) for i in range(ITEMS)], 1e-9)
