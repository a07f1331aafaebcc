"""Linear chains with K states, scores of the ends, fields and couplings, and the paper's own backward pass."""

import threading

import pytest
import torch
from enumeration_states import EnumeratedStates
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_structattn.distributions import LinearChain, use_backend
from fairseq_structattn.distributions.kernels import numba_compile
from fairseq_structattn.distributions.linear_chain import reference
from fairseq_structattn.distributions.linear_chain.signed_log import paper_gradients
from fairseq_structattn.distributions.semirings import MaxSemiring

INF = float("inf")
STATES = 3


@pytest.fixture(params=("cpu", "reference"))
def backend(request):
    if request.param == "cpu" and not numba_compile.available():
        pytest.skip("needs numba")
    with use_backend(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def random_potentials(chains, n, per_edge=False, scale=1.0, dtype=torch.double, states=STATES):
    """unary, pairwise, start, end"""
    leading = (chains, max(n - 1, 0)) if per_edge else ()
    shapes = (chains, n, states), leading + (states, states), (states,), (chains, states)
    return tuple((scale * torch.randn(shape, dtype=dtype)).requires_grad_() for shape in shapes)


def make(potentials, lengths=None):
    unary, pairwise, start, end = potentials
    return LinearChain(unary, pairwise, lengths, start=start, end=end, num_states=unary.shape[-1])


def enumerate_all(potentials, lengths=None):
    unary, pairwise, start, end = (t.detach() for t in potentials)
    lengths = [unary.shape[1]] * len(unary) if lengths is None else lengths.tolist()
    return [
        EnumeratedStates(unary[i, :n], pairwise if pairwise.dim() == 2 else pairwise[i, : max(n - 1, 0)], start, end[i])
        for i, n in enumerate(lengths)
    ]


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


@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("n", (1, 2, 3, 5))
@pytest.mark.parametrize("scale", (1.0, 50.0, 1000.0))
def test_values_equal_enumeration(backend, n, per_edge, scale):
    potentials, others = random_potentials(3, n, per_edge, scale), random_potentials(3, n, per_edge)
    chain, other = make(potentials), make(others)
    # An entropy is the difference of two numbers of the size of the scores.
    tolerance = 1e-10 * scale
    for i, (exact, exact_other) in enumerate(zip(enumerate_all(potentials), enumerate_all(others))):
        close(chain.log_partition[i], exact.log_partition)
        close(chain.marginals[i], exact.marginals)
        close(chain.edge_marginals[i], exact.edge_marginals)
        close(chain.argmax[i], exact.argmax)
        close(chain.entropy[i], exact.entropy, tolerance)
        kl = -exact.entropy - exact.probabilities @ (exact_other.scores - exact_other.log_partition)
        close(chain.kl(other)[i], kl, tolerance)
    sequences = exact.parts[:, : n * STATES].reshape(-1, 1, n, STATES)
    log_probs = chain.log_prob(sequences.expand(-1, 3, -1, -1))
    close(log_probs[:, 2], exact.scores - exact.log_partition)
    close(log_probs.exp().sum(0), torch.ones(3))


@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("forbid", (False, True))
@pytest.mark.parametrize("scale", (1.0, 50.0, 1000.0))
def test_gradients_are_covariance_times_upstream(backend, per_edge, forbid, scale):
    n, lengths = 5, torch.tensor([5, 0, 1, 2, 4])
    potentials = random_potentials(5, n, per_edge, scale)
    if forbid:
        forbid_some(potentials)
    chain, upstream = make(potentials, lengths), random_upstream(5, n)
    on_unary, on_pairwise, on_start, on_end = gradients(chain, potentials, upstream)
    expected = [torch.zeros_like(t) for t in (on_unary, chain.edge_marginals, on_start, on_end)]
    for i, (exact, length) in enumerate(zip(enumerate_all(potentials, lengths), lengths.tolist())):
        close(chain.log_partition[i], exact.log_partition)
        close(chain.marginals[i, :length], exact.marginals)
        close(chain.argmax[i, :length], exact.argmax * (exact.log_partition > -INF))
        edges = max(length - 1, 0)
        on_nodes, on_edges = exact.gradients(upstream[0][i], upstream[1][i, :length], upstream[2][i, :edges])
        expected[0][i, :length], expected[1][i, :edges] = on_nodes, on_edges
        if length > 0:
            expected[2] += on_nodes[0]
            expected[3][i] = on_nodes[-1]
    close(on_unary, expected[0])
    close(on_pairwise, expected[1] if per_edge else expected[1].sum((0, 1)))
    close(on_start, expected[2])
    close(on_end, expected[3])


def forbid_some(potentials):
    unary, pairwise, start, end = (t.data for t in potentials)
    unary[0, 2, 1] = unary[4, 0, 0] = start[2] = end[0, 1] = -INF
    pairwise[..., 0, 1] = pairwise[..., 2, 2] = -INF


@pytest.mark.parametrize("quantity", ("log_partition", "marginals", "edge_marginals", "entropy"))
@pytest.mark.parametrize("per_edge", (False, True))
def test_gradcheck(backend, quantity, per_edge):
    potentials, lengths = random_potentials(3, 3, per_edge), torch.tensor([3, 0, 2])
    assert torch.autograd.gradcheck(lambda *inputs: getattr(make(inputs, lengths), quantity), potentials)


@pytest.mark.parametrize("quantity", ("log_partition", "marginals", "edge_marginals", "entropy"))
def test_reference_is_twice_differentiable(quantity):
    potentials, lengths = random_potentials(2, 3, True), torch.tensor([3, 2])
    with use_backend("reference"):
        assert torch.autograd.gradgradcheck(lambda *inputs: getattr(make(inputs, lengths), quantity), potentials)


def test_pairwise_is_indexed_by_left_state_then_right_state(backend):
    # Only 0 → 2 is rewarded: the mass sits on 02, and a transposed table would put it on 20.
    pairwise = torch.zeros(STATES, STATES)
    pairwise[0, 2] = 8.0
    chain = LinearChain(torch.zeros(2, STATES), pairwise, num_states=STATES)
    assert chain.argmax.argmax(-1).tolist() == [0, 2]
    assert chain.edge_marginals[0, 0, 2] > 0.99


def test_support_size_counts_sequences(backend):
    chain = LinearChain(torch.zeros(3, 4, 5), torch.zeros(5, 5), torch.tensor([0, 1, 4]), num_states=5)
    assert chain.support_size.tolist() == [1, 5, 625]
    close(chain.log_partition.exp(), chain.support_size, 1e-5)


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
    states = make((torch.stack((torch.zeros(4, 6), binary._unary), -1), pairwise, start, end), lengths)
    close(binary.marginals, states.marginals[..., 1])
    close(binary.argmax, states.argmax[..., 1])
    for quantity in ("log_partition", "edge_marginals", "entropy", "support_size"):
        close(getattr(binary, quantity), getattr(states, quantity))
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


@pytest.mark.parametrize("name", ("start", "end"))
@pytest.mark.parametrize("state", (0, 1))
def test_ends_of_a_binary_chain(backend, name, state):
    unary, pairwise = torch.randn(2, 4).double().requires_grad_(), torch.randn(2, 2).double().requires_grad_()
    scores = torch.randn(2).double()
    scores[state] = -INF
    lengths = torch.tensor([4, 2])
    chain = LinearChain(unary, pairwise, lengths, **{name: scores})
    for i, n in enumerate(lengths.tolist()):
        states = torch.stack((torch.zeros(n).double(), unary[i, :n].detach()), -1)
        exact = EnumeratedStates(states, pairwise.detach(), **{name: scores})
        close(chain.log_partition[i], exact.log_partition)
        close(chain.marginals[i, :n], exact.marginals[:, 1])
        close(chain.argmax[i, :n], exact.argmax[:, 1])
        close(chain.entropy[i], exact.entropy)
        position = 0 if name == "start" else n - 1
        assert chain.marginals[i, position] == 1 - state
    samples = chain.sample((50,))
    assert samples[:, 0, 0 if name == "start" else 3].eq(1 - state).all()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(chain.entropy.sum(), (unary, pairwise)))
    free = LinearChain(unary, pairwise, lengths)
    assert free.kl(chain).eq(INF).all() and torch.isfinite(chain.kl(free)).all()


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


def test_impossible_item_leaves_the_others_alone(backend):
    potentials = random_potentials(3, 4, True)
    potentials[0].data[0, 1] = -INF
    potentials[1].data[2, 0] = -INF
    chain, alone = make(potentials), make([t if t.dim() == 1 else t[1:2] for t in potentials])
    assert chain.log_partition[[0, 2]].eq(-INF).all()
    for quantity in ("marginals", "edge_marginals", "argmax", "entropy"):
        assert getattr(chain, quantity)[[0, 2]].eq(0).all(), quantity
        close(getattr(chain, quantity)[1], getattr(alone, quantity)[0])
    samples = chain.sample((20,))
    assert samples[:, [0, 2]].eq(0).all() and samples[:, 1].sum(-1).eq(1).all()
    assert chain.log_prob(chain.argmax)[[0, 2]].eq(-INF).all()
    on_unary, on_pairwise, _, on_end = gradients(chain, potentials, random_upstream(3, 4))
    for gradient in (on_unary, on_pairwise, on_end):
        assert gradient[[0, 2]].eq(0).all() and gradient[1].ne(0).any() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("broken", ("unary", "pairwise"))
@pytest.mark.parametrize("states", (1, 3))
def test_nan_is_not_hidden(backend, broken, states):
    potentials = random_potentials(3, 4, True, states=states)
    potentials[0 if broken == "unary" else 1].data[1, 2] = float("nan")
    chain = make(potentials)
    assert chain.log_partition.isnan().tolist() == [False, True, False]
    assert chain.marginals.isnan().flatten(1).any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("garbage", (float("nan"), INF, -INF))
@pytest.mark.parametrize("per_edge", (False, True))
def test_padding_reaches_neither_values_nor_gradients(backend, garbage, per_edge):
    lengths = torch.tensor([0, 1, 3, 5])
    potentials, upstream = random_potentials(4, 5, per_edge), random_upstream(4, 5)
    clean = make(potentials, lengths)
    expected = gradients(clean, potentials, upstream)
    padding = torch.arange(5) >= lengths[:, None]
    poisoned = [t.detach().clone().requires_grad_() for t in potentials]
    for tensor in (poisoned[0].data, upstream[1]):
        tensor[padding] = garbage
    upstream[2][padding[:, 1:]] = garbage
    poisoned[3].data[0] = garbage
    if per_edge:
        poisoned[1].data[padding[:, 1:]] = garbage
    chain = make(poisoned, lengths)
    assert all(map(torch.equal, outputs(chain), outputs(clean)))
    assert chain.entropy.equal(clean.entropy) and chain.argmax.equal(clean.argmax)
    assert chain.argmax[padding].eq(0).all() and chain.sample((2,))[:, padding].eq(0).all()
    structure = torch.full((4, 5, STATES), garbage)
    structure[~padding] = clean.argmax[~padding].float()
    assert chain.log_prob(structure).equal(clean.log_prob(clean.argmax))
    actual = torch.autograd.grad(outputs(chain), poisoned, upstream)
    assert all(map(torch.equal, actual, expected))


def test_each_length_as_if_alone(backend):
    lengths = torch.tensor([5, 0, 1, 3])
    potentials = random_potentials(4, 5)
    chain, upstream = make(potentials, lengths), random_upstream(4, 5)
    on_unary = gradients(chain, potentials, upstream)[0]
    for i, n in enumerate(lengths.tolist()):
        own = potentials[0][i : i + 1, :n].detach().requires_grad_()
        alone = make((own, potentials[1], potentials[2], potentials[3][i : i + 1]))
        short = upstream[0][i : i + 1], upstream[1][i : i + 1, :n], upstream[2][i : i + 1, : max(n - 1, 0)]
        close(chain.log_partition[i], alone.log_partition[0])
        close(chain.marginals[i, :n], alone.marginals[0])
        close(chain.edge_marginals[i, : max(n - 1, 0)], alone.edge_marginals[0])
        close(chain.entropy[i], alone.entropy[0])
        if n > 0:
            close(on_unary[i, :n], gradients(alone, own, short)[0][0])


@pytest.mark.parametrize("shape", ((0, 4), (3, 0), (0, 0), (2, 1)))
@pytest.mark.parametrize("per_edge", (False, True))
@pytest.mark.parametrize("states", (1, 3))
def test_empty_and_single_position(backend, shape, per_edge, states):
    potentials = random_potentials(*shape, per_edge, states=states)
    chain = make(potentials)
    assert chain.marginals.shape == chain.argmax.shape == shape + (states,)
    assert chain.edge_marginals.shape == (shape[0], max(shape[1] - 1, 0), states, states)
    assert chain.log_partition.shape == chain.entropy.shape == shape[:1]
    assert chain.sample((2,)).shape == (2,) + shape + (states,)
    assert chain.log_prob(chain.argmax).shape == shape[:1]
    sum(out.sum() for out in outputs(chain)).backward()
    # The probabilities of a position add up to 1, whatever the potentials.
    close(potentials[0].grad, chain.marginals)
    if shape[1] == 0:
        assert chain.log_partition.eq(0).all()


def test_expanded_and_transposed_inputs(backend):
    unary = torch.randn(STATES, 4, 2).double().permute(2, 1, 0)[:1].expand(3, 4, STATES)
    pairwise = torch.randn(STATES, STATES).double().t()
    chain = LinearChain(unary, pairwise, num_states=STATES)
    same = LinearChain(unary.contiguous(), pairwise.contiguous(), num_states=STATES)
    assert all(map(torch.equal, outputs(chain), outputs(same)))


def test_tensors_and_flags_of_the_caller_are_untouched(backend):
    for needs_grad in (False, True):
        potentials = [t.detach().requires_grad_(needs_grad) for t in random_potentials(2, 3, True)]
        before, lengths = [t.detach().clone() for t in potentials], torch.tensor([3, 1])
        chain = make(potentials, lengths)
        for quantity in ("log_partition", "marginals", "edge_marginals", "argmax", "entropy"):
            assert getattr(chain, quantity).requires_grad == (needs_grad and quantity != "argmax"), quantity
        chain.sample((2,))
        if needs_grad:
            torch.autograd.grad(chain.entropy.sum() + chain.marginals.square().sum(), potentials)
        assert all(map(torch.equal, potentials, before)) and lengths.tolist() == [3, 1]
        assert all(t.requires_grad == needs_grad and t.grad is None for t in potentials)


def test_only_the_potentials_that_need_a_gradient_get_one(backend):
    unary, pairwise, start, end = (t.detach() for t in random_potentials(2, 3))
    chain = make((unary, pairwise.requires_grad_(), start, end))
    chain.marginals.square().sum().backward()
    assert pairwise.grad.ne(0).any() and unary.grad is None


def test_two_runs_are_identical(backend):
    potentials, upstream = random_potentials(30, 8, dtype=torch.float32), random_upstream(30, 8, dtype=torch.float32)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        chain = make(potentials)
        runs.append(outputs(chain) + (chain.sample((3,)), chain.argmax) + gradients(chain, potentials, upstream))
    assert all(map(torch.equal, *runs))


def test_several_threads_compute_the_same(backend):
    potentials, upstream = random_potentials(20, 6), random_upstream(20, 6)
    expected = outputs(make(potentials)) + gradients(make(potentials), potentials, upstream)
    results = [None] * 4

    def compute(number):
        with use_backend(backend):
            results[number] = outputs(make(potentials)) + gradients(make(potentials), potentials, upstream)

    callers = [threading.Thread(target=compute, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(torch.equal(a, b) for result in results for a, b in zip(result, expected))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
def test_results_have_the_dtype_of_the_scores(backend, dtype):
    potentials = random_potentials(4, 9, dtype=dtype)
    chain, wide = make(potentials), make([t.double() for t in potentials])
    tolerance = max(torch.finfo(dtype).eps, 4e-6 if dtype != torch.double else 1e-12)
    for quantity in ("log_partition", "marginals", "edge_marginals", "argmax", "entropy"):
        value = getattr(chain, quantity)
        assert value.dtype == dtype, quantity
        close(value.double(), getattr(wide, quantity), 4 * tolerance if quantity == "entropy" else tolerance)
    assert chain.sample().dtype == chain.log_prob(chain.argmax).dtype == dtype
    chain.marginals.square().sum().backward()
    assert all(t.grad.dtype == dtype for t in potentials)


# Compiled kernels against the specification


@pytest.mark.parametrize("deviation", (1.0, 30.0, 100.0, 1000.0))
@pytest.mark.parametrize("states", (2, 7))
def test_compiled_kernels_lose_nothing_to_float32(deviation, states):
    pytest.importorskip("numba")
    n, lengths = 17, torch.randint(0, 18, (20,))
    potentials = random_potentials(20, n, True, deviation, torch.float32, states)
    upstream = random_upstream(20, n, states, torch.float32)
    single = make(potentials, lengths)
    on_single = gradients(single, potentials, upstream)
    wide = [t.detach().double().requires_grad_() for t in potentials]
    with use_backend("reference"):
        exact = make(wide, lengths)
        expected = outputs(exact) + gradients(exact, wide, [g.double() for g in upstream])
    for actual, value in zip(outputs(single) + on_single, expected):
        close(actual.double(), value, 4e-6)


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


# Samples


def test_samples_have_the_marginals_and_edge_marginals_of_the_chain(backend):
    potentials, draws = random_potentials(2, 4), 4000
    chain = make(potentials, torch.tensor([4, 2]))
    samples = chain.sample((draws,))
    assert samples.shape == (draws, 2, 4, STATES) and not samples.requires_grad
    pairs = samples[..., :-1, :, None] * samples[..., 1:, None, :]
    for frequency, p in ((samples.mean(0), chain.marginals), (pairs.mean(0), chain.edge_marginals)):
        standard_error = (p * (1 - p) / draws).sqrt()
        assert ((frequency - p).abs() <= 4.5 * standard_error + 1e-12).all()


def test_samples_respect_forbidden_parts(backend):
    potentials = random_potentials(5, 5)
    forbid_some(potentials)
    chain = make(potentials)
    assert chain.log_prob(chain.sample((200,))).isfinite().all()


def test_argmax_of_ties_is_one_sequence(backend):
    chain = LinearChain(torch.zeros(4, STATES), torch.zeros(STATES, STATES), num_states=STATES)
    assert chain.argmax.sum(-1).eq(1).all() and set(chain.argmax.unique().tolist()) == {0, 1}


def test_structures_outside_the_support(backend):
    chain = LinearChain(torch.zeros(3, STATES), torch.zeros(STATES, STATES), torch.tensor(2), num_states=STATES)
    inside = torch.tensor([[1.0, 0, 0], [0, 0, 1], [7, 7, 7]])
    assert chain.log_prob(inside).isfinite()
    for row in ([0.0, 0, 0], [1, 1, 0], [0.5, 0.5, 0], [2, -1, 0]):
        outside = inside.clone()
        outside[1] = torch.tensor(row)
        assert chain.log_prob(outside) == -INF


# The paper's backward pass


@pytest.mark.parametrize("states", (2, STATES))
@pytest.mark.parametrize("n", (1, 2, 6))
@pytest.mark.parametrize("scale", (1.0, 30.0))
@pytest.mark.parametrize("forbid", (False, True))
def test_signed_logarithms_give_the_closed_form(backend, states, n, scale, forbid):
    unary, pairwise, _, _ = random_potentials(8, n, True, scale, states=states)
    if forbid:
        for tensor in (unary.data, pairwise.data):
            tensor[torch.rand(tensor.shape) < 0.15] = -INF
    lengths = torch.randint(0, n + 1, (8,))
    upstream = torch.randn(8, n, states).double()
    chain = LinearChain(unary, pairwise, lengths, num_states=states)
    parts, no_edges = (chain.marginals, chain.edge_marginals), torch.zeros_like(chain.edge_marginals)
    closed_form = torch.autograd.grad(parts, (unary, pairwise), (upstream, no_edges))
    upstream[torch.arange(n) >= lengths[:, None]] = float("nan")
    real = torch.arange(n) < lengths[:, None]
    clean = unary.detach().masked_fill(~real[..., None], 0), pairwise.detach().masked_fill(~real[:, 1:, None, None], 0)
    for actual, expected in zip(paper_gradients(*clean, lengths, upstream), closed_form):
        close(actual, expected)


def test_signed_logarithms_give_the_closed_form_of_the_binary_chain(backend):
    unary, pairwise = torch.randn(3, 5).double().requires_grad_(), torch.randn(2, 2).double().requires_grad_()
    lengths, upstream = torch.tensor([5, 1, 3]), torch.randn(3, 5).double()
    expected = torch.autograd.grad(LinearChain(unary, pairwise, lengths).marginals, (unary, pairwise), upstream)
    states = torch.stack((torch.zeros_like(unary), unary), -1).detach()
    on_states = torch.stack((torch.zeros_like(upstream), upstream), -1)
    on_unary, on_edges = paper_gradients(states, pairwise.detach(), lengths, on_states)
    close(on_unary[..., 1], expected[0])
    close(on_edges.sum((0, 1)), expected[1])


def test_max_semiring_gives_the_score_of_the_best_sequence():
    potentials = random_potentials(3, 4)
    chain = make(potentials)
    value = reference.total(*chain._problem(), MaxSemiring)
    for i, exact in enumerate(enumerate_all(potentials)):
        close(value[i], exact.scores.max())


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
    with pytest.raises(ValueError, match="other is a chain with num_states=3; kl needs a binary chain"):
        binary.kl(states)


def test_log_prob_of_another_shape():
    with pytest.raises(ValueError, match=r"parts has shape \(2, 4\).*\(2, 4, 3\)"):
        LinearChain(UNARY, TABLE, num_states=3).log_prob(torch.zeros(2, 4))
