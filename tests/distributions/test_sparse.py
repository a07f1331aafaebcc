"""sparsemax and α-entmax: what holds of a distribution over positions that is no exponential family."""

import math

import pytest
import torch
from contract import close

from fairseq_structattn.distributions import Categorical, Entmax, Entmax15, Sparsemax, get_distribution, sparse
from fairseq_structattn.modules.attention import StructuredAttention

pytest.importorskip("entmax")

INF = math.inf
LENGTHS = torch.tensor([6, 3, 1, 0])
ALPHA = torch.tensor([1.3], dtype=torch.double)
KINDS = {"sparsemax": (Sparsemax, 2.0), "entmax15": (Entmax15, 1.5), "entmax": (Entmax, ALPHA.item())}


@pytest.fixture(params=KINDS)
def kind(request):
    """The function that makes the distribution of scores and lengths, and its α."""
    cls, alpha = KINDS[request.param]
    return (lambda *given: Entmax(given[0], ALPHA, *given[1:])) if cls is Entmax else cls, alpha


def draw(*shape):
    return torch.randn(shape, dtype=torch.double)


def mapping(scores, alpha):
    """p = [(α − 1) s − τ]₊^(1 / (α − 1)), with τ by bisection, in plain Python."""
    low, high = max(scores) * (alpha - 1) - 1, max(scores) * (alpha - 1)
    for _ in range(200):
        threshold = (low + high) / 2
        p = [max((alpha - 1) * score - threshold, 0) ** (1 / (alpha - 1)) for score in scores]
        low, high = (threshold, high) if sum(p) > 1 else (low, threshold)
    return p


def test_probabilities_and_all_that_is_made_of_them(kind):
    build, alpha = kind
    scores, samples = draw(4, 6), 2000
    distribution, other = build(scores, LENGTHS), build(scores / 2, LENGTHS)
    drawn = distribution.sample((samples,)).mean(0)
    for i, length in enumerate(LENGTHS.tolist()):
        if length == 0:
            continue
        p, q = (mapping((scores[i, :length] / by).tolist(), alpha) for by in (1, 2))
        close(distribution.marginals[i, :length], p, 1e-9)
        close(distribution.entropy()[i], -sum(each * math.log(each) for each in p if each > 0), 1e-9)
        close(distribution.kl(other)[i], sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0), 1e-9)
        close(drawn[i, :length], p, 4 * (0.25 / samples) ** 0.5)
        for j, each in enumerate(p):
            one_hot = torch.eye(6)[j].expand(4, 6)
            close(distribution._log_prob(one_hot)[i].exp(), each, 1e-9)
        best = distribution.topk(2)
        close(best.log_probs[:, i].exp(), (sorted(p, reverse=True) + [0])[:2], 1e-9)
        assert distribution.as_integers(best.structures)[0, i] == p.index(max(p)) == distribution.argmax[i].argmax()
        close(distribution.max[i], scores[i, :length].max(), 1e-12)
    assert distribution.marginals[~distribution.position_mask].eq(0).all()
    assert distribution.entropy()[3] == 0 and not distribution.argmax[3].any() and not drawn[3].any()
    assert distribution.support_size.tolist() == LENGTHS.tolist()


def test_low_scores_have_probability_and_gradient_zero(kind):
    build, alpha = kind
    scores = torch.tensor([0.0, 0.5, -1 / (alpha - 1)], dtype=torch.double, requires_grad=True)
    distribution = build(scores)
    assert distribution.marginals[2] == 0 and (distribution.marginals[:2] > 0).all()
    (gradient,) = torch.autograd.grad(distribution.marginals @ draw(3), scores)
    assert gradient[2] == 0 and (gradient[:2] != 0).all()
    never = torch.tensor([0.0, 0, 1], dtype=torch.double)
    assert distribution.log_prob(never) == -INF and distribution.support.check(never)
    assert build(torch.zeros(3)).kl(build(torch.tensor([0.0, 0, -9]))) == INF


def test_gradients_are_those_of_differences(kind):
    build, _ = kind
    other = build(draw(3, 5) / 20)

    def quantities(scores):
        distribution = build(scores, torch.tensor([5, 4, 0]))
        return distribution.marginals, distribution.entropy(), distribution.max[:2], distribution.log_prob(
            distribution.argmax
        )[:2]  # fmt: skip

    assert torch.autograd.gradcheck(quantities, (draw(3, 5) / 20).requires_grad_())
    assert torch.autograd.gradcheck(lambda scores: build(scores).kl(other), (draw(3, 5) / 20).requires_grad_())


def test_alpha_has_a_gradient():
    scores, alpha = (draw(3, 5) / 20).requires_grad_(), torch.tensor([[1.2], [1.5], [1.9]]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: Entmax(*tensors).marginals, (scores, alpha))
    close(Entmax(scores, torch.tensor([2.0])).marginals, Sparsemax(scores).marginals, 1e-9)
    close(Entmax(scores, torch.tensor([1.5])).marginals, Entmax15(scores).marginals, 1e-9)
    close(Entmax(scores, torch.tensor([1.001])).marginals, Categorical(scores).marginals, 1e-2)


@pytest.mark.parametrize("garbage", (math.nan, INF, -INF))
def test_padding_reaches_neither_values_nor_gradients(kind, garbage):
    build, _ = kind
    clean, results = draw(4, 6), []
    for scores in (clean, clean.masked_fill(torch.arange(6) >= LENGTHS.unsqueeze(-1), garbage)):
        leaf = scores.clone().requires_grad_()
        distribution = build(leaf, LENGTHS)
        loss = (distribution.marginals * torch.arange(6)).sum() + distribution.entropy().sum()
        results.append([distribution.marginals, distribution.argmax, *torch.autograd.grad(loss, leaf)])
    assert all(map(torch.equal, *results)) and results[1][2].isfinite().all()


@pytest.mark.parametrize("scale", (1e-30, 1.0, 1e9, 1e38))
@pytest.mark.parametrize("shift", (0.0, -1e9, -INF))
def test_scores_of_any_size(kind, scale, shift):
    build, _ = kind
    scores = torch.tensor([[1.0, 3.0, -2.0], [0.0, 0.0, 0.0]]) * scale + torch.tensor([0.0, shift, 0.0])
    scores.requires_grad_()
    distribution = build(scores)
    close(distribution.marginals.sum(-1), torch.ones(2), 1e-6)
    (gradient,) = torch.autograd.grad(distribution.marginals.square().sum(), scores)
    assert gradient.isfinite().all()
    if shift == -INF:
        assert distribution.marginals[:, 1].eq(0).all()
        close(distribution.marginals[1], torch.tensor([0.5, 0, 0.5]), 1e-6)


def test_an_item_that_is_no_number_or_has_no_possibility_leaves_the_others_alone(kind):
    build, _ = kind
    scores = draw(4, 3)
    healthy = build(scores.clone())
    scores[1, 1], scores[2] = math.nan, -INF
    scores.requires_grad_()
    distribution = build(scores)
    assert distribution.marginals[1].isnan().all() and distribution.entropy()[1].isnan()
    assert distribution.marginals[2].eq(0).all() and distribution.kl(healthy)[2] == 0
    assert healthy.kl(distribution)[2] == INF
    close(distribution.marginals[[0, 3]], healthy.marginals[[0, 3]], 0)
    (gradient,) = torch.autograd.grad(distribution.marginals.square().sum(), scores)
    assert gradient[[0, 2, 3]].isfinite().all() and gradient[1].isnan().any()


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
@pytest.mark.parametrize("shape", ((), (0,), (2, 3)))
def test_shapes_and_types(kind, shape, dtype):
    build, _ = kind
    distribution = build(draw(*shape, 4).to(dtype))
    assert distribution.marginals.shape == distribution.argmax.shape == shape + (4,)
    assert distribution.sample((2,)).shape == (2,) + shape + (4,) and distribution.expand((5,) + shape).entropy().shape
    for value in (distribution.marginals, distribution.entropy(), distribution.argmax, distribution.max):
        assert value.dtype == dtype
    nothing = build(draw(2, 0))
    assert nothing.marginals.shape == (2, 0) and nothing.entropy().tolist() == [0, 0]


def test_there_is_no_log_partition(kind):
    with pytest.raises(NotImplementedError, match="has no log_partition"):
        _ = kind[0](draw(3)).log_partition


def test_alpha_has_to_fit():
    with pytest.raises(ValueError, match=r"alpha is 1.0; it must be greater than 1"):
        Entmax(draw(2, 3), torch.ones(1))
    with pytest.raises(ValueError, match=r"alpha has shape \(3,\); it must be \(…, 1\)"):
        Entmax(draw(2, 3), torch.full((3,), 1.5))


@pytest.mark.parametrize("name", KINDS)
def test_attention_names_the_library_that_is_missing(name, monkeypatch):
    def missing(module):
        raise ImportError(module)

    monkeypatch.setattr(sparse.importlib, "import_module", missing)
    with pytest.raises(ImportError, match="need the library entmax: pip install entmax"):
        StructuredAttention(4, 4, distribution=name)
    cls = get_distribution(name)
    with pytest.raises(ImportError, match="pip install entmax"):
        cls(draw(3), **({"alpha": ALPHA} if cls is Entmax else {}))


@pytest.mark.parametrize("name", KINDS)
def test_attention_is_sparse_and_each_module_learns_its_own_alpha(name):
    torch.manual_seed(0)
    modules = [StructuredAttention(6, 4, distribution=name) for _ in range(2)]
    for attention in modules:
        source = attention.prepare(2 * torch.randn(2, 5, 4), torch.tensor([5, 2]))
        context, weights = attention(torch.randn(2, 3, 6), source)
        assert (weights[0] == 0).any() and weights[1, :, 2:].eq(0).all()
        close(weights.sum(-1), torch.ones(2, 3), 1e-6)
        context.square().sum().backward()
        assert sorted(attention.tables) == (["sparsity"] if name == "entmax" else [])
        assert all(parameter.grad.abs().max() > 0 for parameter in attention.parameters())
    if name == "entmax":
        assert modules[0].tables["sparsity"] is not modules[1].tables["sparsity"]
        posterior = modules[0].posterior(torch.randn(2, 3, 6), source)
        assert 1.4 < posterior.alpha.item() < 1.6
