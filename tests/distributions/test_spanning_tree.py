import importlib
import sys
import warnings

import pytest
import torch
from enumeration_spanning import EnumeratedTrees, all_trees, arcs

from fairseq_structattn.distributions import SpanningTree, spanning_tree, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.spanning_tree import reference, reverse_elimination

INF = float("inf")
ROOTS = ("multi", "single")
needs_numba = pytest.mark.skipif(not numba_compile.available(), reason="needs numba")


@pytest.fixture(params=("reference", pytest.param("cpu", marks=needs_numba)))
def backend(request):
    with use_backend(request.param):
        yield request.param


def random_scores(batch, n, scale=1.0, dtype=torch.double):
    return (scale * torch.randn(batch, n + 1, n, dtype=dtype)).requires_grad_()


def enumerate_all(scores, roots):
    return [EnumeratedTrees(one, roots == "single") for one in scores]


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def gradient(tree, scores, on_log_partition, on_marginals):
    loss = (tree.log_partition * on_log_partition).sum() + (tree.marginals * on_marginals).sum()
    return torch.autograd.grad(loss, scores)[0]


def random_upstream(scores):
    return torch.randn(scores.shape[:-2]).to(scores), torch.randn(scores.shape).to(scores)


# Known quantities


@pytest.mark.parametrize("n", range(8))
def test_number_of_trees(backend, n):
    for roots, expected in (("multi", (n + 1) ** max(n - 1, 0)), ("single", n ** max(n - 1, 0) if n else 0)):
        tree = SpanningTree(torch.zeros(1, 7 + 1, 7).double(), torch.tensor([n]), roots)
        assert tree.support_size.tolist() == [expected] and tree.support_size.dtype == torch.double
        close(tree.log_partition.exp(), tree.support_size, 1e-12)
        if 0 < n <= 5:
            assert len(all_trees(n, roots == "single")) == expected


def test_agrees_with_the_determinant_of_the_laplacian(backend, roots):
    scores = random_scores(3, 12)
    tree = SpanningTree(scores, roots=roots)
    weights = scores.exp().masked_fill(~tree.arc_mask, 0)
    root, words = weights[:, 0], weights[:, 1:]
    laplacian = torch.diag_embed(words.sum(-2)) - words
    if roots == "multi":
        laplacian = laplacian + torch.diag_embed(root)
    else:
        laplacian = torch.cat((root.unsqueeze(-2), laplacian[:, 1:]), -2)
    log_partition = laplacian.logdet()
    (marginals,) = torch.autograd.grad(log_partition.sum(), scores, create_graph=True)
    _, upstream = random_upstream(scores)
    close(tree.log_partition, log_partition)
    close(tree.marginals, marginals)
    close(
        torch.autograd.grad((tree.marginals * upstream).sum(), scores)[0],
        torch.autograd.grad((marginals * upstream).sum(), scores)[0],
    )


def test_a_word_whose_only_head_is_the_root(backend, roots):
    for word in range(4):
        scores = random_scores(1, 4)
        scores.data[:, 1:, word] = -INF
        tree, exact = SpanningTree(scores, roots=roots), EnumeratedTrees(scores[0], roots == "single")
        close(tree.log_partition[0], exact.log_partition)
        close(tree.marginals[0], exact.marginals)
        on_log_partition, on_marginals = random_upstream(scores)
        actual = gradient(tree, scores, on_log_partition, on_marginals)
        close(actual[0], exact.gradient(on_log_partition[0], on_marginals[0]))


def test_two_words_that_need_the_root_have_no_single_root(backend):
    scores = random_scores(2, 4)
    # Each of words 2 and 3 has no head but the root and the other one.
    scores.data[0, [1, 4], 1] = scores.data[0, [1, 4], 2] = -INF
    scores.data[1, 1:, 1] = scores.data[1, 1:, 2] = -INF
    single = SpanningTree(scores, roots="single")
    exact = EnumeratedTrees(scores[0], True)
    close(single.log_partition[0], exact.log_partition)
    close(single.marginals[0], exact.marginals)
    assert single.log_partition[1] == -INF and single.marginals[1].eq(0).all()
    assert single.argmax[1].eq(0).all() and single.sample((3,))[:, 1].eq(0).all()
    assert SpanningTree(scores).log_partition[1] > -INF


# Accuracy


@pytest.mark.parametrize("range_", (100.0, 240.0, 260.0, 365.0, 500.0, 600.0, 740.0, 2000.0))
def test_weights_that_no_floating_point_number_holds(backend, roots, range_):
    # Words 1 and 2 prefer each other, words 3 and 4 too, and the way from the root and from pair to pair is long.
    scores = torch.full((3, 5, 4), -range_).double()
    scores[:, 2, 0] = scores[:, 1, 1] = scores[:, 4, 2] = scores[:, 3, 3] = 0
    scores[1, 3, 0] = 0
    scores[2, 0, 2:] = scores[2, 2, 2:] = -INF
    scores = (scores + torch.rand(3, 5, 4)).requires_grad_()
    tree, (_, upstream) = SpanningTree(scores, roots=roots), random_upstream(scores)
    actual = gradient(tree, scores, torch.zeros(()), 1e60 * upstream)
    for i, exact in enumerate(enumerate_all(scores, roots)):
        close(tree.log_partition[i], exact.log_partition)
        close(tree.marginals[i], exact.marginals)
        close(actual[i] / 1e60, exact.gradient(0.0, upstream[i]))


@needs_numba
@pytest.mark.parametrize("deviation", (1.0, 30.0, 100.0))
def test_scores_that_differ_by_hundreds_are_eliminated_in_linear_space(roots, deviation):
    from fairseq_structattn.distributions.spanning_tree import cpu

    # Words are eliminated in blocks of eight.
    lengths = torch.tensor([25, 24, 17, 16, 15, 9, 8, 7, 1])
    scores = random_scores(len(lengths), 25, deviation)
    tree = SpanningTree(scores, lengths, roots)
    problem = SpanningTree(scores.detach(), lengths, roots)._problem()
    *_, fits, possible = cpu._Elimination.forward(None, *problem, True)
    assert fits.all() and possible.all()
    upstream = random_upstream(scores)
    with use_backend("reference"):
        expected = SpanningTree(scores, lengths, roots)
        values = expected.log_partition, expected.marginals, gradient(expected, scores, *upstream)
    for actual, value in zip((tree.log_partition, tree.marginals, gradient(tree, scores, *upstream)), values):
        close(actual, value, 1e-9)


# Padding and inputs


@needs_numba
def test_kernels_are_compiled_once_for_each_dtype_whatever_the_layout():
    from fairseq_structattn.distributions.spanning_tree import cpu_elimination, cpu_log_elimination

    for scores in (
        torch.randn(5, 4, 3),
        torch.randn(3, 4, 5).double().transpose(0, 2),
        torch.randn(1, 4, 3).expand(2, 4, 3),
    ):
        for scale in (1.0, 1e4):
            leaf = scores.mul(scale).requires_grad_()
            for lengths in (None, torch.tensor([3]).expand(len(scores))):
                tree = SpanningTree(leaf, lengths)
                tree.marginals.backward(torch.randn(scores.shape[::-1]).permute(2, 1, 0).to(scores))
    for module in (cpu_elimination, cpu_log_elimination):
        assert all(len(kernel.signatures) <= 2 for kernel in (module.total, module.expectations, module.gradient))


@needs_numba
def test_log_partition_leaves_marginals_to_its_backward_pass(roots, monkeypatch):
    from fairseq_structattn.distributions.spanning_tree import cpu

    calls, original = [], cpu._marginals
    monkeypatch.setattr(cpu, "_marginals", lambda *args: calls.append(1) or original(*args))
    for scale in (1.0, 2000.0):
        scores, lengths = random_scores(3, 6, scale), torch.tensor([6, 1, 4])
        with torch.no_grad():
            log_partition = SpanningTree(scores, lengths, roots).log_partition
        tree = SpanningTree(scores, lengths, roots)
        value = tree.log_partition.sum() + tree.log_prob(tree.argmax).sum()
        assert calls == []
        (actual,) = torch.autograd.grad(value, scores)
        close(actual, tree.argmax)
        calls.clear()
        close(SpanningTree(scores, lengths, roots).log_partition, log_partition)
        (actual,) = torch.autograd.grad(SpanningTree(scores, lengths, roots).log_partition.sum(), scores)
        assert calls == [1]
        close(actual, tree.marginals)
        close(tree.log_partition, log_partition)
        calls.clear()


# The best tree


@pytest.mark.parametrize("n", (2, 3, 4, 5))
@pytest.mark.parametrize("forbidden", (0.0, 0.3))
def test_argmax_equals_enumeration(roots, n, forbidden):
    scores = random_scores(30, n).detach()
    scores[torch.rand(scores.shape) < forbidden] = -INF
    tree = SpanningTree(scores, roots=roots)
    for i, exact in enumerate(enumerate_all(scores, roots)):
        possible = exact.log_partition > -INF
        close(tree.argmax[i], exact.argmax if possible else torch.zeros(n + 1, n))


def test_argmax_with_a_single_root_where_the_best_tree_has_several():
    scores = torch.randn(60, 5, 4).double()
    # However much the root gains, it may be taken once only.
    scores[:, 0] += 10.0 ** torch.randint(0, 12, (60, 1)).double()
    multi, single = SpanningTree(scores).argmax, SpanningTree(scores, roots="single").argmax
    assert (multi[:, 0].sum(-1) > 1).sum() > 40 and single[:, 0].sum(-1).eq(1).all()
    for i, exact in enumerate(enumerate_all(scores, "single")):
        close(single[i], exact.argmax)


def test_argmax_of_long_sentences_is_better_than_all_samples(roots):
    tree = SpanningTree(random_scores(2, 40, 3.0), torch.tensor([40, 33]), roots)
    best = tree.log_prob(tree.argmax)
    assert torch.isfinite(best).all() and (tree.log_prob(tree.sample((200,))) <= best + 1e-9).all()


def test_argmax_of_nested_cycles():
    # 1 ⇄ 2 and 3 ⇄ 4, and then the two pairs prefer each other to the root.
    scores = torch.full((5, 4), -20.0).double()
    scores[2, 0] = scores[1, 1] = scores[4, 2] = scores[3, 3] = 10
    scores[3, 0] = scores[2, 2] = 5
    scores[0, 3] = -1
    expected = arcs((3, 1, 4, 0), 4)
    close(SpanningTree(scores).argmax, expected)
    close(EnumeratedTrees(scores, False).argmax, expected)


# Elimination in linear space where it is accurate, and always in log space.
TOLERANCES = (reverse_elimination.TOLERANCE, -1.0)


def frequencies_agree(frequency, p, draws):
    # 4.5 standard deviations, and some room where almost nothing is expected.
    deviation = (p * (1 - p).clamp(min=0) / draws).sqrt()
    return ((frequency - p).abs() <= 4.5 * deviation + 4 / draws).all()


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_samples_have_the_probabilities_of_trees(backend, roots, tolerance, monkeypatch):
    monkeypatch.setattr(reverse_elimination, "TOLERANCE", tolerance)
    scores = random_scores(3, 3, 1.5)
    scores.data[1, 0, 1] = scores.data[1, 3, 0] = -INF
    tree, draws = SpanningTree(scores, roots=roots), 20000
    samples = tree.sample((draws,))
    assert samples.shape == (draws, 3, 4, 3) and not samples.requires_grad
    assert frequencies_agree(samples.mean(0), tree.marginals, draws)
    for i, exact in enumerate(enumerate_all(scores, roots)):
        same = torch.einsum("shm,thm->st", samples[:, i], exact.parts) == 3
        assert same.sum(1).eq(1).all()
        assert frequencies_agree(same.double().mean(0), exact.probabilities, draws)


@pytest.mark.parametrize("scale", (100.0, 1000.0))
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_samples_have_the_marginals_at_any_size_of_scores(roots, tolerance, scale, monkeypatch):
    monkeypatch.setattr(reverse_elimination, "TOLERANCE", tolerance)
    tree, draws = SpanningTree(random_scores(4, 5, scale), torch.tensor([5, 1, 2, 4]), roots), 1000
    samples = tree.sample((draws,))
    assert torch.isfinite(tree.log_prob(samples)).all()
    assert frequencies_agree(samples.mean(0), tree.marginals, draws)


def words_that_prefer_each_other(far):
    """Scores ``[6, 5, 4]`` among which a walk from head to head would take very long to reach the root."""
    scores = torch.randn(6, 5, 4).double() - far
    scores[:, 2, 0] += far
    scores[:, 1, 1] += far
    scores[:, 4, 2] += far
    scores[:, 3, 3] += far
    # In the last three sentences the cycles 1 ⇄ 2 and 3 ⇄ 4 prefer each other, too.
    scores[3:, 3, 0] += far / 3
    scores[3:, 2, 2] += far / 3
    scores[[2, 5], 0, 2:] = -INF
    return scores


@pytest.mark.parametrize("far", (0.0, 300.0, 1000.0))
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_samples_have_the_probabilities_of_trees_that_walks_seldom_reach(roots, tolerance, far, monkeypatch):
    monkeypatch.setattr(reverse_elimination, "TOLERANCE", tolerance)
    scores = words_that_prefer_each_other(far) if far > 0 else random_scores(6, 4, 30.0).detach()
    draws = 20000
    samples = SpanningTree(scores, roots=roots).sample((draws,))
    for i, exact in enumerate(enumerate_all(scores, roots)):
        same = torch.einsum("shm,thm->st", samples[:, i], exact.parts) == 4
        assert same.sum(1).eq(1).all()
        assert frequencies_agree(same.double().mean(0), exact.probabilities, draws)


def test_arcs_in_samples_of_long_sentences_have_their_marginals(roots):
    for deviation in (1.0, 30.0, 100.0):
        tree, draws = SpanningTree(random_scores(2, 30, deviation), torch.tensor([30, 23]), roots), 2000
        assert frequencies_agree(tree.sample((draws,)).mean(0), tree.marginals, draws)


def test_manual_seed_governs_samples_whatever_the_number_of_threads():
    tree = SpanningTree(random_scores(7, 6), torch.tensor([6, 5, 4, 3, 2, 1, 6]))
    before, samples = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            samples.append(tree.sample((4,)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*samples)
    assert not torch.equal(samples[0], tree.sample((4,)))


# Choice of the implementation


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_argmax_and_samples_are_the_same_without_numba(roots, tolerance, monkeypatch):
    def draw():
        torch.manual_seed(1)
        tree = SpanningTree(5 * torch.randn(3, 6, 5).double(), torch.tensor([5, 0, 4]), roots)
        monkeypatch.setattr(importlib.import_module(reverse_elimination.__name__), "TOLERANCE", tolerance)
        return tree.argmax, tree.sample((10,))

    expected = draw()
    monkeypatch.setattr(numba_compile, "available", lambda: False)
    for name in ("chu_liu_edmonds", "bounded_elimination", "reverse_elimination"):
        monkeypatch.delitem(sys.modules, f"{spanning_tree.__name__}.{name}", raising=False)
        monkeypatch.delattr(spanning_tree, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        plain = draw()
    assert spanning_tree.reverse_elimination is not reverse_elimination
    for actual, target in zip(plain, expected):
        close(actual, target)


def test_the_fast_path_runs_by_default_and_not_under_reference(monkeypatch):
    calls = []
    original = reference.expectations
    monkeypatch.setattr(reference, "expectations", lambda *args: calls.append(1) or original(*args))
    with use_backend("reference"):
        assert SpanningTree(torch.zeros(2, 3, 2)).marginals.shape == (2, 3, 2)
        assert calls == [1]
    assert SpanningTree(torch.zeros(2, 3, 2)).marginals.shape == (2, 3, 2)
    assert calls == ([1] if numba_compile.available() else [1, 1])
