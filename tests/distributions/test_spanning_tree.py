import importlib
import sys
import threading
import warnings

import pytest
import torch
from enumeration_spanning import EnumeratedTrees, all_trees, arcs
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_structattn.distributions import SpanningTree, spanning_tree, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.spanning_tree import reference, wilson

INF = float("inf")
ROOTS = ("multi", "single")
QUANTITIES = ("log_partition", "marginals", "argmax", "entropy")

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


def everything(scores, lengths, roots, upstream, backend, dtype=None):
    """log Z, marginals and the gradient, of a copy of the scores in the given dtype."""
    scores = scores.detach().to(dtype or scores.dtype).requires_grad_()
    with use_backend(backend):
        tree = SpanningTree(scores, lengths, roots)
        return tree.log_partition, tree.marginals, gradient(tree, scores, *(g.to(scores) for g in upstream))


# Against enumeration


@pytest.mark.parametrize("n", (1, 2, 3, 5))
@pytest.mark.parametrize("scale", (1.0, 30.0, 100.0, 1000.0))
def test_values_equal_enumeration(backend, roots, n, scale):
    scores, other_scores = random_scores(4, n, scale), random_scores(4, n)
    tree, other = SpanningTree(scores, roots=roots), SpanningTree(other_scores, roots=roots)
    exact, exact_other = enumerate_all(scores, roots), enumerate_all(other_scores, roots)
    for i in range(4):
        close(tree.log_partition[i], exact[i].log_partition)
        close(tree.marginals[i], exact[i].marginals)
        close(tree.argmax[i], exact[i].argmax)
        # These are differences of numbers of the size of the scores.
        close(tree.entropy[i], exact[i].entropy, 1e-10 * scale)
        close(tree.kl(other)[i], exact[i].kl(exact_other[i]), 1e-10 * scale)
    parts = exact[2].parts.unsqueeze(1).expand(-1, 4, -1, -1)
    log_prob = tree.log_prob(parts)[:, 2]
    close(log_prob, exact[2].log_probs)
    close(log_prob.logsumexp(0), torch.zeros(()))


@pytest.mark.parametrize("n", (1, 2, 3, 5))
@pytest.mark.parametrize("scale", (1.0, 30.0, 100.0, 1000.0))
def test_gradients_equal_covariances(backend, roots, n, scale):
    scores = random_scores(4, n, scale)
    on_log_partition, on_marginals = random_upstream(scores)
    actual = gradient(SpanningTree(scores, roots=roots), scores, on_log_partition, on_marginals)
    for i, exact in enumerate(enumerate_all(scores, roots)):
        close(actual[i], exact.gradient(on_log_partition[i], on_marginals[i]))


@pytest.mark.parametrize("scale", (1.0, 30.0, 1000.0))
def test_forbidden_arcs(backend, roots, scale):
    scores = random_scores(12, 4, scale)
    scores.data[torch.rand(scores.shape) < 0.35] = -INF
    on_log_partition, on_marginals = random_upstream(scores)
    on_marginals[scores == -INF] = INF
    tree = SpanningTree(scores, roots=roots)
    possible = tree.log_partition > -INF
    assert 0 < possible.sum() < 12
    actual = gradient(tree, scores, on_log_partition.masked_fill(~possible, 0), on_marginals)
    for i, exact in enumerate(enumerate_all(scores, roots)):
        close(tree.log_partition[i], exact.log_partition)
        if not possible[i]:
            assert tree.marginals[i].eq(0).all() and tree.argmax[i].eq(0).all() and actual[i].eq(0).all()
            continue
        close(tree.marginals[i], exact.marginals)
        close(tree.argmax[i], exact.argmax)
        close(tree.entropy[i], exact.entropy, 1e-10 * scale)
        finite = on_marginals[i].masked_fill(scores[i] == -INF, 0)
        close(actual[i], exact.gradient(on_log_partition[i], finite))
    assert tree.marginals[scores == -INF].eq(0).all()


@pytest.mark.parametrize("scale", (1.0, 30.0))
def test_gradcheck(backend, roots, scale):
    scores, lengths = random_scores(3, 3, scale), torch.tensor([3, 1, 2])
    for quantity in ("log_partition", "marginals", "entropy"):
        assert torch.autograd.gradcheck(lambda s, q=quantity: getattr(SpanningTree(s, lengths, roots), q), scores)


@pytest.mark.parametrize("forbid", (False, True))
def test_reference_is_twice_differentiable(roots, forbid):
    scores, lengths = random_scores(3, 3), torch.tensor([3, 2, 3])
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    if forbid:
        # The second sentence has no tree, and in the third only one word may hang on the root.
        mask[0, 1, 2] = mask[1, :, 0] = mask[2, 0, 1:] = mask[2, 2:, 0] = True

    def compute(scores, quantity):
        return getattr(SpanningTree(scores.masked_fill(mask, -INF), lengths, roots), quantity)

    with use_backend("reference"):
        assert SpanningTree(scores.masked_fill(mask, -INF), lengths, roots).log_partition[1].isinf() == forbid
        for quantity in ("marginals", "log_partition")[: 1 if forbid else 2]:
            assert torch.autograd.gradcheck(lambda s, q=quantity: compute(s, q), scores)
            assert torch.autograd.gradgradcheck(lambda s, q=quantity: compute(s, q), scores)


# Known quantities


@pytest.mark.parametrize("n", range(8))
def test_number_of_trees(backend, n):
    for roots, expected in (("multi", (n + 1) ** max(n - 1, 0)), ("single", n ** max(n - 1, 0) if n else 0)):
        tree = SpanningTree(torch.zeros(1, 7 + 1, 7).double(), torch.tensor([n]), roots)
        assert tree.support_size.tolist() == [expected] and tree.support_size.dtype == torch.double
        close(tree.log_partition.exp(), tree.support_size, 1e-12)
        if 0 < n <= 5:
            assert len(all_trees(n, roots == "single")) == expected


@pytest.mark.parametrize("scale", (1.0, 30.0, 300.0))
def test_every_word_has_one_head_and_a_single_root_one_dependent(backend, roots, scale):
    scores, lengths = random_scores(5, 9, scale), torch.tensor([9, 1, 4, 8, 2])
    tree = SpanningTree(scores, lengths, roots)
    close(tree.marginals.sum(-2), (torch.arange(9) < lengths[:, None]).double())
    rounding = 0 if backend == "cpu" else 1e-12
    assert tree.marginals.min() >= -rounding and tree.marginals.max() <= 1 + rounding
    if roots == "single":
        close(tree.marginals[:, 0].sum(-1), torch.ones(5))


@pytest.mark.parametrize("shift", (-90.0, 90.0))
def test_what_all_heads_of_a_word_gain_changes_nothing_but_log_z(backend, roots, shift):
    scores = random_scores(3, 6)
    gains = shift * torch.rand(3, 6).double()
    upstream = random_upstream(scores)
    plain = everything(scores, None, roots, upstream, backend)
    shifted = everything(scores + gains.unsqueeze(-2), None, roots, upstream, backend)
    close(shifted[0] - gains.sum(-1), plain[0])
    close(shifted[1], plain[1])
    close(shifted[2], plain[2])


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


def test_impossible_item_leaves_the_others_alone(backend, roots):
    scores = random_scores(3, 4)
    scores.data[1, 0] = -INF
    tree, alone = SpanningTree(scores, roots=roots), SpanningTree(scores[::2], roots=roots)
    possible = SpanningTree(random_scores(3, 4), roots=roots)
    assert tree.log_partition[1] == -INF
    for quantity in QUANTITIES:
        value = getattr(tree, quantity)
        close(value[::2], getattr(alone, quantity))
        assert quantity == "log_partition" or value[1].eq(0).all(), quantity
    samples = tree.sample((10,))
    assert samples[:, 1].eq(0).all() and samples[:, ::2].sum((-1, -2)).eq(4).all()
    assert tree.kl(possible)[1] == 0 and possible.kl(tree)[1] == INF
    on_scores = gradient(tree, scores, torch.tensor([1.0, 0.0, 1.0]), random_upstream(scores)[1])
    assert on_scores[1].eq(0).all() and on_scores[0].ne(0).any() and torch.isfinite(on_scores).all()


@pytest.mark.parametrize("n", (1, 4))
def test_a_score_that_is_no_number_is_not_hidden(backend, roots, n):
    scores = random_scores(2, n)
    scores.data[0, 0, 0] = float("nan")
    tree = SpanningTree(scores, roots=roots)
    (on_scores,) = torch.autograd.grad(tree.marginals.square().sum(), scores)
    for value in (tree.log_partition, tree.marginals, on_scores):
        assert value[0].isnan().any() and torch.isfinite(value[1]).all()


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
@pytest.mark.parametrize("scale", (1.0, 30.0, 100.0, 1000.0))
def test_float32_results_are_as_accurate_as_float32(roots, scale):
    scores, lengths = random_scores(4, 30, scale, torch.float32), torch.tensor([30, 7, 29, 18])
    upstream = random_upstream(scores)
    fast = everything(scores, lengths, roots, upstream, "cpu")
    exact = everything(scores, lengths, roots, upstream, "reference", torch.double)
    for actual, expected in zip(fast, exact):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), expected, rtol=2e-7, atol=1e-6)


def test_reference_in_float32(roots):
    for scale, tolerance in ((1.0, 1e-5), (30.0, 1e-4), (1000.0, 1e-3)):
        scores = random_scores(4, 20, scale, torch.float32)
        upstream = random_upstream(scores)
        single = everything(scores, None, roots, upstream, "reference")
        double = everything(scores, None, roots, upstream, "reference", torch.double)
        torch.testing.assert_close(single[0].double(), double[0], rtol=1e-6, atol=0)
        close(single[1].double(), double[1], tolerance)


def test_large_negative_stand_in_for_minus_infinity(backend, roots):
    for dtype in (torch.float32, torch.double):
        scores, mask = random_scores(6, 5, dtype=dtype), torch.rand(6, 6, 5) < 0.2
        upstream = random_upstream(scores)
        expected = everything(scores.masked_fill(mask, -INF), None, roots, upstream, backend)
        possible = expected[0] > -INF
        assert possible.any()
        for stand_in in (-1e9, torch.finfo(dtype).min):
            actual = everything(scores.masked_fill(mask, stand_in), None, roots, upstream, backend)
            for value, target in zip(actual, expected):
                close(value[possible], target[possible], 1e-5 if dtype == torch.float32 else 1e-10)
                assert not value.isnan().any()


@needs_numba
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(0, 4),
    n=st.integers(1, 12),
    roots=st.sampled_from(ROOTS),
    padded=st.booleans(),
    forbidden=st.sampled_from((0.0, 0.2, 0.6)),
    scale=st.sampled_from((0.1, 1.0, 10.0, 150.0, 1000.0)),
)
def test_implementations_agree_at_random(seed, batch, n, roots, padded, forbidden, scale):
    torch.manual_seed(seed)
    scores = random_scores(batch, n, scale)
    scores.data[torch.rand(scores.shape) < forbidden] = -INF
    lengths = torch.randint(0, n + 1, (batch,)) if padded else None
    on_log_partition, on_marginals = random_upstream(scores)
    with use_backend("reference"):
        on_log_partition[SpanningTree(scores, lengths, roots).log_partition == -INF] = 0
    upstream = (on_log_partition, on_marginals)
    fast, exact = (everything(scores, lengths, roots, upstream, name) for name in ("cpu", "reference"))
    for actual, expected in zip(fast, exact):
        close(actual, expected, 1e-9)


@needs_numba
@pytest.mark.parametrize("n", (1, 2, 3, 17, 31, 64, 65))
@pytest.mark.parametrize("scale", (1.0, 120.0))
def test_implementations_agree(roots, n, scale):
    scores = random_scores(2, n, scale)
    lengths = torch.tensor([n, max(n - 2, 1)])
    upstream = random_upstream(scores)
    fast, exact = (everything(scores, lengths, roots, upstream, name) for name in ("cpu", "reference"))
    for actual, expected in zip(fast, exact):
        close(actual, expected, 1e-9)


# Padding and inputs


@pytest.mark.parametrize("garbage", (float("nan"), INF, -INF))
def test_padding_reaches_neither_values_nor_gradients(backend, roots, garbage):
    lengths = torch.tensor([0, 1, 3, 5])
    scores = random_scores(4, 5)
    no_arc = ~SpanningTree(scores, lengths).arc_mask
    scores.data.masked_fill_(no_arc, garbage)
    tree = SpanningTree(scores, lengths, roots)
    finite = tree.log_partition > -INF
    assert finite.tolist() == [roots == "multi", True, True, True]
    loss = (
        tree.log_partition[finite].sum() + tree.entropy.sum() + tree.kl(SpanningTree(scores * 2, lengths, roots)).sum()
    )
    loss = loss + tree.log_prob(tree.argmax)[finite].sum() + tree.marginals.log().masked_fill(no_arc, 0)[finite].sum()
    upstream = torch.ones_like(tree.marginals).masked_fill(no_arc, float("nan"))
    on_scores = sum(torch.autograd.grad((loss, tree.marginals), scores, (torch.ones_like(loss), upstream)))
    assert torch.isfinite(loss) and torch.isfinite(on_scores).all() and on_scores[no_arc].eq(0).all()
    for value in (tree.marginals, tree.argmax, tree.sample()):
        assert value[no_arc].eq(0).all()
    assert tree.log_partition[0] == (0 if roots == "multi" else -INF)


@pytest.mark.parametrize("scale", (1.0, 200.0))
def test_each_length_as_if_alone(backend, roots, scale):
    lengths = torch.tensor([6, 0, 1, 3, 5])
    scores = random_scores(5, 6, scale)
    upstream = torch.randn(5, 7, 6).double()
    tree = SpanningTree(scores, lengths, roots)
    (on_scores,) = torch.autograd.grad((tree.marginals * upstream).sum(), scores)
    for i, n in enumerate(lengths.tolist()):
        own = scores[i, : n + 1, :n].detach().requires_grad_()
        alone = SpanningTree(own, roots=roots)
        close(tree.log_partition[i], alone.log_partition)
        close(tree.marginals[i, : n + 1, :n], alone.marginals)
        close(tree.argmax[i, : n + 1, :n], alone.argmax)
        close(tree.entropy[i], alone.entropy, 1e-10 * scale)
        assert tree.marginals[i].sum().item() == pytest.approx(n)
        if n > 0:
            (on_own,) = torch.autograd.grad((alone.marginals * upstream[i, : n + 1, :n]).sum(), own)
            close(on_scores[i, : n + 1, :n], on_own)


@pytest.mark.parametrize("shape", ((0, 4, 3), (3, 1, 0), (0, 1, 0), (2, 1), (2, 3, 5, 4), (2, 2, 1)))
def test_any_batch_shape(backend, roots, shape):
    if shape == (2, 1):
        shape = (2, 1, 0) if roots == "single" else (1, 0)
    scores = torch.randn(shape, requires_grad=True)
    tree = SpanningTree(scores, roots=roots)
    assert tree.marginals.shape == tree.argmax.shape == shape
    for quantity in ("log_partition", "entropy", "support_size"):
        assert getattr(tree, quantity).shape == shape[:-2], quantity
    assert tree.sample((2, 1)).shape == (2, 1) + shape
    assert tree.log_prob(tree.argmax).shape == shape[:-2]
    (tree.marginals.sum() + tree.log_partition.sum()).backward()
    close(scores.grad, tree.marginals, 1e-5)


def test_views_of_other_memory_layout(backend, roots):
    base = torch.randn(5, 3, 6).double().requires_grad_()
    views = (
        base.permute(1, 2, 0),
        base.transpose(1, 2)[:, :4],
        base[:1, :, :4].transpose(1, 2).expand(7, 4, 3),
        base.reshape(3, 5, 6).transpose(1, 2),
    )
    for view in views:
        copy = view.detach().clone().contiguous().requires_grad_()
        upstream = torch.randn(view.shape[::-1]).double().permute(2, 1, 0)
        lengths = torch.tensor([view.shape[-1]]).expand(len(view))
        tree, same = SpanningTree(view, lengths, roots), SpanningTree(copy, roots=roots)
        close(tree.marginals, same.marginals, 1e-13)
        (actual,) = torch.autograd.grad(tree.marginals, base, upstream)
        (on_copy,) = torch.autograd.grad(same.marginals, copy, upstream)
        close(actual, torch.autograd.grad(view, base, on_copy)[0])


def test_tensors_and_flags_of_the_caller_are_untouched(backend, roots):
    for dtype in (torch.float32, torch.double):
        for needs_grad in (False, True):
            scores, lengths = random_scores(2, 4, 300.0, dtype), torch.tensor([4, 3])
            scores.data[0, 2, 0] = -INF
            scores.requires_grad_(needs_grad)
            before, lengths_before = scores.detach().clone(), lengths.clone()
            tree = SpanningTree(scores, lengths, roots)
            for quantity in QUANTITIES:
                assert getattr(tree, quantity).requires_grad == (needs_grad and quantity != "argmax"), quantity
            tree.sample((2,))
            if needs_grad:
                torch.autograd.grad(tree.entropy.sum() + tree.marginals.square().sum(), scores)
            assert torch.equal(scores, before) and torch.equal(lengths, lengths_before)
            assert scores.requires_grad == needs_grad and scores.grad is None


def test_inference_mode(backend, roots):
    expected = SpanningTree(random_scores(2, 4), roots=roots)
    with torch.inference_mode():
        tree = SpanningTree(expected._arc_scores * 1, roots=roots)
        for quantity in QUANTITIES:
            close(getattr(tree, quantity), getattr(expected, quantity))
        assert tree.sample().shape == (2, 5, 4)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.double))
def test_results_have_the_dtype_of_the_scores_and_autocast_has_no_effect(backend, dtype):
    scores = random_scores(2, 5, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tree = SpanningTree(scores)
        values = [getattr(tree, quantity) for quantity in QUANTITIES]
    wide = SpanningTree(scores.double())
    tolerance = 1e-12 if dtype == torch.double else 2 * max(torch.finfo(dtype).eps, 2e-6)
    for quantity, value in zip(QUANTITIES, values):
        assert value.dtype == dtype, quantity
        close(value.double(), getattr(wide, quantity), tolerance)
    values[1].square().sum().backward()
    assert scores.grad.dtype == dtype


def test_single_and_multi_root_objects_side_by_side(backend):
    scores = random_scores(3, 4)
    trees = {roots: SpanningTree(scores, roots=roots) for roots in ROOTS}
    upstream = random_upstream(scores)
    losses = {roots: (tree.log_partition.sum(), tree.marginals) for roots, tree in trees.items()}
    for roots in ROOTS:
        on_scores = torch.autograd.grad(losses[roots], scores, (torch.ones(()).double(), upstream[1]))[0]
        for i, exact in enumerate(enumerate_all(scores, roots)):
            close(on_scores[i], exact.gradient(1.0, upstream[1][i]))


@needs_numba
def test_kernels_are_compiled_once_whatever_the_layout_and_dtype():
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
        assert len(module.expectations.signatures) == len(module.gradient.signatures) == 1


@needs_numba
def test_a_sentence_does_not_depend_on_its_neighbours():
    # Of three sentences, one is computed in log space.
    scores = random_scores(3, 10)
    scores.data[1] *= 1000
    upstream = random_upstream(scores)
    for roots in ROOTS:
        together = everything(scores, None, roots, upstream, "cpu")
        for i in range(3):
            alone = everything(scores[i : i + 1], None, roots, [g[i : i + 1] for g in upstream], "cpu")
            for all_values, own in zip(together, alone):
                close(all_values[i : i + 1], own, 1e-13)


def test_two_runs_are_identical(backend, roots):
    scores, lengths = random_scores(9, 12, 20.0, torch.float32), torch.tensor([12, 5, 12] * 3)
    upstream = random_upstream(scores)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        tree = SpanningTree(scores, lengths, roots)
        runs.append((tree.sample((3,)), tree.argmax) + everything(scores, lengths, roots, upstream, backend))
    assert all(map(torch.equal, *runs))


@needs_numba
def test_threads(roots):
    scores = random_scores(8, 10, 30.0)
    upstream = random_upstream(scores)
    expected = everything(scores, None, roots, upstream, "cpu")
    before, results = torch.get_num_threads(), []

    def work():
        for _ in range(5):
            results.append(everything(scores, None, roots, upstream, "cpu"))

    torch.set_num_threads(3)
    try:
        callers = [threading.Thread(target=work) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(before)
    assert len(results) == 20
    for values in results:
        assert all(map(torch.equal, values, expected))


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


def test_argmax_of_ties_is_one_tree_and_always_the_same(roots):
    tree = SpanningTree(torch.zeros(3, 7, 6), torch.tensor([6, 4, 1]), roots)
    assert torch.isfinite(tree.log_prob(tree.argmax)).all()
    again = SpanningTree(torch.zeros(3, 7, 6), torch.tensor([6, 4, 1]), roots)
    assert torch.equal(tree.argmax, again.argmax)


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


# Samples


# Wilson's walk, the walk without loops, and the latter where the former takes long.
PATIENCE = (1e4, 0.0, 0.2)


def frequencies_agree(frequency, p, draws):
    # 4.5 standard deviations, and some room where almost nothing is expected.
    deviation = (p * (1 - p).clamp(min=0) / draws).sqrt()
    return ((frequency - p).abs() <= 4.5 * deviation + 4 / draws).all()


@pytest.mark.parametrize("patience", PATIENCE)
def test_samples_have_the_probabilities_of_trees(backend, roots, patience, monkeypatch):
    monkeypatch.setattr(wilson, "PATIENCE", patience)
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
@pytest.mark.parametrize("patience", PATIENCE[1:])
def test_samples_have_the_marginals_at_any_size_of_scores(roots, patience, scale, monkeypatch):
    monkeypatch.setattr(wilson, "PATIENCE", patience)
    tree, draws = SpanningTree(random_scores(4, 5, scale), torch.tensor([5, 1, 2, 4]), roots), 1000
    samples = tree.sample((draws,))
    assert torch.isfinite(tree.log_prob(samples)).all()
    assert frequencies_agree(samples.mean(0), tree.marginals, draws)


def test_words_that_prefer_each_other_to_the_root_are_sampled(roots):
    # A walk would circle for e^50 steps; the way out is taken from either word alike.
    scores = torch.tensor([[-50.0, -50.0, -60.0], [-INF, 0.0, 0.0], [0.0, -INF, -1.0], [-50.0, -50.0, -INF]]).double()
    tree, draws = SpanningTree(scores, roots=roots), 4000
    samples = tree.sample((draws,))
    assert frequencies_agree(samples.mean(0), tree.marginals, draws)


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


@pytest.mark.parametrize("patience", (1.0, 0.0))
def test_argmax_and_samples_are_the_same_without_numba(roots, patience, monkeypatch):
    def draw():
        torch.manual_seed(1)
        tree = SpanningTree(5 * torch.randn(3, 6, 5).double(), torch.tensor([5, 0, 4]), roots)
        monkeypatch.setattr(importlib.import_module(wilson.__name__), "PATIENCE", patience)
        return tree.argmax, tree.sample((10,))

    expected = draw()
    monkeypatch.setattr(numba_compile, "available", lambda: False)
    for name in ("chu_liu_edmonds", "wilson"):
        monkeypatch.delitem(sys.modules, f"{spanning_tree.__name__}.{name}", raising=False)
        monkeypatch.delattr(spanning_tree, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        plain = draw()
    assert spanning_tree.wilson is not wilson
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
