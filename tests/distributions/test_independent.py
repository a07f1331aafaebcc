"""Categorical and Bernoulli, and what all distributions share."""

import itertools

import pytest
import torch

from fairseq_structattn.distributions import (
    Bernoulli,
    Categorical,
    LinearChain,
    StructuredDistribution,
    distribution_names,
    get_distribution,
    register_distribution,
    use_backend,
)
from fairseq_structattn.distributions.backend import current_backend

INF = float("inf")
CLASSES = (Categorical, Bernoulli)
QUANTITIES = ("log_partition", "marginals", "argmax", "entropy")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def structures(cls, n):
    if cls is Categorical:
        return torch.eye(n).double()
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n))).double().reshape(-1, n)


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("scale", (1.0, 50.0, 1000.0))
@pytest.mark.parametrize("forbid", (False, True))
def test_values_equal_enumeration(cls, scale, forbid):
    logits, other = scale * torch.randn(5).double(), torch.randn(5).double()
    if forbid:
        logits[2] = -INF
    parts = structures(cls, 5)
    scores = torch.where(parts == 1, logits, torch.zeros(()).double()).sum(1)
    log_probs = scores.log_softmax(0)
    distribution = cls(logits)
    close(distribution.log_partition, scores.logsumexp(0))
    close(distribution.marginals, log_probs.exp() @ parts)
    close(distribution.argmax, parts[scores.argmax()])
    close(distribution.log_prob(parts), log_probs)
    close(distribution.entropy, -torch.special.xlogy(log_probs.exp(), log_probs.exp()).sum(), 1e-10 * scale)
    other_log_probs = (parts @ other).log_softmax(0)
    terms = (log_probs.exp() * (log_probs - other_log_probs)).masked_fill(log_probs == -INF, 0)
    close(distribution.kl(cls(other)), terms.sum(), 1e-10 * scale)
    assert distribution.support_size == len(parts)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("quantity", ("log_partition", "marginals", "entropy"))
@pytest.mark.parametrize("forbid", (False, True))
def test_gradients(cls, quantity, forbid):
    logits = torch.randn(3, 4).double().requires_grad_()
    lengths = torch.tensor([4, 2, 1])

    def compute(logits):
        if forbid:
            logits = logits.masked_fill(torch.tensor([False, True, False, False]), -INF)
        return getattr(cls(logits, lengths), quantity)

    assert torch.autograd.gradcheck(compute, (logits,))
    assert torch.autograd.gradgradcheck(compute, (logits,))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("garbage", (float("nan"), INF, -INF))
def test_padding_and_each_length_alone(cls, garbage):
    lengths = torch.tensor([3, 0, 1, 4])
    logits = torch.randn(4, 4).double()
    padding = torch.arange(4) >= lengths[:, None]
    logits = logits.masked_fill(padding, garbage).requires_grad_()
    distribution = cls(logits, lengths)
    upstream = torch.ones(4, 4).double().masked_fill(padding, float("nan"))
    (gradient,) = torch.autograd.grad(distribution.marginals, logits, upstream, retain_graph=True)
    possible = distribution.log_partition[lengths > 0]
    (second,) = torch.autograd.grad(possible.sum() + distribution.entropy.sum(), logits)
    for value in (distribution.marginals, distribution.argmax, distribution.sample(), gradient, second):
        assert value[padding].eq(0).all() and torch.isfinite(value).all()
    for i, n in enumerate(lengths.tolist()):
        alone = cls(logits[i, :n])
        close(distribution.marginals[i, :n], alone.marginals)
        close(distribution.argmax[i, :n], alone.argmax)
        close(distribution.log_partition[i], alone.log_partition)
        close(distribution.entropy[i], alone.entropy)
    assert distribution.log_partition[1] == (-INF if cls is Categorical else 0)
    assert torch.isfinite(distribution.log_prob(distribution.argmax)[[0, 2, 3]]).all()


def test_impossible_row_of_a_categorical():
    logits = torch.tensor([[-INF, -INF], [0.0, 1.0]], requires_grad=True)
    distribution = Categorical(logits)
    assert distribution.log_partition[0] == -INF
    for quantity in ("marginals", "argmax", "entropy"):
        assert getattr(distribution, quantity)[0].eq(0).all(), quantity
    assert distribution.sample((4,))[:, 0].eq(0).all() and distribution.sample((4,))[:, 1].sum() == 4
    (distribution.marginals.square().sum() + distribution.entropy.sum()).backward()
    assert logits.grad[0].eq(0).all() and logits.grad[1].ne(0).all()


def test_structures_outside_the_support_of_a_categorical():
    distribution = Categorical(torch.zeros(3))
    parts = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0]])
    assert distribution.log_prob(parts)[:2].tolist() == [-INF, -INF]
    close(distribution.log_prob(parts)[2], -torch.tensor(3.0).log(), 1e-6)


@pytest.mark.parametrize("cls", CLASSES)
def test_samples_have_the_marginals(cls):
    distribution = cls(torch.randn(2, 5).double(), torch.tensor([5, 3]))
    draws = 4000
    samples = distribution.sample((draws,))
    p = distribution.marginals
    assert samples.shape == (draws, 2, 5) and set(samples.unique().tolist()) == {0, 1}
    assert ((samples.mean(0) - p).abs() <= 4 * (p * (1 - p) / draws).sqrt()).all()
    if cls is Categorical:
        assert samples.sum(-1).eq(1).all()


def test_log_partition_of_bernoulli_is_exact_in_float64():
    logits = torch.tensor([21.0, 25.0, 30.0, 39.0, 41.0, -25.0]).double()
    close(Bernoulli(logits[:, None]).log_partition, torch.logaddexp(logits, torch.zeros(6).double()), 1e-15)


class Matrices(Bernoulli):
    """Computes with the one kind of operation that autocast rounds."""

    def _inference(self, dtype):
        log_partition, marginals = super()._inference(dtype)
        return (log_partition.float().unsqueeze(-1) @ torch.ones(1, 1)).squeeze(-1), marginals


def test_autocast_is_off_inside_a_distribution():
    logits = torch.randn(3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(Matrices(logits).log_partition, Bernoulli(logits).log_partition, 1e-6)


def test_linear_chain_without_couplings_is_bernoulli():
    logits, lengths = torch.randn(3, 6).double(), torch.tensor([6, 2, 0])
    chain, independent = LinearChain(logits, torch.zeros(2, 2).double(), lengths), Bernoulli(logits, lengths)
    for quantity in QUANTITIES:
        close(getattr(chain, quantity), getattr(independent, quantity))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_dtype_is_kept_and_autocast_has_no_effect(cls, dtype):
    logits = torch.randn(3, 6).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        distribution = cls(logits)
        values = [getattr(distribution, quantity) for quantity in QUANTITIES]
    wide = cls(logits.double())
    tolerance = max(2 * torch.finfo(dtype).eps, 1e-6 if dtype != torch.double else 1e-12)
    for quantity, value in zip(QUANTITIES, values):
        assert value.dtype == dtype, quantity
        close(value.double(), getattr(wide, quantity), tolerance)
    values[1].square().sum().backward()
    assert logits.grad.dtype == dtype


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("shape", ((0, 3), (2, 0), (3,), (2, 3, 4)))
def test_any_batch_shape(cls, shape):
    distribution = cls(torch.randn(shape))
    assert distribution.marginals.shape == distribution.argmax.shape == shape
    for quantity in ("log_partition", "entropy", "support_size"):
        assert getattr(distribution, quantity).shape == shape[:-1], quantity
    assert distribution.sample((2, 1)).shape == (2, 1) + shape
    assert distribution.position_marginals is distribution.marginals


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "error, match, logits, lengths",
    (
        (TypeError, "logits has dtype torch.int64.*float", torch.zeros(2, 3).long(), None),
        (TypeError, "logits has dtype torch.complex64", torch.zeros(2, 3) * 1j, None),
        (TypeError, "logits is a list", [0.0], None),
        (ValueError, r"logits has shape \(\)", torch.tensor(0.0), None),
        (TypeError, "lengths is a list.*torch.tensor", torch.zeros(2, 3), [1, 2]),
        (TypeError, "lengths has dtype torch.float32.*long", torch.zeros(2, 3), torch.ones(2)),
        (TypeError, "lengths has dtype torch.bool", torch.zeros(2, 3), torch.ones(2).bool()),
        (ValueError, "from 1 to 4; they must lie between 0 and 3", torch.zeros(2, 3), torch.tensor([1, 4])),
        (ValueError, "from -1 to 2", torch.zeros(2, 3), torch.tensor([-1, 2])),
        (ValueError, r"lengths has shape \(3,\).*batch shape \(2,\)", torch.zeros(2, 3), torch.ones(3).long()),
        (ValueError, r"lengths has shape \(1, 2\)", torch.zeros(2, 3), torch.ones(1, 2).long()),
    ),
)
def test_errors_of_inputs(cls, error, match, logits, lengths):
    with pytest.raises(error, match=match):
        cls(logits, lengths)


def test_kl_of_what_cannot_be_compared():
    categorical = Categorical(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="other is a Bernoulli; kl needs another Categorical"):
        categorical.kl(Bernoulli(torch.zeros(2, 3)))
    with pytest.raises(ValueError, match=r"batch shape \(3,\) and 3 positions; kl needs \(2,\) and 3"):
        categorical.kl(Categorical(torch.zeros(3, 3)))
    with pytest.raises(ValueError, match=r"lengths \[1, 3\]"):
        categorical.kl(Categorical(torch.zeros(2, 3), torch.tensor([1, 3])))


# Registry and hooks of attention


def test_registered_names():
    assert {"softmax", "sigmoid", "linear-chain"} <= set(distribution_names())
    assert get_distribution("softmax") is Categorical
    assert get_distribution("sigmoid") is Bernoulli
    assert get_distribution("linear-chain") is LinearChain


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'nonsense'.*linear-chain.*sigmoid.*softmax"):
        get_distribution("nonsense")


def test_a_name_has_one_class():
    assert register_distribution("softmax")(Categorical) is Categorical
    with pytest.raises(ValueError, match="'softmax' belongs to .*Categorical"):
        register_distribution("softmax")(Bernoulli)
    assert get_distribution("softmax") is Categorical


def test_the_same_definition_may_register_again():
    again = type("Categorical", (Categorical,), {"__module__": Categorical.__module__, "__qualname__": "Categorical"})
    try:
        assert register_distribution("softmax")(again) is again
        assert get_distribution("softmax") is again
    finally:
        register_distribution("softmax")(Categorical)


def test_only_distributions_are_registered():
    with pytest.raises(TypeError, match="StructuredDistribution"):
        register_distribution("dictionary")(dict)
    assert "dictionary" not in distribution_names()


@pytest.mark.parametrize("name", ("softmax", "sigmoid", "linear-chain"))
def test_attention_can_build_any_of_them(name):
    cls = get_distribution(name)
    assert issubclass(cls, StructuredDistribution)
    tables = {key: torch.randn(shape) for key, shape in cls.parameter_shapes().items()}
    scores, lengths = torch.randn(2, 3, 5), torch.tensor([[5], [2]])
    weights = cls.from_scores(scores, lengths, **tables).position_marginals
    assert weights.shape == scores.shape and weights[1, :, 2:].eq(0).all()
    assert list(tables) == (["pairwise"] if name == "linear-chain" else [])


# Choice of the implementation


def test_backend_from_environment_and_block(monkeypatch):
    monkeypatch.delenv("STRUCTATTN_BACKEND", raising=False)
    assert current_backend() == "auto"
    monkeypatch.setenv("STRUCTATTN_BACKEND", "reference")
    assert current_backend() == "reference"
    with use_backend("auto"):
        assert current_backend() == "auto"
    assert current_backend() == "reference"
    monkeypatch.setenv("STRUCTATTN_BACKEND", "gpu")
    with pytest.raises(ValueError, match="STRUCTATTN_BACKEND: unknown backend 'gpu'.*auto, cuda, cpu, reference"):
        current_backend()
    with pytest.raises(ValueError, match="use_backend: unknown backend 'fast'"):
        with use_backend("fast"):
            raise AssertionError("the block must not run")
