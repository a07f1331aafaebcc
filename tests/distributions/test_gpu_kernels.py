"""Triton's kernels beside the specification: one template for all of them, on a GPU or small in Triton's interpreter.

Memory that is allocated holds NaN, and tiles and scans are such that even short structures need several.
"""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from contract import CASES, INF, POSITIONS, close, outputs

from fairseq_structattn.distributions import LinearChain, ProjectiveTree, SpanningTree, finite_masks, use_backend
from fairseq_structattn.distributions.kernels import triton_launch
from fairseq_structattn.distributions.linear_chain import log_odds
from fairseq_structattn.distributions.linear_chain import reference as chain_reference
from fairseq_structattn.distributions.projective_tree import reference as projective_reference

pytest.importorskip("triton")

from fairseq_structattn.distributions.linear_chain import triton_scan, triton_sequences, triton_states  # noqa: E402
from fairseq_structattn.distributions.projective_tree import cuda as projective_cuda  # noqa: E402
from fairseq_structattn.distributions.spanning_tree import cuda as spanning_cuda  # noqa: E402
from fairseq_structattn.distributions.spanning_tree import triton_sampling  # noqa: E402

if triton_launch.interpreted():
    from triton.runtime.interpreter import InterpretedFunction, ScanOps

    one_by_one, patch_and_call = ScanOps.generic_scan, InterpretedFunction.__call__

NAN = float("nan")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGE = (17, 31, 33, 64, 65, 128)
LENGTHS = (POSITIONS, POSITIONS - 1, 0, POSITIONS)

pytestmark = [
    pytest.mark.skipif(DEVICE.type == "cpu" and not triton_launch.interpreted(), reason="needs Triton's interpreter"),
    pytest.mark.usefixtures("poisoned"),
    # numpy, in the interpreter, has something to say about −∞.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


ON_GPU = [case for case in CASES if case.on_gpu]
every_kernel = pytest.mark.parametrize("case", ON_GPU, ids=[case.name for case in ON_GPU])
CHAINS = [case for case in ON_GPU if case.chain]
every_chain = pytest.mark.parametrize("case", CHAINS, ids=[case.name for case in CHAINS])


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    torch.manual_seed(0)
    if triton_launch.interpreted():
        monkeypatch.setattr(projective_cuda, "_TILES", ((1000, {"SPANS": 4, "SPLITS": 2}, {"num_warps": 1}),))
        monkeypatch.setattr(triton_scan, "TILES", ((4, 1), (16, 1)))
        monkeypatch.setattr(triton_states, "ROWS", 4)
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


def draw(case, n=POSITIONS, dtype=torch.double, items=4):
    return {name: scores.to(DEVICE) for name, scores in case.draw(items, n=n, dtype=dtype).items()}


def upstream_for(case, potentials, lengths):
    with use_backend("reference"):
        values = outputs(case.build(potentials, lengths))
    return [torch.randn(value.shape).to(value) for value in values]


def everything(case, potentials, lengths, upstream):
    """Outputs, and the gradients of all potentials."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in potentials.items()}
    values = outputs(case.build(leaves, lengths))
    # The reference does not use the table of a single position, and has no graph of nothing.
    used = [(value, g.to(value)) for g, value in zip(upstream, values) if value.requires_grad]
    values_used, given = zip(*used)
    gradients = torch.autograd.grad(values_used, list(leaves.values()), given, allow_unused=True)
    return values + [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), gradients)]


def check(case, potentials, lengths, tolerance, upstream=None):
    """Values and gradients are those of the reference in float64; returns them."""
    upstream = upstream or upstream_for(case, potentials, lengths)
    actual = everything(case, potentials, lengths, upstream)
    # What comes for a forbidden arc is of no consequence, but to the reference.
    finite = [g.nan_to_num(0.0) for g in upstream]
    with use_backend("reference"):
        wide = {name: tensor.double() for name, tensor in potentials.items()}
        expected = everything(case, wide, lengths, [g.double() for g in finite])
    for number, (value, exact) in enumerate(zip(actual, expected)):
        # A shared table adds up the gradients of all items.
        close(value.cpu(), exact.cpu(), tolerance * (4 if number >= len(upstream) else 1))
    return actual


def lengths_of(n):
    return torch.tensor([n, n // 2 + 1 if n > 1 else n, 0, max(n - 1, 0)], device=DEVICE)


def place(case, potentials, garbage):
    """Potentials with ``garbage`` in padding, for ``LENGTHS``, and in the place of arcs from words to themselves."""
    distribution = case.build(potentials, torch.tensor(LENGTHS, device=DEVICE))
    real, first = distribution.position_mask, list(potentials)[0]
    where = {"pairwise": ~real[..., 1:, None, None], "start": ~real.any(-1, True), "end": ~real.any(-1, True)}
    where[first] = ~distribution._real_parts()
    return {k: t if k in case.shared else t.masked_fill(where[k], garbage) for k, t in potentials.items()}, where


SIZES = [(1, torch.float32), (5, torch.double)]
SIZES += [pytest.param(n, dtype, marks=pytest.mark.gpu) for n in LARGE for dtype in (torch.float32, torch.double)]


@every_kernel
@pytest.mark.parametrize("n, dtype", SIZES)
def test_kernels_agree_with_the_reference(case, n, dtype):
    """Items of moderate and of large scores, with forbidden parts, and of several lengths."""
    potentials = draw(case, n, dtype)
    for name in set(potentials) - set(case.shared):
        potentials[name][0] *= 30
        potentials[name][3] = potentials[name][3].masked_fill(
            torch.rand(potentials[name][3].shape).to(DEVICE) < 0.2, -INF
        )
    tolerance = 1e-10 if dtype == torch.double else 4e-6
    check(case, potentials, lengths_of(n), tolerance if n <= 64 else 20 * tolerance)


@every_kernel
@pytest.mark.parametrize("n", (4,) + tuple(pytest.param(n, marks=pytest.mark.gpu) for n in (31, 64, 200)))
def test_scores_of_any_size(case, n):
    potentials = {name: 5e3 * scores for name, scores in draw(case, n, torch.float32).items()}
    check(case, potentials, lengths_of(n), 1e-5 if n <= 64 else 1e-4)


@every_kernel
@pytest.mark.parametrize("number", range(3))
def test_one_output_alone(case, number):
    potentials, lengths, found = draw(case), torch.tensor(LENGTHS, device=DEVICE), []
    if number == 2 and not case.chain:
        pytest.skip("no edges")
    for backend in ("cuda", "reference"):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in potentials.items()}
        with use_backend(backend):
            value = outputs(case.build(leaves, lengths))[number]
            value = value[[0, 1, 3]]
            # The gradient of a sum is one number, repeated.
            summed = value.sum() if number < 2 else value[..., 1, 0].sum()
            gradients = torch.autograd.grad(summed, list(leaves.values()), allow_unused=True)
        found.append([torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), gradients)])
    for value, exact in zip(*found):
        close(value.cpu(), exact.cpu(), 1e-10)


@every_kernel
def test_padding_reaches_neither_values_nor_gradients(case, garbage=NAN):
    potentials, lengths = draw(case), torch.tensor(LENGTHS, device=DEVICE)
    upstream = upstream_for(case, potentials, lengths)
    poisoned, where = place(case, potentials, garbage)
    dirty = [upstream[0], upstream[1].masked_fill(where[list(potentials)[0]], garbage)]
    dirty += [g.masked_fill(where["pairwise"], garbage) for g in upstream[2:]]
    clean = everything(case, potentials, lengths, upstream)
    actual = everything(case, poisoned, lengths, dirty)
    assert all(map(torch.equal, actual, clean))
    for value in (actual[1], actual[len(upstream)]):
        assert value[where[list(potentials)[0]]].eq(0).all()


@every_kernel
def test_forbidden_parts_and_impossible_items(case):
    """What comes for a forbidden arc is not looked at, and an impossible item leaves every bit of the others."""
    potentials, lengths = draw(case), torch.full((4,), POSITIONS, device=DEVICE)
    name = list(potentials)[0] if case.arcs else ("pairwise" if "pairwise" not in case.shared else "end")
    before = None
    for forbid in (False, True):
        potentials = {key: tensor.clone() for key, tensor in potentials.items()}
        if name not in potentials:
            return
        if forbid:
            potentials[name][1] = -INF
            if case.arcs:
                # Words 1 and 2 have each other, and the third has the root.
                potentials[name][2, [0, 3], 0] = potentials[name][2, [0, 3], 1] = -INF
        torch.manual_seed(3)
        upstream = [torch.randn(g.shape).to(g) for g in upstream_for(case, potentials, lengths)]
        if forbid and case.arcs:
            upstream[1] = upstream[1].masked_fill(potentials[name] == -INF, NAN)
        actual = check(case, potentials, lengths, 1e-10, upstream)
        if forbid:
            assert actual[0][1] == -INF and all(value[1].eq(0).all() for value in actual[1 : len(upstream)])
            assert all(
                torch.equal(value[[0, 3]], other[[0, 3]]) for value, other in zip(actual, before) if len(value) == 4
            )
        before = actual


@every_chain
def test_forbidden_pairs_of_states(case):
    pairs = ("00", "01", "10", "11", "00 01", "00 10", "10 11", "01 11", "01 10", "00 11")
    potentials, lengths = draw(case, 4, items=10), torch.tensor([4, 3] * 5, device=DEVICE)
    if "pairwise" in case.shared:
        potentials = dict(potentials, pairwise=potentials["pairwise"].clone())
        potentials["pairwise"][0, 1] = -INF
    else:
        for chain, forbidden in enumerate(pairs):
            for pair in forbidden.split():
                potentials["pairwise"][chain, :, int(pair[0]), int(pair[1])] = -INF
    for name in {"start", "end"} & set(potentials):
        potentials[name][0, 0] = potentials[name][1, 1] = potentials[name][3] = -INF
    potentials["unary"][0, 2], potentials["unary"][1] = -INF, -INF
    actual = check(case, potentials, lengths, 1e-10)
    if potentials["unary"].dim() == 2:
        assert actual[1][potentials["unary"] == -INF].eq(0).all()


@every_kernel
@pytest.mark.parametrize("seen", (pytest.param(True, marks=pytest.mark.gpu), False))
def test_finite_masks(case, seen, monkeypatch):
    """Where values are looked at, which the kernels do not notice, and where some structure does without any; both are
    those of the specification."""
    potentials, largest = draw(case, dtype=torch.float32), torch.finfo(torch.float32).max
    if seen:
        masked = {name: torch.rand(scores.shape).to(DEVICE) < 0.3 for name, scores in potentials.items()}
        potentials = {name: scores.masked_fill(masked[name], -largest) for name, scores in potentials.items()}
    else:
        monkeypatch.setattr(finite_masks, "readable", lambda tensor: False)
        name = list(potentials)[0]
        potentials[name][(slice(None), 1) + (0,) * (potentials[name].dim() - 2)] = -largest
    check(case, potentials, torch.full((4,), POSITIONS, device=DEVICE), 1e-5)


@every_kernel
def test_nan_is_not_hidden(case):
    for name in (list(draw(case))[0],) + (("pairwise",) if case.chain and "pairwise" not in case.shared else ()):
        potentials = draw(case)
        potentials[name][(1,) + (0,) * (potentials[name].dim() - 2) + (1,)] = NAN
        distribution = case.build(potentials, None)
        assert distribution.log_partition.isnan().tolist() == [False, True, False, False]
        assert distribution.marginals.isnan().flatten(1).any(1).tolist() == [False, True, False, False]


@every_kernel
def test_half_precision_is_computed_with_in_float32(case, dtype=torch.bfloat16):
    potentials, lengths = draw(case, dtype=dtype), torch.tensor(LENGTHS, device=DEVICE)
    actual = check(case, potentials, lengths, 2 * torch.finfo(dtype).eps)
    assert all(value.dtype == dtype for value in actual)


@every_kernel
@pytest.mark.parametrize("batch, n", (((0,), 3), ((2,), 0), ((2, 2), 2)))
def test_any_shape(case, batch, n):
    potentials = {name: scores.to(DEVICE) for name, scores in case.draw(*batch, n=n).items()}
    check(case, potentials, None, 1e-10)


@every_kernel
def test_neighbours_layout_and_repetition_change_no_bit_and_nothing_of_the_caller(case):
    potentials, lengths = draw(case, dtype=torch.float32), torch.tensor(LENGTHS, device=DEVICE)
    for name in set(potentials) - set(case.shared):
        potentials[name][1] *= 500
    upstream = upstream_for(case, potentials, lengths)
    given = [*potentials.values(), lengths, *upstream]
    before, run = [tensor.clone() for tensor in given], functools.partial(everything, case)
    together, again = (run(potentials, lengths, upstream) for _ in range(2))
    assert all(map(torch.equal, together, again)) and all(map(torch.equal, before, given))
    views = {name: strided(tensor) for name, tensor in potentials.items()}
    assert all(map(torch.equal, run(views, lengths, [strided(g) for g in upstream]), together))
    names = [""] * len(upstream) + list(potentials)
    for item in (slice(0, 1), slice(3, 4)):
        alone = {name: t if name in case.shared else t[item] for name, t in potentials.items()}
        for name, value, own in zip(names, together, run(alone, lengths[item], [g[item] for g in upstream])):
            assert name in case.shared or torch.equal(value[item], own)


def strided(tensor):
    return tensor.repeat_interleave(2, 0)[::2].movedim(0, -1).contiguous().movedim(-1, 0)


@every_chain
def test_tables_shared_along_batch_dimensions(case):
    potentials = draw(case)
    potentials = {k: t if k in case.shared else t.reshape((2, 2) + t.shape[1:]) for k, t in potentials.items()}
    pairs = potentials["pairwise"].shape[-2:]
    for table in (torch.randn(pairs), torch.randn(2, 1, 2, *pairs), torch.randn(2, *pairs)):
        given = dict(potentials, pairwise=table.double().to(DEVICE))
        check(case, given, torch.tensor(LENGTHS, device=DEVICE).reshape(2, 2), 1e-10)


@every_kernel
def test_what_is_made_of_them(case):
    potentials, other, found = draw(case), draw(case), []
    for backend in ("cuda", "reference"):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in potentials.items()}
        with use_backend(backend):
            distribution = case.build(leaves, torch.tensor(LENGTHS, device=DEVICE))
            kl = distribution.kl(case.build(other, torch.tensor(LENGTHS, device=DEVICE)))
            values = [distribution.entropy(), kl, distribution.max]
            best = distribution._log_prob(distribution.argmax)
            found.append(values + [best] + list(torch.autograd.grad((values[0] + kl).sum(), list(leaves.values()))))
            assert (distribution._log_prob(distribution.sample((2,)))[:, [0, 1, 3]] > -INF).all()
    for value, exact in zip(*found):
        close(value.cpu(), exact.cpu().double(), 1e-10)


@every_kernel
@pytest.mark.gpu
@pytest.mark.parametrize("n", (33, 60))
def test_nothing_waits_and_a_graph_can_be_captured(case, n):
    potentials, lengths = draw(case, n, torch.float32, 50), torch.randint(0, n + 1, (50,)).to(DEVICE)
    upstream = upstream_for(case, potentials, lengths)
    expected, graph = everything(case, potentials, lengths, upstream), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything(case, potentials, lengths, upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(graph):
        captured = everything(case, potentials, lengths, upstream)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, expected))


# What only some of them have


@pytest.mark.skipif(not triton_launch.interpreted(), reason="a GPU has one order")
def test_any_order_of_combining_and_any_tile_give_the_same(monkeypatch):
    case = next(case for case in CASES if case.name == "binary-chain-with-ends")
    potentials, lengths, found = draw(case, 4), lengths_of(4), []
    upstream = upstream_for(case, potentials, lengths)
    for tile, scan in ((2, scan_by_doubling), (4, scan_by_doubling), (8, scan_by_doubling), (4, one_by_one)):
        monkeypatch.setattr(triton_scan, "TILES", ((tile, 1),))
        monkeypatch.setattr(ScanOps, "generic_scan", scan)
        found.append(everything(case, potentials, lengths, upstream))
    for other in found[1:]:
        for value, expected in zip(other, found[0]):
            close(value, expected, 1e-12)


def test_which_kernels_run(monkeypatch):
    for module in (log_odds, chain_reference, projective_reference):
        monkeypatch.setattr(module, "expectations", None)
    unary, table, start = (torch.randn(shape, device=DEVICE) for shape in ((1, 3, 2), (2, 2), (2,)))
    for chain in (LinearChain(unary[..., 0], table, start=start), LinearChain(unary, table, num_states=2)):
        for quantity in outputs(chain) + [chain.entropy(), chain.kl(chain)]:
            assert quantity.isfinite().all()
    assert ProjectiveTree(torch.randn(1, 3, 2, device=DEVICE)).marginals.shape == (1, 3, 2)


def chain_of(states, items, n=4, dtype=torch.double, **options):
    """A chain with a table for each edge, ends and a forbidden pair; the last item is impossible."""
    shapes = {"unary": (n, states), "pairwise": (n - 1, states, states), "start": (states,), "end": (states,)}
    scores = {name: 3 * torch.randn(items, *shape, dtype=dtype).to(DEVICE) for name, shape in shapes.items()}
    scores["pairwise"][:, :, 0, 1] = scores["unary"][-1, 0] = -INF
    return LinearChain(**scores, num_states=states, **options)


@pytest.mark.skipif(not triton_launch.interpreted(), reason="chains of 40 states have two such blocks")
def test_chains_of_more_states_than_rows_of_a_block(monkeypatch):
    monkeypatch.setattr(triton_states, "ROWS", 2)
    case = next(case for case in CASES if case.name == "chain-of-three-states-with-ends")
    test_kernels_agree_with_the_reference(case, 4, torch.double)


@pytest.mark.gpu
@pytest.mark.parametrize("states", (40, 100, 256))
def test_chains_of_many_states(states):
    chain = chain_of(states, 3, 20, torch.float32, lengths=torch.tensor([20, 7, 20], device=DEVICE))
    found = [*outputs(chain), chain.argmax]
    with use_backend("reference"):
        expected = [*outputs(chain), chain.argmax]
    for value, other in zip(found, expected):
        close(value.cpu(), other.cpu(), 1e-4)


@pytest.mark.parametrize("states", (2, 3, 5))
def test_best_sequences_of_chains(states, monkeypatch):
    monkeypatch.setattr(triton_states, "ROWS", 2)
    chain = chain_of(states, 6, lengths=torch.tensor([4, 3, 1, 0, 4, 4], device=DEVICE))
    best = chain.argmax
    with use_backend("reference"):
        expected = chain.argmax
    assert torch.equal(best, expected)
    assert best[:5].sum(-1).equal(chain.position_mask[:5].to(best)) and not best[5].any()


@pytest.mark.parametrize("number", (1, 5e3))
def test_best_sequences_whose_scores_are_large(number):
    unary, table = number * torch.randn(3, 6, 2, device=DEVICE), number * torch.randn(2, 2, device=DEVICE)
    chain, best = LinearChain(unary[..., 1], table), []
    for backend in ("cuda", "reference"):
        with use_backend(backend):
            best.append(chain.argmax)
    assert torch.equal(*best)


@pytest.mark.parametrize("states", (2, 3))
def test_samples_of_chains_have_the_probabilities_of_sequences(states, monkeypatch):
    monkeypatch.setattr(triton_sequences, "DRAWS", 1024)
    lengths, count = torch.tensor([3, 2, 0, 3], device=DEVICE), 3000
    chain = chain_of(states, 4, 3, torch.float32, lengths=lengths)
    samples = chain.sample((count,))
    integers = chain.as_integers(samples)
    assert integers[:, 2:].eq(-1).all() and integers[:, 1, 2].eq(-1).all()
    for item in (0, 1):
        length = int(lengths[item])
        sequences = torch.cartesian_prod(*[torch.arange(states, device=DEVICE)] * length)
        padded = torch.nn.functional.pad(sequences, (0, 3 - length), value=-1)
        with use_backend("reference"):
            probabilities = chain.log_prob_of_states(padded.unsqueeze(1).expand(-1, 4, -1))[:, item].exp()
        shares = (integers[:, item].unsqueeze(1) == padded).all(-1).float().mean(0)
        assert shares.sum() == 1
        deviation = (probabilities * (1 - probabilities) / count).sqrt()
        assert ((shares - probabilities).abs() <= 4.5 * deviation + 1e-6).all()


def test_a_seed_determines_samples_of_chains():
    chain = chain_of(3, 2)
    drawn = [chain.sample((2,), generator=torch.Generator(DEVICE).manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


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


@pytest.mark.skipif(not triton_launch.interpreted(), reason="sentences of 65 words run so above")
@pytest.mark.parametrize(
    "name, test, options",
    (
        ("multi", test_kernels_agree_with_the_reference, {"n": 5, "dtype": torch.float32}),
        ("multi", test_nan_is_not_hidden, {}),
        ("multi", test_any_shape, {"batch": (0,), "n": 3}),
        ("single", test_forbidden_parts_and_impossible_items, {}),
        ("single", test_padding_reaches_neither_values_nor_gradients, {}),
        ("single", test_neighbours_layout_and_repetition_change_no_bit_and_nothing_of_the_caller, {}),
    ),
)
def test_spanning_trees_whose_weights_do_not_fit_in_registers(name, test, options, monkeypatch):
    monkeypatch.setattr(spanning_cuda, "WARPS", {})
    monkeypatch.setattr(spanning_cuda, "BLOCKS", ((1000, {"ROWS": 2, "COLUMNS": 2}, 1),))
    monkeypatch.setattr(spanning_cuda, "_elimination", None)
    test(next(case for case in CASES if case.name == f"spanning-{name}"), **options)


@pytest.mark.parametrize("scale, fits", ((1.0, [1, 1, 0]), (30.0, [0, 0, 0])))
def test_spanning_trees_of_moderate_scores_need_no_exponents(scale, fits):
    """Each item is computed by one of the two kinds of kernels, here and in the backward pass; a distant arc, which is
    not forbidden, needs exponents."""
    torch.manual_seed(1)
    scores = scale * torch.randn(3, 5, 4, device=DEVICE)
    scores = scores.masked_fill(torch.eye(5, 4, device=DEVICE).roll(1, 0).bool(), -INF)
    scores[1, 2, 3], scores[2, 2, 3] = -INF, -50.0
    lengths = torch.tensor([4, 4, 4], device=DEVICE)
    assert spanning_cuda._elimination.forward(scores, lengths, False)[6].tolist() == fits
    case = next(case for case in CASES if case.name == "spanning-multi")
    check(case, {"arc_scores": scores}, lengths, 4e-6)


@pytest.mark.parametrize("root", ("multi", "single"))
def test_projective_trees_of_moderate_scores_need_no_exponents(root, monkeypatch):
    """Each item is computed by one of the two kinds of kernels, here and in the backward pass; forbidden arcs need
    exponents."""
    torch.manual_seed(1)
    scores, words, found = torch.randn(5, 6, 5, device=DEVICE), torch.arange(5), []
    scores[1, words, words] += 15  # the word before is the likely head
    scores[2] -= 5 * ((torch.arange(6).unsqueeze(1) - torch.arange(1, 6)).abs().to(DEVICE) < 3)  # a distant word is
    scores[3, 2, 3], scores[4] = -INF, 100 * scores[4]
    forward = projective_cuda._expectations.forward
    monkeypatch.setattr(
        projective_cuda._expectations, "forward", lambda *inputs: found.append(forward(*inputs)) or found[-1]
    )
    case = next(case for case in CASES if case.name == f"projective-{root}")
    check(case, {"arc_scores": scores}, torch.tensor([5, 5, 5, 5, 4], device=DEVICE), 4e-6)
    assert found[0][4].tolist() == [1, 1, 1, 0, 0]


def arc_scores_of_all_kinds(n):
    """Moderate, large and forbidden ones, of several lengths; no tree is possible in the last item."""
    torch.manual_seed(2)
    scores = torch.randn(5, n + 1, n, dtype=torch.double)
    scores[1] *= 100
    scores[2] = scores[2].masked_fill(torch.rand(n + 1, n) < 0.3, -INF)
    scores[4, :, 0] = -INF
    return scores, torch.tensor([n, n, n, n - 2, n])


@pytest.mark.parametrize("single_root", (False, True))
def test_best_projective_trees(single_root):
    scores, lengths = arc_scores_of_all_kinds(4)
    words = torch.arange(4)
    heads = projective_cuda.argmax(scores.to(DEVICE), lengths.to(DEVICE), single_root).cpu()
    scores[:, words + 1, words] = -INF
    scores = scores.masked_fill((torch.arange(4) >= lengths[:, None])[:, None], -INF)
    assert torch.equal(heads, projective_reference.argmax(scores, lengths, single_root))


@pytest.mark.parametrize("single_root", (False, True))
def test_samples_of_projective_trees_are_those_of_the_cpu(single_root, monkeypatch):
    """The same uniform numbers choose the same terms."""
    projective_cpu = pytest.importorskip("fairseq_structattn.distributions.projective_tree.cpu", reason="needs numba")
    scores, lengths = arc_scores_of_all_kinds(4)
    numbers = torch.rand(2, 5, 8, dtype=torch.double)
    for module in (projective_cpu, projective_cuda):
        monkeypatch.setattr(module, "uniform", lambda shape, device, *_: numbers.to(device))
    heads = projective_cuda.sample(scores.to(DEVICE), lengths.to(DEVICE), single_root, 2)
    assert torch.equal(heads.cpu(), projective_cpu.sample(scores, lengths, single_root, 2))


class Choices:
    """Stands in for random choices: leads through all sequences of them, and multiplies their probabilities."""

    def __init__(self):
        self.path, self.counts, self.probability = [], [], 1.0

    def __call__(self, weights, share, numbers, beyond):
        weights, step = weights.handle.data, len(self.counts)
        possible = np.flatnonzero(weights)
        if step == len(self.path):
            self.path.append(0)
        choice = possible[self.path[step]] if len(possible) else 0
        self.counts.append(max(len(possible), 1))
        self.probability *= weights[choice] / weights.sum() if len(possible) else 1.0
        return triton_sampling.tl.sum(triton_sampling.tl.where(numbers == int(choice), numbers, 0), 0)

    def next_path(self):
        """Whether there is another one."""
        while self.path and self.path[-1] + 1 == self.counts[len(self.path) - 1]:
            self.path.pop()
        if self.path:
            self.path[-1] += 1
        self.counts, self.probability = [], 1.0
        return bool(self.path)


@pytest.mark.skipif(not triton_launch.interpreted(), reason="the frequencies of arcs are tested below")
@pytest.mark.parametrize("root", ("multi", "single"))
def test_samples_of_spanning_trees_have_their_probabilities(root, monkeypatch):
    """By all choices that a program can make."""
    choices, found = Choices(), {}
    monkeypatch.setattr(triton_sampling, "drawn", choices)
    scores = 2 * torch.randn(1, 4, 3, dtype=torch.double)
    scores[0, 0, 1] = -INF if root == "multi" else 50.0
    tree = next(case for case in CASES if case.name == f"spanning-{root}").build({"arc_scores": scores}, None)
    going_on = True
    while going_on:
        heads = tuple(tree.as_integers(tree.sample())[0].tolist())
        found[heads] = found.get(heads, 0) + choices.probability
        going_on = choices.next_path()
    trees = torch.tensor(list(found))
    with use_backend("reference"):
        probabilities = tree.log_prob_of_heads(trees.unsqueeze(1)).exp().squeeze(1)
    assert abs(probabilities.sum() - 1) < 1e-9
    close(torch.tensor(list(found.values())), probabilities, 1e-9)


def test_a_seed_determines_samples_of_spanning_trees():
    tree = SpanningTree(torch.randn(2, 6, 5, device=DEVICE), torch.tensor([5, 3], device=DEVICE))
    drawn = [tree.sample((2,), generator=torch.Generator(DEVICE).manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0][:, 1].sum((-2, -1)).tolist() == [3, 3]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ("projective-multi", "projective-single", "spanning-multi", "spanning-single"))
@pytest.mark.parametrize("n", (3, 40, 70))
def test_frequencies_of_arcs_in_samples(name, n):
    case, count = next(case for case in CASES if case.name == name), 4000
    tree = case.build(draw(case, n, torch.float32), None)
    deviation = (tree.marginals * (1 - tree.marginals) / count).sqrt()
    assert ((tree.sample((count,)).mean(0) - tree.marginals).abs() <= 5.5 * deviation + 1e-3).all()


@pytest.mark.parametrize("operation", (spanning_cuda._elimination, spanning_cuda._blocked_elimination))
def test_shapes_are_those_of_the_outputs(operation):
    inputs = torch.zeros(2, 3, 2, device=DEVICE), torch.tensor([2, 1], device=DEVICE), False
    outputs, shapes = operation.forward(*inputs), operation.shapes(*inputs)
    assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in shapes]
    assert len(outputs) == operation.outputs


def test_words_that_no_order_but_one_eliminates():
    # A chain from the root through words 3, 2 and 1, and one through 1, 3 and 2.
    scores = torch.full((2, 4, 3), -INF, device=DEVICE)
    scores[0, 0, 2] = scores[0, 3, 1] = scores[0, 2, 0] = 1.5
    scores[1, 0, 0] = scores[1, 1, 2] = scores[1, 3, 1] = 1.5
    case = next(case for case in CASES if case.name == "spanning-single")
    check(case, {"arc_scores": scores}, None, 1e-6)


@pytest.mark.parametrize("kernels_of, kind", ((projective_cuda, ProjectiveTree), (spanning_cuda, SpanningTree)))
def test_kernels_of_trees_look_at_no_padding_whatever_the_layout(kernels_of, kind):
    lengths = torch.tensor([2, 3, 0], device=DEVICE)
    scores = torch.randn(3, 4, 3, device=DEVICE).masked_fill(~kind(torch.zeros(4, 3)).arc_mask.to(DEVICE), -INF)
    scores[:, 3, 1] = -INF
    on_marginals = torch.randn_like(scores).masked_fill(scores == -INF, NAN)
    clean = scores.clone()
    for item, length in enumerate(lengths.tolist()):
        outside = torch.ones(4, 3, dtype=torch.bool, device=DEVICE)
        outside[: length + 1, :length] = False
        clean[item] = clean[item].masked_fill(outside, -INF)
        scores[item] = scores[item].masked_fill(outside, -INF if kind is ProjectiveTree else NAN)
        on_marginals[item] = on_marginals[item].masked_fill(outside, NAN)
    found = []
    for given, upstream in ((scores, on_marginals), (clean, on_marginals.transpose(1, 2).contiguous().transpose(1, 2))):
        leaf = given.requires_grad_()
        log_partition, marginals = kernels_of.expectations(leaf, lengths, False)
        found.append((log_partition, marginals, torch.autograd.grad(marginals, leaf, upstream)[0]))
    assert all(map(torch.equal, *found))
    for value in found[0][1:]:
        assert torch.isfinite(value).all() and value[2].eq(0).all() and value[0].ne(0).any()
