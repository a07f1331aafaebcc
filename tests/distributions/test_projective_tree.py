import math

import pytest
import torch
from enumeration_projective import all_trees, is_projective_tree

from fairseq_structattn.distributions import ProjectiveTree, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.projective_tree import reference

INF, NAN = float("inf"), float("nan")
ROOTS = ("multi", "single")
MULTI_COUNTS = (1, 1, 3, 12, 55, 273, 1428, 7752)
SINGLE_COUNTS = (0, 1, 2, 7, 30, 143, 728, 3876)

needs_numba = pytest.mark.skipif(not numba_compile.available(), reason="needs numba")


@pytest.fixture(params=("reference", pytest.param("cpu", marks=needs_numba)))
def backend(request):
    with use_backend(request.param):
        yield request.param


def random_scores(batch, n, scale=1.0, dtype=torch.double):
    return (scale * torch.randn(batch, n + 1, n, dtype=torch.double)).to(dtype).requires_grad_()


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def upstream_for(scores):
    return torch.randn(scores.shape[:-2]).to(scores), torch.randn(scores.shape).to(scores)


def everything(scores, upstream, lengths=None, roots="multi"):
    """log Z, marginals and the gradient of both."""
    scores = scores.detach().requires_grad_()
    tree = ProjectiveTree(scores, lengths, roots)
    outputs = tree.log_partition, tree.marginals
    return outputs + torch.autograd.grad(outputs, scores, upstream)


# Against enumeration


def test_probabilities_of_all_trees_and_of_no_others(backend, roots):
    n = 4
    tree = ProjectiveTree(random_scores(1, n)[0], roots=roots, validate_args=False)
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


# Sizes of scores


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


# Gradients


@pytest.mark.parametrize("scale", (1.0, 30.0))
def test_the_backend_of_the_paper_gives_the_same(backend, scale, roots):
    lengths = torch.tensor([7, 3, 0, 6])
    scores = random_scores(4, 7, scale)
    scores.data[0, 2, 3] = -INF
    upstream = upstream_for(scores)
    expected = everything(scores, upstream, lengths, roots)
    with use_backend("paper"):
        for actual, right in zip(everything(scores, upstream, lengths, roots), expected):
            close(actual, right)


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
