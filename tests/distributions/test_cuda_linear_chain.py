"""Binary chains with a lane each against the specification: on a GPU, or in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from fairseq_structattn.distributions import LinearChain, use_backend

pytest.importorskip("triton")

from fairseq_structattn.distributions.linear_chain import cuda  # noqa: E402

INF, NAN = float("inf"), float("nan")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL, LARGE = (1, 2, 3, 17), (31, 64, 65, 128)
SIZES = SMALL + tuple(pytest.param(n, marks=pytest.mark.gpu) for n in LARGE)
# More than a program's chains, and no multiple of them.
CHAINS = 35


pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture(autouse=True)
def lanes_on_the_device(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(cuda, "FEW_CHAINS", -1)
    with use_backend("cuda"):
        yield


def random_problem(chains, n, per_edge=False, scale=1.0, dtype=torch.double):
    unary = scale * torch.randn(chains, n, dtype=dtype)
    pairwise = scale * torch.randn(*((chains, n - 1) if per_edge else ()), 2, 2, dtype=dtype)
    return unary.to(DEVICE), pairwise.to(DEVICE), torch.randint(0, n + 1, (chains,)).to(DEVICE)


def everything(unary, pairwise, lengths, upstream):
    """log Z, marginals and the gradients of both scores."""
    inputs = unary.detach().requires_grad_(), pairwise.detach().requires_grad_()
    chain = LinearChain(*inputs, lengths)
    outputs = chain.log_partition, chain.marginals
    # The reference does not use the table of a single position.
    gradients = torch.autograd.grad(outputs, inputs, [g.to(unary) for g in upstream], allow_unused=True)
    return outputs + tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients))


def exactly(unary, pairwise, lengths, upstream):
    with use_backend("reference"):
        return everything(unary.double(), pairwise.double(), lengths, upstream)


def random_upstream(unary):
    return torch.randn(unary.shape[:-1], device=DEVICE), torch.randn(unary.shape, device=DEVICE)


def close(actual, expected, tolerance):
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("per_edge", (False, True))
def test_values_and_gradients_in_float64(n, per_edge):
    unary, pairwise, lengths = random_problem(CHAINS, n, per_edge)
    upstream = random_upstream(unary)
    actual, expected = (run(unary, pairwise, lengths, upstream) for run in (everything, exactly))
    for value, exact in zip(actual, expected):
        close(value, exact, 1e-10)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", (1.0, 30.0))
def test_values_and_gradients_in_float32(n, scale):
    unary, pairwise, lengths = random_problem(7, n, scale=scale, dtype=torch.float32)
    upstream = random_upstream(unary)
    actual, expected = (run(unary, pairwise, lengths, upstream) for run in (everything, exactly))
    # Relative to the size of the scores; the gradient of a shared table adds up those of all chains.
    tolerance = 2e-6 * scale
    for value, exact in zip(actual[:3], expected):
        close(value, exact, tolerance)
    close(actual[3], expected[3], 7 * tolerance)


@pytest.mark.parametrize("upstream", (0, 1))
def test_one_output_alone(upstream):
    unary, pairwise, lengths = random_problem(5, 11)
    inputs = unary.requires_grad_(), pairwise.requires_grad_()

    def gradients():
        chain = LinearChain(*inputs, lengths)
        # The gradient of a sum is one number, repeated.
        return torch.autograd.grad((chain.log_partition, chain.marginals)[upstream].sum(), inputs)

    actual = gradients()
    with use_backend("reference"):
        expected = gradients()
    for value, exact in zip(actual, expected):
        close(value, exact, 1e-10)


@pytest.mark.parametrize("garbage", (NAN, INF, -INF))
@pytest.mark.parametrize("per_edge", (False, True))
def test_padding_reaches_neither_values_nor_gradients(per_edge, garbage):
    unary, pairwise, lengths = random_problem(6, 11, per_edge)
    lengths[0] = 0
    padding = torch.arange(11, device=DEVICE) >= lengths[:, None]
    upstream = random_upstream(unary)
    expected = everything(unary, pairwise, lengths, upstream)
    unary.masked_fill_(padding, garbage)
    upstream[1].masked_fill_(padding, garbage)
    if per_edge:
        pairwise.masked_fill_(padding[:, 1:, None, None], garbage)
    actual = everything(unary, pairwise, lengths, upstream)
    assert all(map(torch.equal, actual, expected))
    assert actual[1][padding].eq(0).all() and actual[2][padding].eq(0).all()
    assert actual[0][lengths == 0].eq(0).all()


@pytest.mark.parametrize("pairs", ("00", "01", "10", "11", "00 01", "00 10", "10 11", "01 11", "01 10", "00 11"))
def test_forbidden_pairs_of_states(pairs):
    unary, pairwise, lengths = random_problem(5, 6, per_edge=len(pairs) > 2)
    for pair in pairs.split():
        pairwise[..., int(pair[0]), int(pair[1])] = -INF
    unary[0, 2] = unary[1, 0] = -INF
    unary[2] = -INF
    upstream = random_upstream(unary)
    actual, expected = (run(unary, pairwise, lengths, upstream) for run in (everything, exactly))
    for value, exact in zip(actual, expected):
        close(value, exact, 1e-10)
    assert actual[1][unary == -INF].eq(0).all()
    assert actual[3][pairwise == -INF].eq(0).all()


def test_finite_stand_in_for_what_is_forbidden_keeps_the_other_scores():
    unary, pairwise, lengths = random_problem(5, 6, dtype=torch.float32)
    finite = pairwise.clone()
    finite[1, 0], pairwise[1, 0] = -1e9, -INF
    upstream = random_upstream(unary)
    actual, expected = (everything(unary, table, lengths, upstream) for table in (finite, pairwise))
    for value, exact in zip(actual, expected):
        close(value, exact.double(), 1e-6)


def test_impossible_chain_leaves_the_others_alone():
    unary, pairwise, _ = random_problem(4, 9, True)
    lengths = torch.tensor([9, 7, 9, 9], device=DEVICE)
    upstream = random_upstream(unary)
    expected = everything(unary, pairwise, lengths, upstream)
    pairwise[1, 2] = -INF
    # Impossible because of what comes one after the other: both states of a position have one way in or out.
    unary[2, 4], pairwise[2, 3:5, 0, 0] = -INF, -INF
    pairwise[2, 3, 1, 0] = -INF
    upstream[1][1] = NAN
    actual = everything(unary, pairwise, lengths, upstream)
    assert actual[0][1:3].eq(-INF).all()
    for value, before in zip(actual, expected):
        assert torch.equal(value[0], before[0]) and torch.equal(value[3], before[3])
    assert all(gradient[1:3].eq(0).all() for gradient in actual[1:])


@pytest.mark.parametrize("broken", ("unary", "pairwise"))
def test_nan_is_not_hidden(broken):
    unary, pairwise, _ = random_problem(3, 4, True)
    for position in (0, 2):
        scores = {"unary": unary.clone(), "pairwise": pairwise.clone()}
        scores[broken][1, position] = NAN
        chain = LinearChain(**scores)
        assert chain.log_partition.isnan().tolist() == [False, True, False]
        assert chain.marginals.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision_is_computed_with_in_float32(dtype):
    unary, pairwise, lengths = random_problem(5, 11, dtype=dtype)
    upstream = [g.to(dtype) for g in random_upstream(unary)]
    actual, expected = (run(unary, pairwise, lengths, upstream) for run in (everything, exactly))
    for value, exact in zip(actual, expected):
        assert value.dtype == dtype
        close(value, exact, torch.finfo(dtype).eps)


@pytest.mark.parametrize("shape", ((0, 4), (3, 0), (0, 0), (2, 1)))
def test_empty(shape):
    unary = torch.randn(shape, device=DEVICE, requires_grad=True)
    pairwise = torch.randn(2, 2, device=DEVICE, requires_grad=True)
    chain = LinearChain(unary, pairwise)
    (chain.log_partition.sum() + chain.marginals.sum()).backward()
    assert chain.marginals.shape == unary.grad.shape == shape and chain.log_partition.shape == shape[:1]
    assert pairwise.grad is None or pairwise.grad.eq(0).all()


def test_views_and_shared_tables():
    unary, pairwise, lengths = random_problem(6, 5)
    views = unary.t().contiguous().t(), pairwise.t().contiguous().t()
    upstream = random_upstream(unary)
    expected = everything(unary, pairwise, lengths, upstream)
    strided = upstream[0].repeat_interleave(2)[::2], upstream[1].t().contiguous().t()
    assert all(map(torch.equal, everything(*views, lengths, strided), expected))
    unary, lengths = unary.reshape(2, 3, 5), lengths.reshape(2, 3)
    upstream = [g.reshape((2, 3) + g.shape[1:]) for g in upstream]
    tables = pairwise + torch.randn(2, 1, 4, 2, 2, dtype=torch.double, device=DEVICE)
    for shared in (pairwise, tables, tables[0], tables[0, 0]):
        actual, exact = (run(unary, shared, lengths, upstream) for run in (everything, exactly))
        for value, wanted in zip(actual, exact):
            close(value, wanted, 1e-10)


def test_a_chain_does_not_depend_on_its_neighbours_and_two_runs_are_identical():
    unary, pairwise, lengths = random_problem(CHAINS, 9, True, dtype=torch.float32)
    unary[1] *= 500
    upstream = random_upstream(unary)
    together, again = (everything(unary, pairwise, lengths, upstream) for _ in range(2))
    assert all(map(torch.equal, together, again))
    for i in (0, CHAINS - 1):
        alone = slice(i, i + 1)
        own = everything(unary[alone], pairwise[alone], lengths[alone], [g[alone] for g in upstream])
        assert all(torch.equal(value[0], all_values[i]) for value, all_values in zip(own, together))


def test_tensors_of_the_caller_are_untouched():
    unary, pairwise, lengths = random_problem(5, 9)
    unary[0, 1] = -INF
    upstream = random_upstream(unary)
    before = [tensor.clone() for tensor in (unary, pairwise, lengths) + upstream]
    everything(unary, pairwise, lengths, upstream)
    assert all(map(torch.equal, before, (unary, pairwise, lengths) + upstream))


def test_kernels_need_no_numba():
    program = (
        "import sys, torch\n"
        "sys.modules['numba'] = None\n"
        "from fairseq_structattn.distributions import LinearChain, use_backend\n"
        "with use_backend('cuda'):\n"
        "    print(LinearChain(torch.zeros(3), torch.zeros(2, 2)).marginals.tolist())\n"
    )
    environment = dict(os.environ, TRITON_INTERPRET="1")
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert "[0.5, 0.5, 0.5]" in run.stdout, run.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("chains, n", ((4000, 200), (100, 33)))
def test_nothing_waits_and_a_graph_can_be_captured(chains, n):
    unary, pairwise, lengths = random_problem(chains, n, dtype=torch.float32)
    upstream = random_upstream(unary)
    expected = everything(unary, pairwise, lengths, upstream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(unary, pairwise, lengths, upstream)
    graph.replay()
    assert all(map(torch.equal, captured, expected))
