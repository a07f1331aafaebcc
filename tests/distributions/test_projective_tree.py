import math
import threading

import pytest
import torch
from enumeration_projective import EnumeratedTrees, all_trees, is_projective_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_structattn.distributions import ProjectiveTree, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.projective_tree import reference, signed_log

INF, NAN = float("inf"), float("nan")
ROOTS = ("multi", "single")
MULTI_COUNTS = (1, 1, 3, 12, 55, 273, 1428, 7752)
SINGLE_COUNTS = (0, 1, 2, 7, 30, 143, 728, 3876)

needs_numba = pytest.mark.skipif(not numba_compile.available(), reason="needs numba")


@pytest.fixture(params=("reference", pytest.param("cpu", marks=needs_numba)))
def backend(request):
    with use_backend(request.param):
        yield request.param


@pytest.fixture(params=ROOTS)
def roots(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def random_scores(batch, n, scale=1.0, dtype=torch.double):
    return (scale * torch.randn(batch, n + 1, n, dtype=torch.double)).to(dtype).requires_grad_()


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def upstream_for(scores):
    return torch.randn(scores.shape[:-2]).to(scores), torch.randn(scores.shape).to(scores)


def gradient(tree, scores, upstream):
    value = (tree.log_partition * upstream[0]).sum() + (tree.marginals * upstream[1]).sum()
    return torch.autograd.grad(value, scores)[0]


def everything(scores, upstream, lengths=None, roots="multi"):
    """log Z, marginals and the gradient of both."""
    scores = scores.detach().requires_grad_()
    tree = ProjectiveTree(scores, lengths, roots)
    return tree.log_partition, tree.marginals, gradient(tree, scores, upstream)


# Against enumeration


@pytest.mark.parametrize("scale", (1.0, 30.0, 1000.0))
@pytest.mark.parametrize("n", (1, 2, 3, 4, 5))
def test_values_and_gradients_equal_enumeration(backend, roots, n, scale):
    scores, other_scores = random_scores(3, n, scale), random_scores(3, n)
    tree, other = ProjectiveTree(scores, roots=roots), ProjectiveTree(other_scores, roots=roots)
    upstream = upstream_for(scores)
    on_scores = gradient(tree, scores, upstream)
    # Entropy and divergence are differences of numbers of the size of the scores.
    loose = 1e-10 * scale
    for i in range(3):
        exact, exact_other = EnumeratedTrees(scores[i], roots), EnumeratedTrees(other_scores[i], roots)
        close(tree.log_partition[i], exact.log_partition)
        close(tree.marginals[i], exact.marginals)
        close(on_scores[i], exact.gradient(upstream[0][i], upstream[1][i]))
        close(tree.argmax[i], exact.argmax)
        close(tree.entropy[i], exact.entropy, loose)
        close(tree.kl(other)[i], exact.kl(exact_other), loose)
        close(tree.log_prob(exact.arcs[:, None].expand(-1, 3, -1, -1))[:, i], exact.scores - exact.log_partition, loose)


def test_forbidden_arcs(backend, roots):
    scores = random_scores(40, 4).detach()
    scores[torch.rand(scores.shape) < 0.45] = -INF
    scores.requires_grad_()
    tree, upstream = ProjectiveTree(scores, roots=roots), upstream_for(scores)
    # What comes for an arc that cannot be is of no consequence either.
    upstream[1][scores == -INF] = NAN if backend == "cpu" else 0
    on_scores = gradient(tree, scores, upstream)
    upstream[1].nan_to_num_()
    impossible = 0
    for i in range(40):
        exact = EnumeratedTrees(scores[i], roots)
        close(tree.log_partition[i], exact.log_partition)
        close(tree.marginals[i], exact.marginals)
        close(tree.argmax[i], exact.argmax)
        close(tree.entropy[i], exact.entropy)
        possible = exact.log_partition > -INF
        impossible += not possible
        close(on_scores[i], exact.gradient(upstream[0][i], upstream[1][i]))
        assert possible or (on_scores[i].eq(0).all() and tree.sample((2,))[:, i].eq(0).all())
    assert 5 < impossible < 35


def test_divergence_from_a_tree_that_forbids_an_arc_is_infinite(backend):
    scores = random_scores(2, 3).detach()
    forbidding = scores.clone()
    forbidding[0, 1, 2] = -INF
    tree, other = ProjectiveTree(scores), ProjectiveTree(forbidding)
    assert tree.kl(other)[0] == INF and abs(tree.kl(other)[1]) < 1e-12
    close(other.kl(tree)[0], EnumeratedTrees(forbidding[0], "multi").kl(EnumeratedTrees(scores[0], "multi")))


def test_probabilities_of_all_trees_and_of_no_others(backend, roots):
    n = 4
    tree = ProjectiveTree(random_scores(1, n)[0], roots=roots)
    heads = torch.cartesian_prod(*[torch.arange(n + 1)] * n)
    arcs = torch.nn.functional.one_hot(heads, n + 1).transpose(1, 2)
    log_prob = tree.log_prob(arcs)
    close(log_prob.exp().sum(), torch.tensor(1.0))
    allowed = [is_projective_tree(h) and (roots == "multi" or h.count(0) == 1) for h in map(tuple, heads.tolist())]
    assert torch.equal(log_prob > -INF, torch.tensor(allowed))
    two_heads = arcs[log_prob.argmax()].clone()
    two_heads[:, 0] = torch.tensor([1, 0, 1, 0, 0])
    assert tree.log_prob(two_heads) == -INF and tree.log_prob(two_heads * 0.5) == -INF


# Counts


@pytest.mark.parametrize("counted, counts", (("multi", MULTI_COUNTS), ("single", SINGLE_COUNTS)))
def test_counts_of_trees(backend, counted, counts):
    n = len(counts) - 1
    tree = ProjectiveTree(torch.zeros(n + 1, n + 1, n).double(), torch.arange(n + 1), counted)
    assert tree.support_size.tolist() == list(counts) and tree.support_size.dtype == torch.double
    close(tree.log_partition.exp(), torch.tensor(counts))
    assert [len(all_trees(k, counted)) for k in range(6)] == list(counts[:6])


def test_support_size_of_long_sentences(roots):
    log_count = ProjectiveTree(torch.zeros(151, 150).double(), roots=roots).log_partition
    assert math.isclose(ProjectiveTree(torch.zeros(201, 200), torch.tensor(150), roots).support_size.log(), log_count)
    assert ProjectiveTree(torch.zeros(1001, 1000), roots=roots).support_size == INF


# Properties


@pytest.mark.parametrize("scale", (1.0, 100.0))
def test_marginals_add_up(backend, roots, scale):
    marginals = ProjectiveTree(random_scores(3, 12, scale), roots=roots).marginals
    close(marginals.sum(-2), torch.ones(3, 12))
    assert marginals.min() >= 0
    root_children = marginals[:, 0].sum(-1)
    if roots == "single":
        close(root_children, torch.ones(3))
    else:
        assert (root_children > 1 - 1e-10).all()


def test_arcs_are_indexed_by_head_then_dependent(backend):
    # Only the chain root → 3 → 2 → 1 is rewarded.
    scores = torch.zeros(4, 3)
    scores[0, 2] = scores[3, 1] = scores[2, 0] = 9
    tree = ProjectiveTree(scores)
    assert tree.argmax.nonzero().tolist() == [[0, 2], [2, 0], [3, 1]]
    assert (tree.marginals[[0, 2, 3], [2, 0, 1]] > 0.99).all()


def test_self_loops_are_not_looked_at(backend, roots):
    scores = random_scores(2, 4).detach()
    poisoned = scores.clone()
    poisoned[:, range(1, 5), range(4)] = NAN
    upstream = upstream_for(scores)
    poisoned_upstream = upstream[0], upstream[1].clone()
    poisoned_upstream[1][:, range(1, 5), range(4)] = INF
    pairs = zip(everything(poisoned, poisoned_upstream, roots=roots), everything(scores, upstream, roots=roots))
    assert all(torch.equal(*pair) for pair in pairs)


def test_a_constant_for_a_word_changes_nothing_but_log_partition(backend, roots):
    scores, upstream = random_scores(3, 6).detach(), upstream_for(torch.zeros(3, 7, 6).double())
    constants = torch.tensor([90.0, -90.0, 0.0, 90.0, 45.0, -90.0])
    log_partition, *rest = everything(scores + constants, upstream, roots=roots)
    expected, *expected_rest = everything(scores, upstream, roots=roots)
    close(log_partition, expected + constants.sum())
    for actual, value in zip(rest, expected_rest):
        close(actual, value)


def test_single_and_multi_root_objects_live_together(backend):
    scores = random_scores(2, 4)
    single, multi = ProjectiveTree(scores, roots="single"), ProjectiveTree(scores, roots="multi")
    assert (single.log_partition < multi.log_partition).all()
    for tree in (multi, single):
        close(tree.marginals[0], EnumeratedTrees(scores[0], tree.roots).marginals)


# Lengths and padding


@pytest.mark.parametrize("poison", (0.0, NAN, INF, -INF))
def test_sentences_of_unequal_lengths_are_treated_as_alone(backend, roots, poison):
    n, lengths = 10, torch.tensor([10, 0, 3, 9, 1, 2])
    scores = random_scores(6, n).detach()
    upstream = upstream_for(scores)
    for i, length in enumerate(lengths.tolist()):
        for tensor in (scores, upstream[1]):
            tensor[i, length + 1 :] = tensor[i, :, length:] = poison
    results = everything(scores, upstream, lengths, roots)
    best = ProjectiveTree(scores, lengths, roots).argmax
    for i, length in enumerate(lengths.tolist()):
        inner = slice(length + 1), slice(length)
        alone = everything(scores[i][inner], (upstream[0][i], upstream[1][i][inner]), roots=roots)
        close(results[0][i], alone[0], 1e-12)
        for result, expected in zip(results[1:], alone[1:]):
            close(result[i][inner], expected, 1e-12)
            assert result[i, length + 1 :].eq(0).all() and result[i, :, length:].eq(0).all()
        assert torch.equal(best[i][inner], ProjectiveTree(scores[i][inner], roots=roots).argmax)
        assert best[i].sum() == (0 if results[0][i] == -INF else length)
    assert results[0][1] == (-INF if roots == "single" else 0)


@pytest.mark.parametrize("shape", ((0, 4, 3), (2, 1, 0), (0, 1, 0), (2, 0, 3, 2), (1, 0)))
def test_nothing_to_do(backend, roots, shape):
    scores = torch.zeros(shape).requires_grad_()
    tree = ProjectiveTree(scores, roots=roots)
    assert tree.marginals.shape == tree.argmax.shape == shape and tree.sample((2,)).shape == (2,) + shape
    assert tree.log_partition.shape == tree.entropy.shape == tree.support_size.shape == shape[:-2]
    assert tree.log_prob(tree.argmax).shape == tree.kl(tree).shape == shape[:-2]
    if shape[-1] == 0:
        assert tree.log_partition.eq(-INF if roots == "single" else 0).all()
    (on_scores,) = torch.autograd.grad(tree.marginals.sum() + tree.log_partition.sum(), scores, allow_unused=True)
    assert on_scores is None or on_scores.shape == shape


# Sizes of scores


@pytest.mark.parametrize("scale", (30.0, 100.0, 1000.0, 1e6))
@needs_numba
def test_float32_is_accurate_for_scores_of_any_size(roots, scale):
    scores = random_scores(2, 40, scale, torch.float32)
    upstream = upstream_for(scores)
    actual = everything(scores, upstream, roots=roots)
    with use_backend("reference"):
        expected = everything(scores.double(), [g.double() for g in upstream], roots=roots)
    close(actual[0], expected[0], 1e-6)
    close(actual[1], expected[1], 1e-6)
    close(actual[2], expected[2], 1e-5)


@needs_numba
@pytest.mark.parametrize("scale", (0.0, 1.0, 20.0))
def test_long_sentences(scale, roots):
    # 500 words have more trees than float64 has numbers for.
    n = 500
    tree = ProjectiveTree(scale * torch.randn(n + 1, n).double(), roots=roots)
    close(tree.marginals.sum(-2), torch.ones(n), 1e-9)
    if scale == 0 and roots == "multi":
        count = math.lgamma(3 * n + 1) - math.lgamma(n + 1) - math.lgamma(2 * n + 1) - math.log(2 * n + 1)
        close(tree.log_partition, torch.tensor(count, dtype=torch.double))


@pytest.mark.parametrize("masked", (-1e9, -1e30))
def test_large_negative_scores_serve_as_a_mask(backend, roots, masked):
    scores = random_scores(2, 5).detach()
    mask = torch.zeros(2, 6, 5, dtype=torch.bool)
    mask[:, 3, :2] = mask[:, 0, 4] = mask[:, 4, 2:] = True
    upstream = upstream_for(scores)
    actual = everything(scores.masked_fill(mask, masked), upstream, roots=roots)
    expected = everything(scores.masked_fill(mask, -INF), upstream, roots=roots)
    for value, exact in zip(actual, expected):
        close(value, exact)


@pytest.mark.parametrize("bad", (NAN, INF))
def test_what_is_not_a_number_spoils_its_own_sentence_only(backend, bad):
    scores = random_scores(3, 4).detach()
    clean = ProjectiveTree(scores)
    spoiled = scores.clone()
    spoiled[1, 0, 2] = bad
    tree = ProjectiveTree(spoiled)
    assert torch.isnan(tree.marginals[1]).any()
    for i in (0, 2):
        assert torch.equal(tree.marginals[i], clean.marginals[i])


# Gradients


def test_reference_can_be_differentiated_twice(roots):
    scores, lengths = random_scores(2, 3).detach(), torch.tensor([3, 2])
    scores[0, 1, 2] = -INF
    mask = scores == -INF

    def outputs(scores):
        with use_backend("reference"):
            tree = ProjectiveTree(scores.masked_fill(mask, -INF), lengths, roots)
            return tree.marginals, tree.log_partition, tree.entropy

    scores = scores.masked_fill(mask, 0).requires_grad_()
    assert torch.autograd.gradcheck(outputs, scores) and torch.autograd.gradgradcheck(outputs, scores)


@needs_numba
def test_compiled_gradients(roots):
    scores, lengths = random_scores(2, 4), torch.tensor([4, 3])

    def outputs(scores):
        tree = ProjectiveTree(scores, lengths, roots)
        return tree.marginals, tree.log_partition, tree.entropy

    with use_backend("cpu"):
        assert torch.autograd.gradcheck(outputs, scores)


def test_each_output_passes_a_gradient_alone(backend):
    scores = random_scores(2, 4)
    on_log_partition, on_marginals = upstream_for(scores)
    both = everything(scores, (on_log_partition, on_marginals))[2]
    tree = ProjectiveTree(scores)
    (first,) = torch.autograd.grad(tree.log_partition, scores, on_log_partition, retain_graph=True)
    (second,) = torch.autograd.grad(tree.marginals, scores, on_marginals, retain_graph=True)
    (again,) = torch.autograd.grad(tree.marginals, scores, on_marginals)
    close(first + second, both)
    assert torch.equal(second, again)


@pytest.mark.parametrize("scale", (1.0, 30.0))
def test_gradient_equals_the_backpropagation_of_the_paper(backend, scale):
    lengths = torch.tensor([7, 3, 0, 6])
    scores = random_scores(4, 7, scale).detach()
    scores[0, 2, 3] = -INF
    scores.requires_grad_()
    tree = ProjectiveTree(scores, lengths)
    allowed = scores.detach().masked_fill(~tree.arc_mask, -INF).requires_grad_()
    marginals = signed_log.marginals(allowed, lengths)
    upstream = torch.randn(marginals.shape).double() * tree.arc_mask
    close(marginals, tree.marginals)
    (expected,) = torch.autograd.grad(marginals, allowed, upstream)
    (actual,) = torch.autograd.grad(tree.marginals, scores, upstream)
    close(actual, expected)


# Fast against reference


def both_ways(scores, lengths, roots):
    upstream = upstream_for(scores)
    results = []
    for name in ("cpu", "reference"):
        with use_backend(name):
            tree = ProjectiveTree(scores, lengths, roots)
            results.append(everything(scores, upstream, lengths, roots) + (tree.argmax,))
    return results


@needs_numba
@pytest.mark.parametrize("n", (1, 2, 3, 7, 8, 9, 17, 31, 64, 65))
def test_implementations_agree_at_sizes_around_those_of_registers(n, roots):
    for actual, expected in zip(*both_ways(random_scores(1, n, 2.0), None, roots)):
        close(actual, expected, 1e-9)


@needs_numba
def test_implementations_agree_where_units_become_necessary(roots):
    from fairseq_structattn.distributions.projective_tree import cpu

    scores = random_scores(10, 30).detach() * torch.linspace(15, 40, 10)[:, None, None]
    lowered = cpu.expectations(cpu._lowered(ProjectiveTree(scores)._masked_scores)[0], torch.full((10,), 30), False)[0]
    needed = (lowered / math.log(2)).exp2() < cpu.SMALLEST_PARTITION
    assert needed.any() and not needed.all()
    for actual, expected in zip(*both_ways(scores, None, roots)):
        close(actual, expected, 1e-9)


@needs_numba
def test_kernels_are_compiled_for_one_kind_of_arrays():
    from fairseq_structattn.distributions.projective_tree import cpu

    with use_backend("cpu"):
        for scores in (random_scores(2, 3), random_scores(2, 3, dtype=torch.float32), random_scores(4, 3)[::2]):
            for lengths in (None, torch.tensor(2), torch.tensor([[3, 1], [1, 2]])[:, 0], torch.tensor([1, 2]).int()):
                tree = ProjectiveTree(scores, lengths)
                tree.marginals.expand(3, -1, -1, -1).sum().backward()
                assert tree.argmax.shape == tree.sample().shape == scores.shape
    for kernel in (cpu._forward, cpu._backward, cpu._argmax, cpu._sample):
        assert len(kernel.signatures) == 1


@needs_numba
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(0, 3),
    n=st.integers(0, 14),
    scale=st.sampled_from((0.1, 1.0, 10.0, 300.0)),
    forbidden=st.sampled_from((0.0, 0.1, 0.4)),
    roots=st.sampled_from(ROOTS),
)
def test_implementations_agree(seed, batch, n, scale, forbidden, roots):
    torch.manual_seed(seed)
    scores = random_scores(batch, n, scale).detach()
    scores[torch.rand(scores.shape) < forbidden] = -INF
    lengths = torch.randint(0, n + 1, (batch,))
    for actual, expected in zip(*both_ways(scores, lengths, roots)):
        close(actual, expected, 1e-9)


@needs_numba
def test_compiled_kernels_run_by_default_and_not_under_reference(monkeypatch):
    calls = []
    original = reference.expectations
    monkeypatch.setattr(reference, "expectations", lambda *arguments: calls.append(1) or original(*arguments))
    scores = random_scores(1, 3)
    assert ProjectiveTree(scores).marginals.shape == scores.shape and calls == []
    with use_backend("reference"):
        assert ProjectiveTree(scores).marginals.shape == scores.shape and calls == [1]


# Samples


@pytest.mark.parametrize("scale", (1.0, 200.0))
def test_samples_have_the_marginals_of_the_tree(backend, roots, scale):
    scores = random_scores(3, 5)
    # Large scores that keep several trees likely: each word prefers its two neighbours.
    if scale > 1:
        near = (torch.arange(6)[:, None] - torch.arange(1, 6)).abs() == 1
        scores = scores - scale * ~near
    tree = ProjectiveTree(scores, torch.tensor([5, 3, 1]), roots)
    draws = 4000
    samples = tree.sample((draws,))
    assert samples.shape == (draws, 3, 6, 5) and not samples.requires_grad
    assert (tree.log_prob(samples) > -INF).all()
    p = tree.marginals.detach()
    standard_error = (p * (1 - p).clamp(min=0) / draws).sqrt()
    assert ((samples.mean(0) - p).abs() <= 4.5 * standard_error + 1e-12).all()


def test_samples_have_the_probabilities_of_whole_trees(backend):
    tree = ProjectiveTree(random_scores(1, 3)[0])
    draws, trees = 4000, EnumeratedTrees(tree._arc_scores, "multi")
    samples = tree.sample((draws,))
    counts = (samples[:, None] == trees.arcs).flatten(2).all(2).sum(0)
    assert counts.sum() == draws
    p = trees.probabilities
    assert ((counts / draws - p).abs() <= 4.5 * (p * (1 - p) / draws).sqrt()).all()


def test_the_seed_of_torch_governs_samples(backend):
    tree = ProjectiveTree(random_scores(2, 6))
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(tree.sample((2, 5)))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert runs[0].shape == (2, 5, 2, 7, 6)


def test_argmax_of_ties_is_one_tree(backend, roots):
    tree = ProjectiveTree(torch.zeros(2, 7, 6), roots=roots)
    assert (tree.log_prob(tree.argmax) > -INF).all()


# Inputs


def test_batch_dimensions_and_neighbours(backend, roots):
    scores, lengths = random_scores(6, 5), torch.tensor([5, 1, 3, 0, 2, 5])
    tree = ProjectiveTree(scores, lengths, roots)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = ProjectiveTree(scores[order], lengths[order], roots)
    stacked = ProjectiveTree(scores.reshape(2, 3, 6, 5), lengths.reshape(2, 3), roots)
    for quantity in ("log_partition", "marginals", "argmax", "entropy"):
        value = getattr(tree, quantity)
        close(getattr(shuffled, quantity), value[order], 1e-13)
        close(getattr(stacked, quantity).flatten(0, 1), value, 1e-13)
        if backend == "cpu" and quantity != "entropy":
            assert torch.equal(getattr(shuffled, quantity), value[order])


def test_expanded_and_transposed_scores(backend):
    base = torch.randn(2, 4, 5).double().requires_grad_()
    for view in (base.transpose(1, 2), base.transpose(1, 2)[:1].expand(3, 5, 4)):
        copy = view.detach().clone().contiguous().requires_grad_()
        tree, same = ProjectiveTree(view), ProjectiveTree(copy)
        upstream = torch.randn(view.shape).double().transpose(1, 2).contiguous().transpose(1, 2)
        assert torch.equal(tree.marginals, same.marginals)
        (actual,) = torch.autograd.grad(tree.marginals, base, upstream)
        (on_copy,) = torch.autograd.grad(same.marginals, copy, upstream)
        close(actual, torch.autograd.grad(view, base, on_copy)[0])


@pytest.mark.parametrize("needs_grad", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_tensors_and_flags_of_the_caller_are_untouched(backend, roots, needs_grad, dtype):
    scores = random_scores(2, 3, dtype=dtype).detach().requires_grad_(needs_grad)
    lengths = torch.tensor([3, 2])
    before = scores.detach().clone()
    tree = ProjectiveTree(scores, lengths, roots)
    for quantity in ("log_partition", "marginals", "argmax", "entropy"):
        assert getattr(tree, quantity).requires_grad == (needs_grad and quantity != "argmax"), quantity
    tree.sample((2,))
    if needs_grad:
        torch.autograd.grad(tree.entropy.sum() + tree.marginals.square().sum(), scores)
    assert torch.equal(scores, before) and lengths.tolist() == [3, 2]
    assert scores.requires_grad == needs_grad and scores.grad is None


def test_inference_mode(backend):
    scores = random_scores(2, 3)
    expected = ProjectiveTree(scores)
    with torch.inference_mode():
        tree = ProjectiveTree(scores * 1)
        for quantity in ("log_partition", "marginals", "argmax"):
            close(getattr(tree, quantity), getattr(expected, quantity))
        assert tree.sample().shape == (2, 4, 3)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_results_have_the_dtype_of_the_scores(backend, dtype):
    scores = random_scores(2, 9, dtype=dtype)
    tree, wide = ProjectiveTree(scores), ProjectiveTree(scores.double())
    tolerance = max(torch.finfo(dtype).eps, 2e-6 if dtype != torch.double else 1e-12)
    for quantity in ("log_partition", "marginals", "argmax", "entropy"):
        value = getattr(tree, quantity)
        assert value.dtype == dtype, quantity
        close(value.double(), getattr(wide, quantity), 4 * tolerance if quantity == "entropy" else tolerance)
    assert tree.sample().dtype == tree.log_prob(tree.argmax).dtype == dtype
    tree.marginals.square().sum().backward()
    assert scores.grad.dtype == dtype


def test_two_runs_are_identical(backend, roots):
    scores, lengths = random_scores(4, 10, dtype=torch.float32), torch.tensor([10, 7, 10, 4])
    upstream = upstream_for(scores)
    runs = [everything(scores, upstream, lengths, roots) for _ in range(2)]
    assert all(map(torch.equal, *runs))


@needs_numba
def test_several_threads_at_once(roots):
    scores = random_scores(5, 12)
    upstream = upstream_for(scores)
    expected = everything(scores, upstream, roots=roots)
    results = []

    def work():
        results.extend(everything(scores, upstream, roots=roots) for _ in range(5))

    threads_before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        callers = [threading.Thread(target=work) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(threads_before)
    assert len(results) == 20 and all(all(map(torch.equal, expected, result)) for result in results)


@pytest.mark.parametrize(
    "error, match, arguments",
    (
        (TypeError, "arc_scores is a list", ([[0.0]],)),
        (TypeError, "arc_scores has dtype torch.int64", (torch.zeros(4, 3).long(),)),
        (ValueError, r"arc_scores has shape \(3,\).*n\+1, n", (torch.zeros(3),)),
        (ValueError, r"arc_scores has shape \(3, 3\).*n\+1, n", (torch.zeros(3, 3),)),
        (ValueError, r"arc_scores has shape \(3, 4\).*n\+1, n", (torch.zeros(3, 4),)),
        (TypeError, "lengths has dtype torch.float32", (torch.zeros(2, 4, 3), torch.ones(2))),
        (ValueError, "lengths has values from 1 to 4", (torch.zeros(2, 4, 3), torch.tensor([1, 4]))),
        (ValueError, r"lengths has shape \(3,\)", (torch.zeros(2, 4, 3), torch.tensor([1, 2, 3]))),
        (ValueError, "roots is 'both'.*single, multi", (torch.zeros(4, 3), None, "both")),
    ),
)
def test_errors(error, match, arguments):
    with pytest.raises(error, match=match):
        ProjectiveTree(*arguments)


def test_log_prob_of_another_shape():
    with pytest.raises(ValueError, match=r"parts has shape \(3, 3\).*\(4, 3\)"):
        ProjectiveTree(torch.zeros(4, 3)).log_prob(torch.zeros(3, 3))
