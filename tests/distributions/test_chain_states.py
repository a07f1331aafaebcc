"""Linear chains with K states, scores of the ends, fields and couplings, and the paper's own backward pass."""

import pytest
import torch
from contract import quantity_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_structattn.distributions import LinearChain, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.linear_chain import signed_log

INF = float("inf")
STATES = 3


@pytest.fixture(params=("cpu", "reference"))
def backend(request):
    if request.param == "cpu" and not numba_compile.available():
        pytest.skip("needs numba")
    with use_backend(request.param):
        yield request.param


def random_potentials(chains, n, per_edge=False, scale=1.0, dtype=torch.double, states=STATES):
    """unary, pairwise, start, end"""
    leading = (chains, max(n - 1, 0)) if per_edge else ()
    shapes = (chains, n, states), leading + (states, states), (states,), (chains, states)
    return tuple((scale * torch.randn(shape, dtype=dtype)).requires_grad_() for shape in shapes)


def make(potentials, lengths=None):
    unary, pairwise, start, end = potentials
    return LinearChain(unary, pairwise, lengths, start=start, end=end, num_states=unary.shape[-1])


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def outputs(chain):
    return chain.log_partition, chain.marginals, chain.edge_marginals


def random_upstream(chains, n, states=STATES, dtype=torch.double):
    shapes = (chains,), (chains, n, states), (chains, max(n - 1, 0), states, states)
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def gradients(chain, inputs, upstream):
    return torch.autograd.grad(sum((out * g).sum() for out, g in zip(outputs(chain), upstream)), inputs)


# Values and gradients against enumeration


@pytest.mark.parametrize("leading", ((), (1,), (3, 1), (2,)))
def test_tables_and_ends_shared_along_batch_dimensions(backend, leading):
    unary = torch.randn(3, 2, 4, STATES).double()
    shared = [torch.randn(*leading, *event).double().requires_grad_() for event in ((3, STATES, STATES), (STATES,))]
    full = [t.detach().expand((3, 2) + t.shape[len(leading) :]).contiguous().requires_grad_() for t in shared]
    upstream = random_upstream(6, 4)

    def run(pairwise, end):
        chain = LinearChain(unary, pairwise, end=end, num_states=STATES)
        flat = [out.reshape(g.shape) for out, g in zip(outputs(chain), upstream)]
        return torch.autograd.grad(sum((out * g).sum() for out, g in zip(flat, upstream)), (pairwise, end))

    for actual, each, tensor in zip(run(*shared), run(*full), shared):
        close(actual, each.sum_to_size(tensor.shape))


# Forms of one distribution


@pytest.mark.parametrize("per_edge", (False, True))
def test_two_states_equal_the_binary_form(backend, per_edge):
    unary, pairwise, start, end = random_potentials(4, 6, per_edge, states=2)
    lengths = torch.tensor([6, 0, 1, 3])
    binary = LinearChain((unary[..., 1] - unary[..., 0]).detach(), pairwise, lengths, start=start, end=end)
    states = make((torch.stack((torch.zeros(4, 6), binary.unary), -1), pairwise, start, end), lengths)
    close(binary.marginals, states.marginals[..., 1])
    close(binary.argmax, states.argmax[..., 1])
    for quantity in ("log_partition", "edge_marginals", "entropy", "support_size"):
        close(quantity_of(binary, quantity), quantity_of(states, quantity))
    sequence, edges = torch.randint(0, 2, (4, 6)), torch.randn(4, 5, 2, 2).double()
    close(binary.log_prob(sequence), states.log_prob(torch.nn.functional.one_hot(sequence, 2)))
    upstream, on_states = torch.randn(4, 6).double(), torch.zeros(4, 6, 2).double()
    on_states[..., 1] = upstream
    tensors = pairwise, start, end
    on_binary = torch.autograd.grad((binary.marginals, binary.edge_marginals), tensors, (upstream, edges))
    for actual, expected in zip(
        on_binary, torch.autograd.grad((states.marginals, states.edge_marginals), tensors, (on_states, edges))
    ):
        close(actual, expected)


@pytest.mark.parametrize("leading", (None, (), (1,), (3, 1)))
def test_fields_and_couplings(backend, leading):
    fields = torch.randn(3, 2, 4).double()
    couplings = torch.randn(() if leading is None else leading + (3,)).double()
    chain = LinearChain.from_fields(fields, couplings, torch.tensor([[4], [3], [1]]))
    pairwise = torch.zeros(3, 2, 3, 2, 2).double()
    pairwise[..., 1, 1] = couplings
    same = LinearChain(fields, pairwise, torch.tensor([[4], [3], [1]]))
    for actual, expected in zip(outputs(chain), outputs(same)):
        close(actual, expected)


def test_gradient_of_fields_and_couplings(backend):
    inputs = torch.randn(2, 4).double().requires_grad_(), torch.randn(3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: LinearChain.from_fields(*tensors).marginals, inputs)


# Robustness


@pytest.mark.parametrize("shape", ((0, 4), (3, 0), (0, 0), (2, 1)))
@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("states", (1, 3))
def test_empty_and_single_position(backend, shape, per_edge, states):
    potentials = random_potentials(*shape, per_edge, states=states)
    chain = make(potentials)
    assert chain.marginals.shape == chain.argmax.shape == shape + (states,)
    assert chain.edge_marginals.shape == (shape[0], max(shape[1] - 1, 0), states, states)
    assert chain.log_partition.shape == chain.entropy().shape == shape[:1]
    assert chain.sample((2,)).shape == (2,) + shape + (states,)
    assert chain.log_prob(chain.argmax).shape == shape[:1]
    sum(out.sum() for out in outputs(chain)).backward()
    # The probabilities of a position add up to 1, whatever the potentials.
    close(potentials[0].grad, chain.marginals)
    if shape[1] == 0:
        assert chain.log_partition.eq(0).all()


# Compiled kernels against the specification


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    chains=st.integers(0, 5),
    n=st.sampled_from((1, 2, 3, 17, 31, 64, 65)) | st.integers(1, 20),
    states=st.sampled_from((1, 2, 3, 8, 17)),
    per_edge=st.booleans(),
    padded=st.booleans(),
    forbidden=st.sampled_from((0.0, 0.1, 0.5)),
    scale=st.sampled_from((0.1, 1.0, 10.0, 500.0)),
)
def test_compiled_kernels_agree_with_reference(seed, chains, n, states, per_edge, padded, forbidden, scale):
    pytest.importorskip("numba")
    torch.manual_seed(seed)
    potentials = random_potentials(chains, n, per_edge, scale, states=states)
    for tensor in potentials:
        tensor.data[torch.rand(tensor.shape) < forbidden] = -INF
    lengths = torch.randint(0, n + 1, (chains,)) if padded else None
    upstream = random_upstream(chains, n, states)

    def everything():
        chain = make(potentials, lengths)
        possible = chain.log_partition.masked_fill(chain.log_partition == -INF, 0)
        losses = zip((possible,) + outputs(chain)[1:], upstream)
        on_potentials = torch.autograd.grad(sum((out * g).sum() for out, g in losses), potentials)
        best = chain.log_prob(chain.argmax)
        return outputs(chain) + (best,) + on_potentials

    fast = everything()
    with use_backend("reference"):
        expected = everything()
    for actual, exact in zip(fast, expected):
        close(actual, exact, 1e-12 * max(scale, 1) * max(n, 4) * max(chains, 1))


# The paper's backward pass


def results_and_gradients(name, chain_of, inputs, upstream):
    """log Z, marginals, and the gradients of both together, by a backend."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    with use_backend(name):
        chain = chain_of(*inputs)
        parts = chain.log_partition, chain.marginals
    scale = torch.linspace(0.5, 2, len(parts[0])).double()
    # A chain of one position has no edges.
    found = torch.autograd.grad(parts, inputs, (scale, upstream), allow_unused=True)
    return parts + tuple(torch.zeros_like(i) if gradient is None else gradient for i, gradient in zip(inputs, found))


@pytest.mark.parametrize("states", (None, 2, STATES))
@pytest.mark.parametrize("n", (1, 2, 6))
@pytest.mark.parametrize("scale", (1.0, 30.0))
@pytest.mark.parametrize("forbid", (False, True))
def test_the_backend_of_the_paper_gives_the_same(states, n, scale, forbid):
    unary, pairwise, _, _ = random_potentials(8, n, True, scale, states=states or 2)
    if forbid:
        for tensor in (unary.data, pairwise.data):
            tensor[torch.rand(tensor.shape) < 0.15] = -INF
    unary = unary[..., 1] if states is None else unary
    lengths = torch.randint(0, n + 1, (8,))
    upstream = torch.randn(unary.shape).double()
    upstream[torch.arange(n) >= lengths[:, None]] = float("nan")

    def chain_of(unary, pairwise):
        return LinearChain(unary, pairwise, lengths, num_states=states)

    found = (results_and_gradients(name, chain_of, (unary, pairwise), upstream) for name in ("paper", "reference"))
    for actual, expected in zip(*found):
        close(actual, expected)


def test_the_backend_of_the_paper_runs_its_backward_pass(monkeypatch):
    calls, gradients = [], signed_log.paper_gradients
    monkeypatch.setattr(signed_log, "paper_gradients", lambda *args: calls.append(1) or gradients(*args))
    table = torch.randn(2, 2).requires_grad_()
    with use_backend("paper"):
        chains = [LinearChain(torch.randn(3, 5), table, torch.tensor([5, 1, 3])) for _ in range(2)]
        chains[0].marginals.square().sum().backward()
        assert calls == [1]
        # What the paper has no gradient for.
        chains[1].entropy().sum().backward()
        assert chains[1].sample((2,)).shape == (2, 3, 5)
    assert calls == [1] and table.grad.isfinite().all()


# Errors


UNARY, TABLE = torch.zeros(2, 4, 3), torch.zeros(3, 3)


@pytest.mark.parametrize(
    "error, match, arguments",
    (
        (ValueError, "num_states is 0", dict(unary=UNARY, pairwise=TABLE, num_states=0)),
        (ValueError, "num_states is 3.0", dict(unary=UNARY, pairwise=TABLE, num_states=3.0)),
        (ValueError, "num_states is True", dict(unary=UNARY, pairwise=TABLE, num_states=True)),
        (
            ValueError,
            r"unary has shape \(2, 4, 3\).*\[\*batch, n, 4\]",
            dict(unary=UNARY, pairwise=TABLE, num_states=4),
        ),
        (ValueError, r"unary has shape \(3,\)", dict(unary=torch.zeros(3), pairwise=TABLE, num_states=3)),
        (TypeError, "unary is a list", dict(unary=[0.0], pairwise=TABLE, num_states=3)),
        (ValueError, r"pairwise has shape \(2, 2\)", dict(unary=UNARY, pairwise=torch.zeros(2, 2), num_states=3)),
        (
            ValueError,
            r"pairwise has shape \(4, 3, 3\).*3, 3, 3",
            dict(unary=UNARY, pairwise=torch.zeros(4, 3, 3), num_states=3),
        ),
        (
            ValueError,
            r"start has shape \(2,\); it must be \(3,\)",
            dict(unary=UNARY, pairwise=TABLE, start=torch.zeros(2), num_states=3),
        ),
        (
            ValueError,
            r"end has shape \(5, 3\).*broadcast to \(2,\)",
            dict(unary=UNARY, pairwise=TABLE, end=torch.zeros(5, 3), num_states=3),
        ),
        (
            ValueError,
            r"end has shape \(\)",
            dict(unary=torch.zeros(4), pairwise=torch.zeros(2, 2), end=torch.tensor(0.0)),
        ),
        (
            TypeError,
            "start has dtype torch.int64",
            dict(unary=UNARY, pairwise=TABLE, start=torch.zeros(3).long(), num_states=3),
        ),
        (TypeError, "end is a list", dict(unary=UNARY, pairwise=TABLE, end=[0.0] * 3, num_states=3)),
        (
            ValueError,
            "lengths has values from 5 to 5",
            dict(unary=UNARY, pairwise=TABLE, lengths=torch.tensor([5]), num_states=3),
        ),
    ),
)
def test_errors_of_potentials(error, match, arguments):
    with pytest.raises(error, match=match):
        LinearChain(**arguments)


@pytest.mark.parametrize(
    "error, match, couplings",
    (
        (ValueError, r"couplings has shape \(4,\); it must be \(\) or \(…, 3\)", torch.zeros(4)),
        (ValueError, r"broadcast to \(2,\)", torch.zeros(5, 3)),
        (TypeError, "couplings is a float", 0.0),
    ),
)
def test_errors_of_couplings(error, match, couplings):
    with pytest.raises(error, match=match):
        LinearChain.from_fields(torch.zeros(2, 4), couplings)


def test_kl_needs_the_same_form():
    binary, states = LinearChain(torch.zeros(2, 4), torch.zeros(2, 2)), LinearChain(UNARY, TABLE, num_states=3)
    with pytest.raises(ValueError, match="other is a chain with num_states=3; it must be a binary chain"):
        binary.kl(states)
