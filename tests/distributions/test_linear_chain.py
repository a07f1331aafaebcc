import pytest
import torch

from fairseq_structattn.distributions import LinearChain, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.linear_chain import log_odds, reference

INF = float("inf")
FAST = ("cpu", "torch")
BACKENDS = FAST + ("reference",)


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    with use_implementation(request.param, monkeypatch):
        yield request.param


def use_implementation(name, monkeypatch):
    """Compiled ("cpu"), what runs where numba is missing ("torch"), or the specification ("reference")."""
    if name == "cpu" and not numba_compile.available():
        pytest.skip("needs numba")
    if name == "torch":
        monkeypatch.setattr(numba_compile, "available", lambda: False)
    return use_backend("auto" if name == "torch" else name)


def random_chains(chains, n, per_edge=False, scale=1.0, dtype=torch.double):
    unary = scale * torch.randn(chains, n, dtype=dtype)
    pairwise = scale * torch.randn(*((chains, max(n - 1, 0)) if per_edge else ()), 2, 2, dtype=dtype)
    return unary.requires_grad_(), pairwise.requires_grad_()


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def all_gradients(chain, inputs, upstream):
    outputs = (chain.log_partition, chain.marginals, chain.edge_marginals)
    return torch.autograd.grad(sum((out * g).sum() for out, g in zip(outputs, upstream)), inputs)


# Values against enumeration


def test_pairwise_is_indexed_by_left_state_then_right_state(backend):
    # Only 0 → 1 is rewarded: the mass sits on 01, and a transposed table would put it on 10.
    pairwise = torch.tensor([[0.0, 6.0], [0.0, 0.0]])
    chain = LinearChain(torch.zeros(2), pairwise)
    assert chain.argmax.tolist() == [0, 1]
    assert chain.marginals[0] < 0.01 and chain.marginals[1] > 0.99
    assert chain.edge_marginals[0, 0, 1] > 0.99
    assert chain.log_prob(torch.tensor([0, 1])) > -0.01


# Gradients


@pytest.mark.parametrize("leading", ((), (1,), (3, 1), (2,)))
def test_tables_shared_along_batch_dimensions(backend, leading):
    unary = torch.randn(3, 2, 4).double()
    pairwise = torch.randn(*leading, 3, 2, 2).double().requires_grad_()
    full = pairwise.detach().expand(3, 2, 3, 2, 2).contiguous().requires_grad_()
    upstream = (torch.randn(3, 2).double(), torch.randn(3, 2, 4).double(), torch.randn(3, 2, 3, 2, 2).double())
    (shared,) = all_gradients(LinearChain(unary, pairwise), (pairwise,), upstream)
    (each,) = all_gradients(LinearChain(unary, full), (full,), upstream)
    close(shared, each.sum_to_size(pairwise.shape))


# Inputs


def test_half_scores_with_a_float32_table(backend):
    unary, pairwise = torch.randn(2, 5).half().requires_grad_(), torch.randn(2, 2, requires_grad=True)
    chain = LinearChain(unary, pairwise)
    assert chain.marginals.dtype == torch.float16
    chain.marginals.sum().backward()
    assert unary.grad.dtype == torch.float16 and pairwise.grad.dtype == torch.float32


# Fast path against the specification


@pytest.mark.parametrize("coupling", (-75.0, -74.0, 74.0, 75.0, 76.0))
def test_scores_at_the_end_of_the_range_of_odds(coupling):
    odds = pytest.importorskip("fairseq_structattn.distributions.linear_chain.cpu_odds")
    assert odds.LARGEST_COUPLING == 75
    largest = odds.LARGEST_FIELD
    choices = torch.tensor([-INF, -1e4, -1000, -largest, 0, 1, largest - 1, largest, largest + 1, 1e4]).double()
    fields = choices[torch.randint(len(choices), (100, 9))]
    upstream, edge_upstream, found = torch.randn(100, 9).double(), torch.randn(100, 8, 2, 2).double(), {}
    for name in ("cpu", "reference"):
        inputs = fields.clone().requires_grad_(), torch.tensor(coupling).double().requires_grad_()
        with use_backend(name):
            chain = LinearChain.from_fields(*inputs)
            loss = (chain.marginals * upstream).sum() + (chain.edge_marginals * edge_upstream).sum()
            loss = loss + chain.log_partition.sin().sum() + chain.entropy().sum()
            values = chain.log_partition, chain.marginals, chain.edge_marginals, chain.entropy()
            found[name] = values + torch.autograd.grad(loss, inputs)
    for actual, expected in zip(found["cpu"], found["reference"]):
        assert expected.isfinite().all()
        close(actual, expected, 1e-11)


@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("states", (None, 2))
def test_three_kernels_agree_with_the_specification(states, per_edge, monkeypatch):
    cpu_states = pytest.importorskip("fairseq_structattn.distributions.linear_chain.cpu_states")
    from fairseq_structattn.distributions.linear_chain import cpu_pairs

    chains, n, taken = 70, 9, set()
    for module, name in ((cpu_pairs, "expectations"), (cpu_pairs, "gradient"), (cpu_states, "operation")):
        kernel = getattr(module, name)
        stand_in = Noted(kernel, lambda key=(module.__name__, name): taken.add(key))
        monkeypatch.setattr(module, name, stand_in)
    shape = (chains, n) if states is None else (chains, n, 2)
    tables = (chains, n - 1, 2, 2) if per_edge else (2, 2)
    given = [torch.randn(shape), torch.randn(tables), torch.randn(chains, 2), torch.randn(chains, 2)]
    # A third of the chains has impossible states and pairs, another third scores of all sizes beside them.
    for tensor in given if per_edge else given[:1] + given[2:]:
        tensor[25:] = tensor[25:].masked_fill(torch.rand(tensor[25:].shape) < 0.2, -INF)
        tensor[50:] *= 60
    if not per_edge:
        given[1][0, 1] = -INF
    lengths, found = torch.randint(0, n + 1, (chains,)), []
    upstream = [torch.randn(size).double() for size in ((chains,), shape, (chains, n - 1, 2, 2))]
    for name in ("cpu", "reference"):
        leaves = [tensor.double().requires_grad_() for tensor in given]
        with use_backend(name):
            chain = LinearChain(leaves[0], leaves[1], lengths, leaves[2], leaves[3], num_states=states)
            values = [chain.log_partition.nan_to_num(neginf=0), chain.marginals, chain.edge_marginals]
            loss = sum((value * g).sum() for value, g in zip(values, upstream))
            found.append(values + list(torch.autograd.grad(loss, leaves)) + [chain.entropy()])
    for actual, expected in zip(*found):
        close(actual, expected.nan_to_num(0.0), 1e-10)
    assert len(taken) == 3


class Noted:
    """Something whose use is noted."""

    def __init__(self, original, note):
        self._original, self._note = original, note

    def __call__(self, *arguments):
        self._note()
        return self._original(*arguments)

    def __getattr__(self, name):
        self._note()
        return getattr(self._original, name)


def test_a_chain_out_of_range_leaves_every_bit_of_its_neighbours():
    pytest.importorskip("numba")
    unary, pairwise = random_chains(40, 20, per_edge=True)
    upstream = torch.randn(40, 20).double()
    large = pairwise.detach().clone()
    large[3, 5, 1, 1] = 100
    results = []
    for tables in (pairwise, large):
        marginals = LinearChain(unary, tables).marginals
        results.append((marginals, torch.autograd.grad(marginals, unary, upstream)[0]))
    others = torch.arange(40) != 3
    for one, other in zip(*results):
        assert torch.equal(one[others], other[others])
        assert not torch.equal(one[3], other[3])


def test_each_implementation_runs_where_it_should(monkeypatch):
    cpu_binary = pytest.importorskip("fairseq_structattn.distributions.linear_chain.cpu_binary")
    calls = []
    for module in (cpu_binary, log_odds, reference):
        original, name = module.expectations, module.__name__.rsplit(".", 1)[1]
        monkeypatch.setattr(
            module, "expectations", lambda *args, name=name, run=original: calls.append(name) or run(*args)
        )
    unary, pairwise = random_chains(2, 3)
    assert LinearChain(unary, pairwise).marginals.shape == (2, 3)
    with use_backend("reference"):
        assert LinearChain(unary, pairwise).marginals.shape == (2, 3)
    monkeypatch.setattr(numba_compile, "available", lambda: False)
    assert LinearChain(unary, pairwise).marginals.shape == (2, 3)
    assert calls == ["cpu_binary", "reference", "log_odds"]


@pytest.mark.parametrize("backend", FAST, indirect=True)
def test_float32_stays_accurate_on_long_chains(backend):
    unary, pairwise = random_chains(20, 400, scale=5.0)
    exact, single = LinearChain(unary, pairwise), LinearChain(unary.float(), pairwise.float())
    close(single.marginals.double(), exact.marginals, 1e-5)
    close(single.log_partition.double(), exact.log_partition, 1e-6)


# Errors


@pytest.mark.parametrize(
    "error, match, arguments",
    (
        (ValueError, r"unary has shape \(\)", (torch.tensor(1.0), torch.zeros(2, 2))),
        (ValueError, r"pairwise has shape \(3, 3\)", (torch.zeros(2, 4), torch.zeros(3, 3))),
        (ValueError, r"pairwise has shape \(4, 2, 2\).*3, 2, 2", (torch.zeros(2, 4), torch.zeros(4, 2, 2))),
        (ValueError, r"broadcast to \(2,\)", (torch.zeros(2, 4), torch.zeros(5, 3, 2, 2))),
        (ValueError, r"broadcast to \(2,\)", (torch.zeros(2, 4), torch.zeros(3, 2, 3, 2, 2))),
        (TypeError, "unary has dtype torch.int64", (torch.zeros(2, 4).long(), torch.zeros(2, 2))),
        (TypeError, "pairwise has dtype torch.int64", (torch.zeros(2, 4), torch.zeros(2, 2).long())),
        (TypeError, "unary is a list", ([0.0], torch.zeros(2, 2))),
        (TypeError, "pairwise is a list", (torch.zeros(2, 4), [[0.0, 0.0], [0.0, 0.0]])),
    ),
)
def test_errors_of_potentials(error, match, arguments):
    with pytest.raises(error, match=match):
        LinearChain(*arguments)
