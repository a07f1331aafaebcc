"""Binary chains by scans against the specification: on a GPU, or in Triton's interpreter."""

import numpy as np
import pytest
import torch

from fairseq_structattn.distributions import LinearChain, use_backend
from fairseq_structattn.distributions.kernels import triton_launch
from fairseq_structattn.distributions.linear_chain import log_odds, reference

pytest.importorskip("triton")

from fairseq_structattn.distributions.linear_chain import cuda, triton_lanes, triton_scan  # noqa: E402

if triton_launch.interpreted():
    from triton.runtime.interpreter import InterpretedFunction, ScanOps

    one_by_one, patch_and_call = ScanOps.generic_scan, InterpretedFunction.__call__

INF, NAN = float("inf"), float("nan")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = (1, 2, 3, 17) + tuple(pytest.param(n, marks=pytest.mark.gpu) for n in (31, 64, 65, 128, 300, 1100))

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    # numpy, in the interpreter, has something to say about −∞.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def scans_on_the_device(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(cuda, "FEW_CHAINS", 10**6)
    monkeypatch.setattr(cuda, "SHORT", 0)
    if triton_launch.interpreted():
        # Tiles that even short chains need several of.
        monkeypatch.setattr(triton_scan, "TILES", ((4, 1), (16, 1)))
        monkeypatch.setattr(ScanOps, "generic_scan", scan_by_doubling)
        monkeypatch.setattr(InterpretedFunction, "__call__", call_part)
    with use_backend("cuda"):
        yield


def call_part(self, *args, **options):
    """A call within a kernel, whose language is patched already: doing it again takes half of the time."""
    own = self.fn.__module__.startswith("fairseq_structattn")
    return self.rewrite()(*args, **options) if own else patch_and_call(self, *args, **options)


def scan_by_doubling(self, tensors):
    """The scan of a warp, which combines neighbouring parts; the interpreter's own takes one number after the other."""
    results, position, step = tensors, np.arange(tensors[0].handle.data.size), 1
    while step < position.size:
        earlier = [self.to_tensor(np.roll(x.handle.data, step), x.dtype) for x in results]
        combined = self.combine_fn.fn(*earlier, *results)
        results = [
            self.to_tensor(np.where(position >= step, new.handle.data, old.handle.data), old.dtype)
            for new, old in zip(combined, results)
        ]
        step *= 2
    return results


def random_problem(n, per_edge=False, ends=True, scale=1.0, dtype=torch.double):
    """Four chains, one of which is empty; the scores of a start are shared."""
    shapes = {"unary": (4, n), "pairwise": (4, n - 1, 2, 2) if per_edge else (2, 2)}
    shapes.update({"start": (2,), "end": (4, 2)} if ends else {})
    scores = {name: (scale * torch.randn(shape, dtype=dtype)).to(DEVICE) for name, shape in shapes.items()}
    return scores, torch.tensor([n, n // 2 + 1, 0, n - 1], device=DEVICE)


def random_upstream(scores):
    batch, n = scores["unary"].shape[:2]
    return [torch.randn(shape, device=DEVICE) for shape in ((batch,), (batch, n), (batch, n - 1, 2, 2))]


def everything(scores, lengths, upstream, **options):
    """log Z, marginals, edge marginals and the gradients of all scores."""
    inputs = {name: tensor.detach().requires_grad_() for name, tensor in scores.items()}
    chain = LinearChain(**inputs, lengths=lengths, **options)
    outputs = chain.log_partition, chain.marginals, chain.edge_marginals
    given = [g.to(output) for g, output in zip(upstream, outputs)]
    gradients = torch.autograd.grad(outputs, list(inputs.values()), given, allow_unused=True)
    # The reference does not use the table of a single position.
    return outputs + tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs.values(), gradients))


def exactly(scores, lengths, upstream, **options):
    with use_backend("reference"):
        double = {name: tensor.double() for name, tensor in scores.items()}
        return everything(double, lengths, upstream, **options)


def check(problem, tolerance=1e-10, upstream=None, **options):
    """Values and gradients are those of the reference; returns them."""
    upstream = random_upstream(problem[0]) if upstream is None else upstream
    actual, expected = everything(*problem, upstream, **options), exactly(*problem, upstream, **options)
    for value, exact in zip(actual, expected):
        close(value, exact, tolerance)
    return actual


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("per_edge, ends", ((False, True), (True, False)))
def test_values_and_gradients_in_float64(n, per_edge, ends):
    check(random_problem(n, per_edge, ends))


@pytest.mark.parametrize("n", (17,) + tuple(pytest.param(n, marks=pytest.mark.gpu) for n in (64, 65, 300, 1100)))
@pytest.mark.parametrize("scale", (1.0, 30.0, 1000.0))
def test_the_error_in_float32_does_not_grow_with_the_scores(n, scale):
    check(random_problem(n, scale > 1, scale=scale, dtype=torch.float32), tolerance=5e-6)


@pytest.mark.skipif(not triton_launch.interpreted(), reason="a GPU has one order")
def test_any_order_of_combining_and_any_tile_give_the_same(monkeypatch):
    problem = random_problem(4, True)
    upstream = random_upstream(problem[0])
    expected = everything(*problem, upstream)
    for tile in (2, 8):
        monkeypatch.setattr(triton_scan, "TILES", ((tile, 1),))
        for value, other in zip(everything(*problem, upstream), expected):
            close(value, other, 1e-12)
    monkeypatch.setattr(ScanOps, "generic_scan", one_by_one)
    for value, other in zip(everything(*problem, upstream), expected):
        close(value, other, 1e-12)


@pytest.mark.parametrize("output", range(3))
def test_one_output_alone(output):
    (scores, lengths), gradients = random_problem(3), []
    for backend in ("cuda", "reference"):
        inputs = {name: tensor.clone().requires_grad_() for name, tensor in scores.items()}
        with use_backend(backend):
            chain = LinearChain(**inputs, lengths=lengths)
            quantity = (chain.log_partition, chain.marginals, chain.edge_marginals)[output]
            # The gradient of a sum is one number, repeated.
            (quantity.sum() if output < 2 else quantity[..., 1, 0].sum()).backward()
        gradients.append([tensor.grad for tensor in inputs.values()])
    for value, exact in zip(*gradients):
        close(value, exact)


@pytest.mark.parametrize("garbage", (NAN, INF, -INF))
def test_padding_reaches_neither_values_nor_gradients(garbage):
    scores, lengths = random_problem(4, True)
    upstream = random_upstream(scores)
    expected = everything(scores, lengths, upstream)
    padding = torch.arange(4, device=DEVICE) >= lengths[:, None]
    for tensor in (scores["unary"], upstream[1]):
        tensor.masked_fill_(padding, garbage)
    for tensor in (scores["pairwise"], upstream[2]):
        tensor.masked_fill_(padding[:, 1:, None, None], garbage)
    scores["end"][lengths == 0] = garbage
    actual = everything(scores, lengths, upstream)
    assert all(map(torch.equal, actual, expected))
    for value in (actual[1], actual[3]):
        assert value[padding].eq(0).all()
    for value in (actual[2], actual[4]):
        assert value[padding[:, 1:]].eq(0).all()
    assert actual[0][lengths == 0].eq(0).all() and actual[6][lengths == 0].eq(0).all()


def test_forbidden_pairs_of_states():
    pairs = ("00", "01", "10", "11", "00 01", "00 10", "10 11", "01 11", "01 10", "00 11")
    scores = {"unary": torch.randn(10, 4), "pairwise": torch.randn(10, 3, 2, 2), "end": torch.randn(2)}
    scores = {name: tensor.double().to(DEVICE) for name, tensor in scores.items()}
    for chain, forbidden in enumerate(pairs):
        for pair in forbidden.split():
            scores["pairwise"][chain, :, int(pair[0]), int(pair[1])] = -INF
    scores["unary"][0, 2] = scores["unary"][1] = -INF
    actual = check((scores, torch.tensor([4, 3] * 5, device=DEVICE)))
    assert actual[1][scores["unary"] == -INF].eq(0).all()
    assert actual[4][scores["pairwise"] == -INF].eq(0).all()


@pytest.mark.parametrize("ends", ("start", "end"))
def test_forbidden_states_at_the_ends(ends):
    scores, lengths = random_problem(4, True)
    scores[ends] = scores[ends].expand(4, 2).clone()
    scores[ends][0, 0] = scores[ends][1, 1] = scores[ends][3] = -INF
    actual = check((scores, lengths))
    assert actual[0][3] == -INF and actual[1][3].eq(0).all()
    end = 0 if ends == "start" else lengths[0] - 1
    assert actual[1][0, end] == 1


def test_impossible_chain_leaves_the_others_alone():
    scores, _ = random_problem(6, True)
    lengths = torch.tensor([6, 5, 6, 6], device=DEVICE)
    upstream = random_upstream(scores)
    expected = everything(scores, lengths, upstream)
    scores["pairwise"][1, 2] = -INF
    # Impossible because of what comes one after the other: both states of a position have one way in or out.
    scores["unary"][2, 4], scores["pairwise"][2, 3:5, 0, 0], scores["pairwise"][2, 3, 1, 0] = -INF, -INF, -INF
    upstream[1][1] = upstream[2][1] = NAN
    actual = everything(scores, lengths, upstream)
    assert actual[0][1:3].eq(-INF).all()
    for index, (value, before) in enumerate(zip(actual, expected)):
        if index != 5:
            assert torch.equal(value[0], before[0]) and torch.equal(value[3], before[3])
            assert index == 0 or value[1:3].eq(0).all()


def test_finite_stand_in_for_what_is_forbidden_keeps_the_other_scores():
    scores, lengths = random_problem(4, dtype=torch.float32)
    finite = dict(scores, pairwise=scores["pairwise"].clone(), end=scores["end"].clone())
    finite["pairwise"][1, 0] = finite["end"][0, 1] = -1e9
    scores["pairwise"][1, 0] = scores["end"][0, 1] = -INF
    upstream = random_upstream(scores)
    for value, exact in zip(everything(finite, lengths, upstream), everything(scores, lengths, upstream)):
        close(value, exact, 1e-6)


@pytest.mark.parametrize("broken", ("unary", "pairwise", "end"))
def test_nan_is_not_hidden(broken):
    scores, _ = random_problem(4, True)
    scores[broken][1, 1] = NAN
    chain = LinearChain(**scores)
    expected = [False, True, False, False]
    assert chain.log_partition.isnan().tolist() == expected
    assert chain.marginals.isnan().any(1).tolist() == expected


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision_is_computed_with_in_float32(dtype):
    problem = random_problem(3, dtype=dtype)
    upstream = [g.to(dtype) for g in random_upstream(problem[0])]
    actual = check(problem, torch.finfo(dtype).eps, upstream)
    assert all(value.dtype == dtype for value in actual)


@pytest.mark.parametrize("shape", ((0, 4), (3, 0), (2, 1)))
def test_empty(shape):
    unary, start = torch.randn(shape, device=DEVICE, requires_grad=True), torch.zeros(2, device=DEVICE)
    edges = max(shape[1] - 1, 0)
    chain = LinearChain(unary, torch.randn(edges, 2, 2, device=DEVICE), start=start)
    (chain.log_partition.sum() + chain.marginals.sum() + chain.edge_marginals.sum()).backward()
    assert chain.marginals.shape == unary.grad.shape == shape and chain.log_partition.shape == shape[:1]
    assert chain.edge_marginals.shape == (shape[0], edges, 2, 2)


def test_views_and_batches_of_more_dimensions():
    scores, lengths = random_problem(3)
    upstream = random_upstream(scores)
    expected = everything(scores, lengths, upstream)
    views = {name: strided(tensor) for name, tensor in scores.items()}
    assert all(map(torch.equal, everything(views, lengths, [strided(g) for g in upstream]), expected))
    for shared in (
        scores["pairwise"],
        torch.randn(2, 1, 2, 2, 2).to(scores["unary"]),
        scores["pairwise"].expand(2, 2, 2),
    ):
        batch = dict(scores, unary=scores["unary"].reshape(2, 2, 3), pairwise=shared, end=scores["end"][:2, None][:, 0])
        check((batch, lengths.reshape(2, 2)), upstream=[g.reshape((2, 2) + g.shape[1:]) for g in upstream])


def strided(tensor):
    return tensor.repeat_interleave(2, 0)[::2].movedim(0, -1).contiguous().movedim(-1, 0)


def test_a_chain_does_not_depend_on_its_neighbours_and_two_runs_are_identical():
    (scores, _), lengths = random_problem(4, True, ends=False, dtype=torch.float32), torch.tensor([4, 4, 2, 3])
    scores["unary"][1] *= 500
    lengths, upstream = lengths.to(DEVICE), random_upstream(scores)
    together, again = (everything(scores, lengths, upstream) for _ in range(2))
    assert all(map(torch.equal, together, again))
    for i in (0, 3):
        alone = slice(i, i + 1)
        own = everything({k: v[alone] for k, v in scores.items()}, lengths[alone], [g[alone] for g in upstream])
        assert all(torch.equal(value[0], all_values[i]) for value, all_values in zip(own, together))


def test_tensors_of_the_caller_are_untouched():
    scores, lengths = random_problem(3, True)
    upstream = random_upstream(scores)
    tensors = [*scores.values(), lengths, *upstream]
    before = [tensor.clone() for tensor in tensors]
    everything(scores, lengths, upstream)
    assert all(map(torch.equal, before, tensors))


# What is made of them


def test_chain_of_two_states_given_by_their_number():
    scores, lengths = random_problem(3)
    scores["unary"] = torch.randn(4, 3, 2).to(scores["unary"])
    scores["unary"][0, 2, 0] = scores["unary"][1, 0, 1] = scores["unary"][3, 1] = -INF
    upstream = random_upstream({"unary": scores["unary"][..., 0]})
    upstream[1] = torch.randn(4, 3, 2, device=DEVICE)
    actual = check((scores, lengths), upstream=upstream, num_states=2)
    assert actual[0][3] == -INF and actual[1][3].eq(0).all() and actual[2][3].eq(0).all()
    assert actual[1][0, 2].tolist() == [0, 1]


@pytest.mark.parametrize("num_states", (None, 2))
def test_entropy_and_divergence(num_states):
    scores, lengths = random_problem(3)
    # The last chain is impossible.
    scores["end"][0, 0], scores["end"][3] = -INF, -INF
    other, _ = random_problem(3, True)
    if num_states:
        scores["unary"], other["unary"] = (torch.randn(4, 3, 2).to(lengths.device, torch.double) for _ in range(2))
    values = []
    for backend in ("cuda", "reference"):
        inputs = {name: tensor.clone().requires_grad_() for name, tensor in scores.items()}
        with use_backend(backend):
            chain = LinearChain(**inputs, lengths=lengths, num_states=num_states)
            entropy, kl = chain.entropy(), chain.kl(LinearChain(**other, lengths=lengths, num_states=num_states))
            values.append((entropy, kl) + torch.autograd.grad((entropy + kl).sum(), list(inputs.values())))
    for value, exact in zip(*values):
        close(value, exact)
    assert values[0][0][3] == values[0][1][3] == 0


# Which kernels run


def test_two_states_ask_the_reference_for_nothing_but_a_best_sequence_and_samples(monkeypatch):
    calls = []
    for module in (log_odds, reference):
        monkeypatch.setattr(
            module, "expectations", lambda *args, run=module.expectations: calls.append(args) or run(*args)
        )
    unary, table, start = (torch.randn(shape, device=DEVICE) for shape in ((1, 3, 2), (2, 2), (2,)))
    for chain in (LinearChain(unary[..., 0], table, start=start), LinearChain(unary, table, num_states=2)):
        for quantity in (chain.log_partition, chain.marginals, chain.edge_marginals, chain.entropy(), chain.kl(chain)):
            assert quantity.isfinite().all()
        assert chain.log_prob(torch.zeros_like(chain.marginals)).shape == (1,) and calls == []
    assert chain.argmax.shape == chain.sample().shape and len(calls) == 2


def test_few_long_chains_are_scanned_and_many_have_a_lane_each(monkeypatch):
    monkeypatch.undo()
    calls = []
    for function in (triton_lanes.LaneExpectations, triton_scan.ScanExpectations):
        monkeypatch.setattr(function, "__call__", lambda *args, kind=function: calls.append(kind) or stop())

    def run(chains, n, **options):
        unary, lengths = torch.zeros(chains, n, device=DEVICE), torch.full((chains,), n, device=DEVICE)
        with pytest.raises(StopIteration):
            cuda.binary_expectations(unary, torch.zeros(2, 2, device=DEVICE), lengths, **options)
        return calls.pop()

    def stop():
        raise StopIteration

    few, short = cuda.FEW_CHAINS, cuda.SHORT
    assert run(few, short + 1) is triton_scan.ScanExpectations
    assert run(few + 1, short + 1) is run(few, short) is run(100000, 200) is triton_lanes.LaneExpectations
    assert run(few + 1, short, with_edges=True) is triton_scan.ScanExpectations
    assert run(few + 1, short, end=torch.zeros(2, device=DEVICE)) is triton_scan.ScanExpectations


@pytest.mark.gpu
@pytest.mark.parametrize("n", (33, 600))
def test_nothing_waits_and_a_graph_can_be_captured(n):
    problem = random_problem(n, True, dtype=torch.float32)
    upstream = random_upstream(problem[0])
    expected = everything(*problem, upstream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(*problem, upstream)
    graph.replay()
    assert all(map(torch.equal, captured, expected))
