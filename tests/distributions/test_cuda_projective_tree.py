"""Triton kernels of projective trees: on the GPU, or in Triton's interpreter where there is none."""

import pytest
import torch

from fairseq_structattn.distributions import ProjectiveTree, use_backend
from fairseq_structattn.distributions.kernels import triton_launch
from fairseq_structattn.distributions.projective_tree import reference

INF, NAN = float("inf"), float("nan")
ROOTS = ("multi", "single")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

pytestmark = [
    pytest.mark.skipif(
        not triton_launch.available() or (DEVICE == "cpu" and not triton_launch.interpreted()), reason="needs Triton"
    ),
    # numpy, in the interpreter, has something to say about −∞.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(params=ROOTS)
def roots(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def backend():
    with use_backend("cuda"):
        yield


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """What has not been written to is NaN."""
    for name in ("empty", "empty_like"):
        allocate = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, _make=allocate, **options: _make(*args, **options).fill_(NAN))


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles that even short sentences need several of."""
    from fairseq_structattn.distributions.projective_tree import cuda

    monkeypatch.setattr(cuda, "_TILES", ((1000, {"SPANS": 4, "SPLITS": 2}, 1),))


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected.to(actual), rtol=tolerance, atol=tolerance)


def random_scores(batch, n, dtype=torch.double):
    return torch.randn(batch, n + 1, n, dtype=torch.double).to(DEVICE, dtype)


def upstream_for(scores):
    return torch.randn(scores.shape[:-2]).to(scores), torch.randn(scores.shape).to(scores)


def everything(scores, upstream, lengths=None, roots="multi"):
    """log Z, marginals and the gradient of both."""
    scores = scores.detach().requires_grad_()
    tree = ProjectiveTree(scores, lengths, roots)
    outputs = tree.log_partition, tree.marginals
    return tuple(output.detach() for output in outputs) + torch.autograd.grad(outputs, scores, upstream)


def expected(scores, upstream, lengths=None, roots="multi"):
    with use_backend("reference"):
        return everything(scores.double(), tuple(gradient.double() for gradient in upstream), lengths, roots)


# Against the reference

# The interpreter takes a fifth of a second for each width of each sentence.
SIZES = [1, 2, 3] + [pytest.param(n, marks=pytest.mark.gpu) for n in (17, 31, 32, 33, 64, 65, 128)]


@pytest.mark.parametrize(
    "dtype, tolerance", ((torch.float32, 1e-5), (torch.float64, 1e-10)), ids=("float32", "float64")
)
@pytest.mark.parametrize("n", SIZES)
def test_kernels_equal_the_reference(n, roots, dtype, tolerance):
    """Sentences with scores of deviation 1 and 30, one with forbidden arcs, and one that is shorter."""
    scores = random_scores(4, n, dtype)
    scores[1] *= 30
    scores[2][torch.rand(n + 1, n, device=DEVICE) < 0.3] = -INF
    scores[2].diagonal().zero_()
    lengths, upstream = torch.tensor([n, n, n, n // 2]), upstream_for(scores)
    log_partition, marginals, gradient = everything(scores, upstream, lengths, roots)
    exact_log_partition, exact_marginals, exact_gradient = expected(scores, upstream, lengths, roots)
    torch.testing.assert_close(log_partition, exact_log_partition.to(dtype), rtol=tolerance / 10, atol=tolerance)
    close(marginals, exact_marginals, tolerance)
    close(gradient, exact_gradient, tolerance)
    close(marginals[:2].sum(-2), torch.ones(2, n), tolerance)


def test_sentences_of_several_tiles(small_tiles, roots):
    scores, lengths = random_scores(1, 6), torch.tensor([6])
    upstream = upstream_for(scores)
    for actual, exact in zip(everything(scores, upstream, lengths, roots), expected(scores, upstream, lengths, roots)):
        close(actual, exact)


@pytest.mark.parametrize("counted, counts", (("multi", (1, 1, 3, 12)), ("single", (0, 1, 2, 7))))
def test_counts_of_trees(counted, counts):
    n = len(counts) - 1
    tree = ProjectiveTree(torch.zeros(n + 1, n + 1, n, device=DEVICE), torch.arange(n + 1), counted)
    close(tree.log_partition.exp(), torch.tensor(counts), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", (0.0, 1.0, 30.0, 1000.0))
def test_long_sentences(roots, scale):
    scores = scale * random_scores(3, 200, torch.float32)
    lengths, upstream = torch.tensor([200, 130, 70]), upstream_for(scores)
    actual, exact = everything(scores, upstream, lengths, roots), expected(scores, upstream, lengths, roots)
    torch.testing.assert_close(actual[0], exact[0].float(), rtol=1e-6, atol=1e-5)
    close(actual[1], exact[1], 3e-5)
    close(actual[2], exact[2], 1e-4)


# Values that are none


def test_nothing_is_read_from_padding_and_self_loops(roots):
    scores, lengths = random_scores(2, 3), torch.tensor([3, 1])
    upstream = upstream_for(scores)
    exact = expected(scores, upstream, lengths, roots)
    hidden = ~ProjectiveTree(scores, lengths).arc_mask
    poisoned = scores.masked_fill(hidden, NAN)
    upstream = upstream[0], upstream[1].masked_fill(hidden, NAN)
    for value, correct in zip(everything(poisoned, upstream, lengths, roots), exact):
        close(value, correct)


def test_nothing_reaches_a_forbidden_arc_whatever_the_layout():
    from fairseq_structattn.distributions.projective_tree import cuda

    scores = random_scores(1, 2)
    scores[0, 1, 1] = scores[0, 1, 0] = scores[0, 2, 1] = -INF
    scores.requires_grad_()
    marginals, upstream = (
        cuda.expectations(scores, torch.tensor([2], device=DEVICE), False)[1],
        torch.randn_like(scores),
    )
    (exact,) = torch.autograd.grad(marginals, scores, upstream.masked_fill(scores == -INF, 0), retain_graph=True)
    poisoned = upstream.masked_fill(scores == -INF, NAN)
    (actual,) = torch.autograd.grad(marginals, scores, poisoned.transpose(1, 2).contiguous().transpose(1, 2))
    assert torch.equal(actual, exact) and exact.any()


def test_impossible_sentences_leave_the_others_alone(roots):
    scores, lengths = random_scores(4, 3), torch.tensor([3, 3, 0, 3])
    scores[0, :, 1] = -INF
    scores[1, 1, 0] = scores[1, 0, 2] = -INF
    upstream = upstream_for(scores)
    log_partition, marginals, gradient = everything(scores, upstream, lengths, roots)
    for actual, exact in zip((log_partition, marginals, gradient), expected(scores, upstream, lengths, roots)):
        close(actual, exact)
    assert log_partition[0] == -INF and marginals[0].eq(0).all() and gradient[0].eq(0).all()


@pytest.mark.parametrize("masked", (-1e9, -1e30, torch.finfo(torch.float32).min))
def test_large_negative_scores_serve_as_a_mask(masked):
    scores = random_scores(1, 4, torch.float32)
    mask = torch.zeros(1, 5, 4, dtype=torch.bool, device=DEVICE)
    mask[:, 3, :2] = mask[:, 0, 3] = mask[:, 4, 2:] = True
    upstream = upstream_for(scores)
    actual = everything(scores.masked_fill(mask, masked), upstream)
    for value, exact in zip(actual, expected(scores.masked_fill(mask, -INF), upstream)):
        close(value, exact, 1e-6)


@pytest.mark.parametrize("bad", (NAN, INF))
def test_what_is_not_a_number_spoils_its_own_sentence_only(bad):
    scores = random_scores(2, 3)
    clean = ProjectiveTree(scores).marginals
    scores[1, 0, 2] = bad
    marginals = ProjectiveTree(scores).marginals
    assert torch.isnan(marginals[1]).any() and torch.equal(marginals[0], clean[0])


# Interface


def test_each_output_passes_a_gradient_alone():
    scores = random_scores(1, 3).requires_grad_()
    on_log_partition, on_marginals = upstream_for(scores.detach())
    exact = expected(scores, (on_log_partition, on_marginals))[2]
    tree = ProjectiveTree(scores)
    (first,) = torch.autograd.grad(tree.log_partition, scores, on_log_partition, retain_graph=True)
    (second,) = torch.autograd.grad(tree.marginals, scores, on_marginals, retain_graph=True)
    (again,) = torch.autograd.grad(tree.marginals, scores, on_marginals)
    close(first + second, exact)
    assert torch.equal(second, again)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision_is_computed_in_single_precision(dtype):
    scores = random_scores(1, 2, dtype)
    upstream = upstream_for(scores)
    for actual, wide in zip(
        everything(scores, upstream), everything(scores.float(), tuple(g.float() for g in upstream))
    ):
        assert actual.dtype == dtype and torch.equal(actual, wide.to(dtype))


def test_neighbours_layout_and_repetition_change_no_bit(roots):
    scores, lengths = random_scores(2, 3, torch.float32), torch.tensor([2, 3])
    upstream = upstream_for(scores)
    together = everything(scores, upstream, lengths, roots)
    order = [1, 0]
    by_word = [tensor[order].transpose(1, 2).contiguous().transpose(1, 2) for tensor in (scores, upstream[1])]
    shuffled = everything(by_word[0], (upstream[0][order], by_word[1]), lengths[order], roots)
    alone = everything(scores[:1, :3, :2], (upstream[0][:1], upstream[1][:1, :3, :2]), lengths[:1], roots)
    for both, swapped, one in zip(together, shuffled, alone):
        assert torch.equal(both[order], swapped)
        assert torch.equal(both[:1, :3, :2] if one.dim() == 3 else both[:1], one)


@pytest.mark.parametrize("batch, n", ((0, 3), (2, 0)))
def test_nothing_to_do(roots, batch, n):
    scores = torch.zeros(batch, n + 1, n, device=DEVICE)
    log_partition, marginals, gradient = everything(scores, upstream_for(scores), roots=roots)
    assert log_partition.tolist() == [0.0 if roots == "multi" else -INF] * batch
    assert marginals.shape == gradient.shape == scores.shape


def test_kernels_run_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(reference, "expectations", None)
    scores = random_scores(1, 2)
    assert ProjectiveTree(scores).marginals.shape == scores.shape


def test_argmax_and_samples():
    tree = ProjectiveTree(random_scores(2, 3), torch.tensor([3, 2]))
    assert (tree.log_prob(tree.argmax) > -INF).all() and (tree.log_prob(tree.sample((5,))) > -INF).all()


# On the device


@pytest.mark.gpu
def test_nothing_waits_for_the_device_and_graphs_can_be_captured(roots):
    scores, lengths = random_scores(5, 40, torch.float32), torch.tensor([40, 7, 0, 40, 22], device=DEVICE)
    upstream = upstream_for(scores)
    results = everything(scores, upstream, lengths, roots)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything(scores, upstream, lengths, roots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    other, graph = scores.flip(0), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(other, upstream, lengths, roots)
    other.copy_(scores)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, results))
