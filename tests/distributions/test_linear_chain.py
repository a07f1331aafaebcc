import pytest
import torch
from enumeration import EnumeratedChain
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def random_chains(chains, n, per_edge=False, scale=1.0, dtype=torch.double):
    unary = scale * torch.randn(chains, n, dtype=dtype)
    pairwise = scale * torch.randn(*((chains, max(n - 1, 0)) if per_edge else ()), 2, 2, dtype=dtype)
    return unary.requires_grad_(), pairwise.requires_grad_()


def enumerate_all(unary, pairwise, lengths=None):
    lengths = [unary.shape[1]] * len(unary) if lengths is None else lengths.tolist()
    tables = pairwise if pairwise.dim() == 4 else [pairwise] * len(unary)
    return [
        EnumeratedChain(u[:n], table if table.dim() == 2 else table[: max(n - 1, 0)])
        for u, table, n in zip(unary, tables, lengths)
    ]


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def all_gradients(chain, inputs, upstream):
    outputs = (chain.log_partition, chain.marginals, chain.edge_marginals)
    return torch.autograd.grad(sum((out * g).sum() for out, g in zip(outputs, upstream)), inputs)


# Values against enumeration


@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("n", (1, 2, 3, 6))
@pytest.mark.parametrize("scale", (1.0, 50.0, 1000.0))
def test_values_equal_enumeration(backend, n, per_edge, scale):
    unary, pairwise = random_chains(4, n, per_edge, scale)
    other_unary, other_pairwise = random_chains(4, n, per_edge, 1.0)
    chain, other = LinearChain(unary, pairwise), LinearChain(other_unary, other_pairwise)
    # An entropy is the difference of two numbers of the size of the scores.
    tolerance = 1e-10 * scale
    for i, (exact, exact_other) in enumerate(
        zip(enumerate_all(unary, pairwise), enumerate_all(other_unary, other_pairwise))
    ):
        close(chain.log_partition[i], exact.log_partition)
        close(chain.marginals[i], exact.marginals)
        close(chain.edge_marginals[i], exact.edge_marginals)
        close(chain.argmax[i], exact.argmax)
        close(chain.entropy[i], exact.entropy, tolerance)
        close(chain.kl(other)[i], exact.kl(exact_other), tolerance)
    sequences = exact.states[:, None, :].expand(-1, 4, -1)
    close(chain.log_prob(sequences)[:, 3], exact.scores - exact.log_partition)


def test_pairwise_is_indexed_by_left_state_then_right_state(backend):
    # Only 0 → 1 is rewarded: the mass sits on 01, and a transposed table would put it on 10.
    pairwise = torch.tensor([[0.0, 6.0], [0.0, 0.0]])
    chain = LinearChain(torch.zeros(2), pairwise)
    assert chain.argmax.tolist() == [0, 1]
    assert chain.marginals[0] < 0.01 and chain.marginals[1] > 0.99
    assert chain.edge_marginals[0, 0, 1] > 0.99
    assert chain.log_prob(torch.tensor([0, 1])) > -0.01


def test_edge_marginals_add_up_to_marginals(backend):
    chain = LinearChain(*random_chains(3, 5, True))
    close(chain.edge_marginals.sum(-2)[..., 1], chain.marginals[:, 1:])
    close(chain.edge_marginals.sum(-1)[..., 1], chain.marginals[:, :-1])
    close(chain.edge_marginals.sum((-1, -2)), torch.ones(3, 4))


def test_support_size_counts_sequences(backend):
    lengths = torch.tensor([0, 1, 5])
    chain = LinearChain(torch.zeros(3, 5), torch.zeros(2, 2), lengths)
    assert chain.support_size.tolist() == [1, 2, 32]
    assert chain.support_size.dtype == torch.double
    close(chain.log_partition.exp(), chain.support_size, 1e-6)


# Gradients


@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("scale", (1.0, 50.0))
def test_backward_is_covariance_times_upstream(backend, per_edge, scale):
    lengths = torch.tensor([6, 2, 1, 4])
    unary, pairwise = random_chains(4, 6, per_edge, scale)
    upstream = (torch.randn(4).double(), torch.randn(4, 6).double(), torch.randn(4, 5, 2, 2).double())
    on_unary, on_pairwise = all_gradients(LinearChain(unary, pairwise, lengths), (unary, pairwise), upstream)
    expected_unary, expected_edges = torch.zeros(4, 6).double(), torch.zeros(4, 5, 2, 2).double()
    for i, (exact, n) in enumerate(zip(enumerate_all(unary, pairwise, lengths), lengths.tolist())):
        on_log_partition, on_marginals, on_edges = (g[i] for g in upstream)
        expected_unary[i, :n], expected_edges[i, : n - 1] = exact.gradients(
            on_log_partition, on_marginals[:n], on_edges[: n - 1]
        )
    close(on_unary, expected_unary)
    close(on_pairwise, expected_edges if per_edge else expected_edges.sum((0, 1)))


@pytest.mark.parametrize("quantity", ("log_partition", "marginals", "edge_marginals", "entropy"))
@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("lengths", (None, torch.tensor([4, 0, 1])))
def test_gradcheck(backend, quantity, per_edge, lengths):
    inputs = random_chains(3, 4, per_edge)
    assert torch.autograd.gradcheck(lambda *tables: getattr(LinearChain(*tables, lengths), quantity), inputs)


def test_gradcheck_of_kl_and_log_prob(backend):
    inputs = random_chains(2, 3) + random_chains(2, 3, True)
    assert torch.autograd.gradcheck(lambda a, b, c, d: LinearChain(a, b).kl(LinearChain(c, d)), inputs)
    states = torch.tensor([[1, 0, 1], [0, 1, 1]])
    assert torch.autograd.gradcheck(lambda a, b: LinearChain(a, b).log_prob(states), inputs[:2])


@pytest.mark.parametrize("leading", ((), (1,), (3, 1), (2,)))
def test_tables_shared_along_batch_dimensions(backend, leading):
    unary = torch.randn(3, 2, 4).double()
    pairwise = torch.randn(*leading, 3, 2, 2).double().requires_grad_()
    full = pairwise.detach().expand(3, 2, 3, 2, 2).contiguous().requires_grad_()
    upstream = (torch.randn(3, 2).double(), torch.randn(3, 2, 4).double(), torch.randn(3, 2, 3, 2, 2).double())
    (shared,) = all_gradients(LinearChain(unary, pairwise), (pairwise,), upstream)
    (each,) = all_gradients(LinearChain(unary, full), (full,), upstream)
    close(shared, each.sum_to_size(pairwise.shape))


@pytest.mark.parametrize("quantity", ("marginals", "edge_marginals", "log_partition"))
def test_reference_is_twice_differentiable(quantity):
    with use_backend("reference"):
        inputs = random_chains(2, 3)
        lengths = torch.tensor([3, 2])
        assert torch.autograd.gradgradcheck(lambda *tables: getattr(LinearChain(*tables, lengths), quantity), inputs)


# Forbidden parts


def assert_finite(*gradients):
    for gradient in gradients:
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("scale", (1.0, 50.0))
def test_forbidden_states(backend, scale):
    unary, pairwise = random_chains(3, 5, True, scale)
    unary.data[0, 2] = unary.data[1, 0] = unary.data[2, :] = -INF
    chain = LinearChain(unary, pairwise)
    for i, exact in enumerate(enumerate_all(unary, pairwise)):
        close(chain.log_partition[i], exact.log_partition)
        close(chain.marginals[i], exact.marginals)
        close(chain.edge_marginals[i], exact.edge_marginals)
        close(chain.argmax[i], exact.argmax)
        close(chain.entropy[i], exact.entropy, 1e-10 * scale)
    assert chain.marginals[unary == -INF].eq(0).all()
    upstream = (torch.randn(3).double(), torch.randn(3, 5).double(), torch.randn(3, 4, 2, 2).double())
    on_unary, on_pairwise = all_gradients(chain, (unary, pairwise), upstream)
    for i, exact in enumerate(enumerate_all(unary, pairwise)):
        expected_unary, expected_pairwise = exact.gradients(*(g[i] for g in upstream))
        close(on_unary[i], expected_unary)
        close(on_pairwise[i], expected_pairwise)
    assert_finite(*torch.autograd.grad(LinearChain(unary, pairwise).entropy.sum(), (unary, pairwise)))


@pytest.mark.parametrize("cell", ((0, 0), (0, 1), (1, 0), (1, 1)))
@pytest.mark.parametrize("per_edge", (False, True))
def test_forbidden_transitions(backend, cell, per_edge):
    unary, pairwise = random_chains(2, 5, per_edge)
    pairwise.data[(0, 1) + cell if per_edge else cell] = -INF
    chain = LinearChain(unary, pairwise)
    for i, exact in enumerate(enumerate_all(unary, pairwise)):
        close(chain.log_partition[i], exact.log_partition)
        close(chain.marginals[i], exact.marginals)
        close(chain.edge_marginals[i], exact.edge_marginals)
        close(chain.argmax[i], exact.argmax)
        close(chain.entropy[i], exact.entropy)
    upstream = (torch.randn(2).double(), torch.randn(2, 5).double(), torch.randn(2, 4, 2, 2).double())
    assert_finite(*all_gradients(chain, (unary, pairwise), upstream))


def test_large_negative_stand_in_for_minus_infinity_keeps_the_other_scores(backend):
    unary, pairwise = random_chains(4, 6, dtype=torch.float32)
    finite, infinite = pairwise.detach().clone(), pairwise.detach().clone()
    finite[1, 0], infinite[1, 0] = -1e9, -INF
    close(LinearChain(unary, finite).marginals, LinearChain(unary, infinite).marginals, 1e-6)


def test_impossible_item_leaves_the_others_alone(backend):
    unary, pairwise = random_chains(2, 4, True)
    pairwise.data[0, 1] = -INF
    chain = LinearChain(unary, pairwise)
    alone = LinearChain(unary[1:], pairwise[1:])
    assert chain.log_partition[0] == -INF
    for quantity in ("marginals", "edge_marginals", "argmax", "entropy"):
        assert getattr(chain, quantity)[0].eq(0).all(), quantity
        close(getattr(chain, quantity)[1], getattr(alone, quantity)[0])
    assert chain.sample((20,))[:, 0].eq(0).all()
    assert chain.sample((20,))[:, 1].any()
    assert chain.log_prob(torch.zeros(2, 4))[0] == -INF
    possible = LinearChain(*random_chains(2, 4, True))
    assert possible.kl(chain)[0] == INF
    assert chain.kl(possible)[0] == 0
    loss = chain.marginals.square().sum() + chain.edge_marginals.square().sum() + chain.entropy.sum()
    on_unary, on_pairwise = torch.autograd.grad(loss, (unary, pairwise))
    assert on_unary[0].eq(0).all() and on_pairwise[0].eq(0).all()
    assert on_unary[1].ne(0).any() and torch.isfinite(on_unary[1]).all()


@pytest.mark.parametrize("broken", ("unary", "pairwise"))
def test_nan_is_not_hidden(backend, broken):
    unary, pairwise = random_chains(3, 4, True)
    (unary if broken == "unary" else pairwise).data[1, 2] = float("nan")
    chain = LinearChain(unary, pairwise)
    assert chain.log_partition.isnan().tolist() == [False, True, False]
    assert chain.marginals.isnan().any(1).tolist() == [False, True, False]


def test_kl_to_a_distribution_that_forbids_what_happens_is_infinite(backend):
    free = LinearChain(torch.zeros(2, 3), torch.zeros(2, 2))
    strict = LinearChain(torch.tensor([[0.0, -INF, 0.0], [0.0, 0.0, 0.0]]), torch.zeros(2, 2))
    assert free.kl(strict).tolist() == [INF, 0]
    assert torch.isfinite(strict.kl(free)).all()


# Padding


@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("garbage", (float("nan"), INF, -INF))
def test_padding_reaches_neither_values_nor_gradients(backend, per_edge, garbage):
    lengths = torch.tensor([0, 1, 3, 5])
    unary, pairwise = random_chains(4, 5, per_edge)
    padding = torch.arange(5) >= lengths[:, None]
    unary.data.masked_fill_(padding, garbage)
    if per_edge:
        pairwise.data.masked_fill_(padding[:, 1:, None, None], garbage)
    chain = LinearChain(unary, pairwise, lengths)
    loss = chain.log_partition.sum() + chain.entropy.sum() + chain.kl(LinearChain(unary * 2, pairwise, lengths)).sum()
    loss = loss + chain.log_prob(torch.ones(4, 5)).sum() + chain.marginals.square().sum()
    # An upstream gradient that is not finite in padding, as that of a logarithm of the marginals, does not leak either.
    loss = loss + chain.marginals.log().masked_fill(padding, 0).sum() + chain.edge_marginals.square().sum()
    on_unary, on_pairwise = torch.autograd.grad(loss, (unary, pairwise))
    assert chain.marginals[padding].eq(0).all()
    assert chain.edge_marginals[padding[:, 1:]].eq(0).all()
    assert on_unary[padding].eq(0).all()
    assert_finite(loss, on_unary, on_pairwise)
    assert chain.argmax[padding].eq(0).all()
    assert chain.sample((3,))[:, padding].eq(0).all()
    assert chain.marginals[0].eq(0).all() and chain.log_partition[0] == 0


def test_not_finite_upstream_in_padding_is_ignored(backend):
    unary, pairwise = random_chains(2, 4)
    lengths = torch.tensor([2, 4])
    upstream = torch.ones(2, 4).double()
    expected = torch.autograd.grad(LinearChain(unary, pairwise, lengths).marginals, (unary, pairwise), upstream)
    upstream[0, 2:] = float("nan")
    actual = torch.autograd.grad(LinearChain(unary, pairwise, lengths).marginals, (unary, pairwise), upstream)
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("per_edge", (False, True))
def test_each_length_as_if_alone(backend, per_edge):
    lengths = torch.tensor([5, 0, 1, 3, 2])
    unary, pairwise = random_chains(5, 5, per_edge)
    chain = LinearChain(unary, pairwise, lengths)
    gradient = torch.autograd.grad((chain.marginals * torch.arange(5)).sum(), unary)[0]
    for i, n in enumerate(lengths.tolist()):
        own = unary[i, :n].detach().requires_grad_()
        alone = LinearChain(own, pairwise[i, : max(n - 1, 0)] if per_edge else pairwise)
        close(chain.log_partition[i], alone.log_partition)
        close(chain.marginals[i, :n], alone.marginals)
        close(chain.edge_marginals[i, : max(n - 1, 0)], alone.edge_marginals)
        close(chain.entropy[i], alone.entropy)
        close(chain.log_prob(torch.ones(5, 5))[i], alone.log_prob(torch.ones(n)))
        close(chain.argmax[i, :n], alone.argmax)
        if n > 0:
            close(gradient[i, :n], torch.autograd.grad((alone.marginals * torch.arange(n)).sum(), own)[0])


@pytest.mark.parametrize("shape", ((0, 4), (3, 0), (0, 0), (2, 1)))
@pytest.mark.parametrize("per_edge", (False, True))
def test_empty_and_single_position(backend, shape, per_edge):
    unary = torch.randn(shape, requires_grad=True)
    pairwise = torch.randn(*((shape[0], max(shape[1] - 1, 0)) if per_edge else ()), 2, 2, requires_grad=True)
    chain = LinearChain(unary, pairwise)
    assert chain.marginals.shape == shape and chain.argmax.shape == shape
    assert chain.edge_marginals.shape == (shape[0], max(shape[1] - 1, 0), 2, 2)
    assert chain.log_partition.shape == chain.entropy.shape == shape[:1]
    assert chain.sample((2,)).shape == (2,) + shape
    (chain.marginals.sum() + chain.log_partition.sum() + chain.edge_marginals.sum()).backward()
    close(unary.grad, (2 - torch.sigmoid(unary)) * torch.sigmoid(unary), 1e-5)
    assert chain.log_prob(torch.zeros(shape)).shape == shape[:1]


# Inputs


def test_batch_dimensions_and_permutation(backend):
    unary, pairwise = random_chains(6, 4, True)
    lengths = torch.tensor([4, 1, 3, 0, 2, 4])
    chain = LinearChain(unary, pairwise, lengths)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = LinearChain(unary[order], pairwise[order], lengths[order])
    stacked = LinearChain(unary.reshape(2, 3, 4), pairwise.reshape(2, 3, 3, 2, 2), lengths.reshape(2, 3))
    for quantity in ("log_partition", "marginals", "edge_marginals", "argmax", "entropy"):
        value = getattr(chain, quantity)
        # Not bit for bit: where a chain falls in a vector register decides which exponential is taken.
        close(getattr(shuffled, quantity), value[order], 1e-13)
        close(getattr(stacked, quantity).flatten(0, 1), value, 1e-13)


def test_lengths_broadcast_over_target_steps(backend):
    unary, pairwise = torch.randn(2, 3, 4), torch.randn(2, 2)
    lengths = torch.tensor([4, 2])
    chain = LinearChain(unary, pairwise, lengths[:, None])
    assert torch.equal(chain.lengths, lengths[:, None].expand(2, 3))
    close(chain.marginals, LinearChain(unary, pairwise, lengths[:, None].repeat(1, 3)).marginals)
    assert chain.marginals[1, :, 2:].eq(0).all() and chain.marginals[1, :, :2].ne(0).all()


def test_expanded_and_transposed_inputs(backend):
    base, pairwise = torch.randn(4, 3).double().requires_grad_(), torch.randn(2, 2).double().t().requires_grad_()
    for view in (base.t(), base[:1].expand(5, 3), base[:, ::2]):
        copy = view.detach().clone().contiguous().requires_grad_()
        upstream = torch.randn(view.shape[1], view.shape[0]).double().t()
        chain, same = LinearChain(view, pairwise), LinearChain(copy, pairwise.detach().contiguous())
        assert torch.equal(chain.marginals, same.marginals)
        (actual,) = torch.autograd.grad(chain.marginals, base, upstream)
        (on_copy,) = torch.autograd.grad(same.marginals, copy, upstream)
        close(actual, torch.autograd.grad(view, base, on_copy)[0])


@pytest.mark.parametrize("lengths", (None, torch.tensor([3, 1])))
def test_tensors_and_flags_of_the_caller_are_untouched(backend, lengths):
    for needs_grad in (False, True):
        unary, pairwise = (t.detach().requires_grad_(needs_grad) for t in random_chains(2, 3, True))
        before = unary.detach().clone(), pairwise.detach().clone(), None if lengths is None else lengths.clone()
        chain = LinearChain(unary, pairwise, lengths)
        for quantity in ("log_partition", "marginals", "edge_marginals", "argmax", "entropy"):
            assert getattr(chain, quantity).requires_grad == (needs_grad and quantity != "argmax"), quantity
        chain.sample((2,))
        if needs_grad:
            torch.autograd.grad(chain.entropy.sum() + chain.marginals.sum(), (unary, pairwise))
        assert torch.equal(unary, before[0]) and torch.equal(pairwise, before[1])
        assert lengths is None or torch.equal(lengths, before[2])
        assert unary.requires_grad == pairwise.requires_grad == needs_grad
        assert unary.grad is None and pairwise.grad is None


def test_value_seen_without_gradient_does_not_cut_off_a_later_loss(backend):
    unary, pairwise = random_chains(2, 3)
    chain = LinearChain(unary, pairwise)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not chain.marginals.requires_grad and not chain.entropy.requires_grad
    assert chain.marginals.requires_grad and chain.marginals is chain.marginals


def test_inference_mode(backend):
    unary, pairwise = random_chains(2, 3)
    expected = LinearChain(unary, pairwise)
    with torch.inference_mode():
        chain = LinearChain(unary * 1, pairwise * 1)
        for quantity in ("log_partition", "marginals", "edge_marginals", "argmax"):
            close(getattr(chain, quantity), getattr(expected, quantity))
        assert chain.sample().shape == (2, 3)


def test_two_runs_are_identical(backend):
    unary, pairwise = random_chains(50, 20, dtype=torch.float32)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        chain = LinearChain(unary, pairwise)
        gradients = torch.autograd.grad(chain.marginals.square().sum(), (unary, pairwise))
        runs.append((chain.marginals, chain.log_partition, chain.sample((3,)), chain.argmax) + gradients)
    assert all(map(torch.equal, *runs))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_results_have_the_dtype_of_the_scores_and_float32_accuracy(backend, dtype):
    unary, pairwise = random_chains(8, 40, dtype=dtype)
    lengths = torch.tensor([40, 30] * 4)
    chain = LinearChain(unary, pairwise, lengths)
    wide = LinearChain(unary.double(), pairwise.double(), lengths)
    for quantity in ("log_partition", "marginals", "edge_marginals", "argmax", "entropy"):
        value = getattr(chain, quantity)
        assert value.dtype == dtype, quantity
        # One rounding to the caller's dtype and no more.
        tolerance = max(torch.finfo(dtype).eps, 4e-6 if dtype != torch.double else 1e-12)
        close(value.double(), getattr(wide, quantity), 4 * tolerance if quantity == "entropy" else tolerance)
    assert chain.sample().dtype == chain.log_prob(torch.zeros(8, 40)).dtype == dtype
    chain.marginals.sum().backward()
    assert unary.grad.dtype == pairwise.grad.dtype == dtype


def test_half_scores_with_a_float32_table(backend):
    unary, pairwise = torch.randn(2, 5).half().requires_grad_(), torch.randn(2, 2, requires_grad=True)
    chain = LinearChain(unary, pairwise)
    assert chain.marginals.dtype == torch.float16
    chain.marginals.sum().backward()
    assert unary.grad.dtype == torch.float16 and pairwise.grad.dtype == torch.float32


def test_autocast_does_not_change_anything(backend):
    unary, pairwise = random_chains(4, 10, dtype=torch.float32)
    expected = LinearChain(unary, pairwise)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chain = LinearChain(unary, pairwise)
        values = chain.marginals, chain.entropy, chain.log_prob(torch.ones(4, 10)), chain.kl(chain)
        gradient = torch.autograd.grad(chain.marginals.square().sum(), pairwise)[0]
    assert torch.equal(values[0], expected.marginals) and torch.equal(values[1], expected.entropy)
    assert torch.equal(values[2], expected.log_prob(torch.ones(4, 10))) and values[3].dtype == torch.float32
    assert torch.equal(gradient, torch.autograd.grad(expected.marginals.square().sum(), pairwise)[0])


# Fast path against the specification


@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    chains=st.sampled_from((0, 1, 2, 5, 31, 33, 65)),
    n=st.sampled_from((1, 2, 3, 17, 31, 64, 65)) | st.integers(1, 40),
    per_edge=st.booleans(),
    padded=st.booleans(),
    scale=st.sampled_from((0.1, 1.0, 10.0, 100.0)),
    dtype=st.sampled_from((torch.float32, torch.float64)),
)
def test_fast_path_agrees_with_reference(backend, seed, chains, n, per_edge, padded, scale, dtype):
    torch.manual_seed(seed)
    unary, pairwise = random_chains(chains, n, per_edge, scale, dtype)
    lengths = torch.randint(0, n + 1, (chains,)) if padded else None
    upstream = (torch.randn(chains), torch.randn(chains, n), torch.randn(chains, n - 1, 2, 2))

    def everything(dtype):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (unary, pairwise)]
        chain = LinearChain(*inputs, lengths)
        gradients = all_gradients(chain, inputs, [g.to(dtype) for g in upstream])
        return (chain.log_partition, chain.marginals, chain.edge_marginals) + gradients

    with pytest.MonkeyPatch.context() as monkeypatch, use_implementation(backend, monkeypatch):
        fast = everything(dtype)
    with use_backend("reference"):
        expected = everything(torch.float64)
    # Errors are relative to the size of the scores, whose own rounding they continue; gradients sum over n and chains.
    tolerance = 20 * torch.finfo(dtype).eps * max(scale, 1) * max(n, 4)
    for actual, exact in zip(fast[:-1], expected):
        close(actual, exact, tolerance)
    close(fast[-1], expected[-1], tolerance * max(1, 1 if per_edge else chains))


@pytest.mark.parametrize("deviation", (1.0, 30.0, 100.0, 1000.0))
@pytest.mark.parametrize("n", (2, 17, 65))
@pytest.mark.parametrize("backend", ("cpu",), indirect=True)
def test_compiled_kernels_lose_nothing_to_float32(backend, deviation, n):
    unary, pairwise = random_chains(40, n, scale=deviation, dtype=torch.float32)
    lengths = torch.randint(0, n + 1, (40,))
    upstream = torch.randn(40), torch.randn(40, n), torch.randn(40, n - 1, 2, 2)
    single = LinearChain(unary, pairwise, lengths)
    gradients = all_gradients(single, (unary, pairwise), upstream)
    wide = [t.detach().double().requires_grad_() for t in (unary, pairwise)]
    with use_backend("reference"):
        exact = LinearChain(*wide, lengths)
        expected = all_gradients(exact, wide, [g.double() for g in upstream])
    close(single.log_partition.double(), exact.log_partition, 1e-6)
    for actual, value in zip(
        (single.marginals, single.edge_marginals) + gradients, (exact.marginals, exact.edge_marginals) + expected
    ):
        close(actual.double(), value, 3e-6)


@pytest.mark.parametrize("n", (1, 2, 3, 17, 31, 64, 65))
def test_a_chain_does_not_depend_on_its_neighbours(backend, n):
    unary, pairwise = random_chains(67, n, True)
    unary.data[1] *= 500
    upstream = torch.randn(67, n).double()
    together = LinearChain(unary, pairwise)
    gradient = torch.autograd.grad(together.marginals, unary, upstream)[0]
    for i in (0, 2, 66):
        own = unary[i : i + 1].detach().requires_grad_()
        alone = LinearChain(own, pairwise[i : i + 1])
        close(alone.marginals[0], together.marginals[i])
        close(alone.log_partition[0], together.log_partition[i])
        close(torch.autograd.grad(alone.marginals, own, upstream[i : i + 1])[0][0], gradient[i])


@pytest.mark.parametrize("coupling", (-75.0, -74.0, 74.0, 75.0, 76.0))
def test_scores_at_the_end_of_the_range_of_odds(coupling):
    odds = pytest.importorskip("fairseq_structattn.distributions.linear_chain.cpu_odds")
    assert odds.LARGEST_COUPLING == 75
    choices = torch.tensor([-INF, -odds.LARGEST_FIELD - 1, -odds.LARGEST_FIELD, 0, 1, odds.LARGEST_FIELD]).double()
    fields = choices[torch.randint(6, (100, 9))]
    # Beyond the range nothing is taken for in range: these chains are all their neighbours, too.
    fields[::7] = odds.LARGEST_FIELD + 1
    upstream, found = torch.randn(100, 9).double(), {}
    for name in ("cpu", "reference"):
        inputs = fields.clone().requires_grad_(), torch.tensor(coupling).double().requires_grad_()
        with use_backend(name):
            chain = LinearChain.from_fields(*inputs)
            loss = (chain.marginals * upstream).sum() + chain.log_partition.sin().sum()
            found[name] = (chain.log_partition, chain.marginals) + torch.autograd.grad(loss, inputs)
    for actual, expected in zip(found["cpu"], found["reference"]):
        assert expected.isfinite().all()
        close(actual, expected, 1e-11)


def test_a_chain_out_of_range_leaves_every_bit_of_its_neighbours():
    pytest.importorskip("numba")
    unary, pairwise = random_chains(40, 20)
    upstream = torch.randn(40, 20).double()
    large = unary.detach().clone().requires_grad_()
    large.data[3, 5] = 300
    results = []
    for scores in (unary, large):
        marginals = LinearChain(scores, pairwise).marginals
        results.append((marginals, torch.autograd.grad(marginals, scores, upstream)[0]))
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


# Samples


def test_samples_have_the_marginals_and_edge_marginals_of_the_chain(backend):
    unary, pairwise = random_chains(2, 5)
    chain = LinearChain(unary, pairwise, torch.tensor([5, 3]))
    draws = 4000
    samples = chain.sample((draws,))
    assert samples.shape == (draws, 2, 5) and not samples.requires_grad
    assert set(samples.unique().tolist()) == {0, 1}
    pairs = samples[..., :-1] * samples[..., 1:]
    for frequency, p in ((samples.mean(0), chain.marginals), (pairs.mean(0), chain.edge_marginals[..., 1, 1])):
        standard_error = (p * (1 - p) / draws).sqrt()
        assert ((frequency - p).abs() <= 4 * standard_error + 1e-12).all()


def test_samples_respect_forbidden_parts(backend):
    pairwise = torch.tensor([[0.0, 0.0], [0.0, -INF]])
    samples = LinearChain(torch.tensor([2.0, -INF, 2.0, 2.0]), pairwise).sample((500,))
    assert samples[:, 1].eq(0).all() and (samples[:, 2] * samples[:, 3]).eq(0).all()
    assert samples[:, 0].any() and samples[:, 2].any() and samples[:, 3].any()


def test_argmax_of_ties_is_one_sequence(backend):
    pairwise = torch.tensor([[-5.0, 0.0], [0.0, -5.0]])
    assert LinearChain(torch.zeros(4), pairwise).argmax.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])


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


def test_log_prob_of_another_shape():
    with pytest.raises(ValueError, match=r"parts has shape \(2, 3\).*\(2, 4\)"):
        LinearChain(torch.zeros(2, 4), torch.zeros(2, 2)).log_prob(torch.zeros(2, 3))
