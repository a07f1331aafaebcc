"""Categorical and Bernoulli, and what all distributions share."""

import pytest
import torch
from contract import quantity_of

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


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


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
        close(quantity_of(chain, quantity), quantity_of(independent, quantity))


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
    with pytest.raises(TypeError, match="other is a Bernoulli; it must be a Categorical"):
        categorical.kl(Bernoulli(torch.zeros(2, 3)))
    with pytest.raises(ValueError, match=r"batch shape \(3,\) and 3 positions; they must be \(2,\) and 3"):
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
