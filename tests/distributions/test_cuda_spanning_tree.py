"""The Triton kernels of spanning trees: on a GPU where there is one, else small sizes in Triton's interpreter."""

import pytest
import torch
from enumeration_spanning import EnumeratedTrees

from fairseq_structattn.distributions import SpanningTree, use_backend
from fairseq_structattn.distributions.kernels import triton_launch

INF, NAN = float("inf"), float("nan")
ROOTS = ("multi", "single")
HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

pytestmark = pytest.mark.skipif(not (HAS_GPU or triton_launch.interpreted()), reason="needs triton")
on_gpu = (pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device"))
LARGE = [pytest.param(n, marks=on_gpu) for n in (31, 64, 65, 128)]


@pytest.fixture(params=ROOTS)
def roots(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that is allocated without values holds NaN, or the like."""

    def poison(allocate):
        def allocate_and_fill(*args, **options):
            tensor = allocate(*args, **options)
            return tensor.fill_(NAN if tensor.is_floating_point() else 7)

        return allocate_and_fill

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))


def everything(scores, lengths, roots, upstream, backend, dtype=None):
    """log Z, marginals and the gradient of ⟨upstream, both⟩, on the CPU; an upstream of ``None`` is left out."""
    device = DEVICE if backend == "cuda" else "cpu"
    scores = scores.detach().to(device, dtype or scores.dtype).requires_grad_()
    with use_backend(backend):
        tree = SpanningTree(scores, None if lengths is None else lengths.to(device), roots)
        results = tree.log_partition, tree.marginals
        used = [(value, g.to(value)) for value, g in zip(results, upstream) if g is not None]
        (gradient,) = torch.autograd.grad([value for value, _ in used], scores, [g for _, g in used])
    return tuple(value.detach().cpu() for value in results + (gradient,))


def random_upstream(scores):
    return torch.randn(scores.shape[:-2]).to(scores), torch.randn(scores.shape).to(scores)


def check(scores, lengths, roots, upstream, tolerance):
    actual = everything(scores, lengths, roots, upstream, "cuda")
    expected = everything(scores, lengths, roots, upstream, "reference", torch.double)
    for value, target in zip(actual, expected):
        assert value.dtype == scores.dtype
        torch.testing.assert_close(value.double(), target, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [1, 2, 3, 17] + LARGE)
def test_agrees_with_the_reference(poisoned, roots, n):
    lengths = torch.tensor([n, n // 2, 0] if n > 3 else [n, 0, n - 1, n])
    scores = 30 * torch.randn(len(lengths), n + 1, n)
    check(scores, lengths, roots, random_upstream(scores), 3e-6 if n <= 64 else 1e-4)


@pytest.mark.parametrize("n", [4] + LARGE[:2])
def test_agrees_with_the_reference_in_float64(poisoned, roots, n):
    scores = 30 * torch.randn(2, n + 1, n, dtype=torch.double)
    check(scores, None, roots, random_upstream(scores), 1e-11)


@pytest.mark.parametrize("scale", (1000.0, 20000.0))
@pytest.mark.parametrize("n", [5] + LARGE[:2])
def test_scores_of_any_size(roots, scale, n):
    scores = scale * torch.randn(2, n + 1, n)
    check(scores, None, roots, random_upstream(scores), 1e-5)


@pytest.mark.parametrize("scale", (1.0, 1000.0))
def test_forbidden_arcs_and_impossible_sentences(poisoned, roots, scale):
    scores = scale * torch.randn(7, 5, 4)
    scores[torch.rand(scores.shape) < 0.4] = -INF
    scores[0, 0] = scores[1, :, 0] = scores[2, :, 3] = -INF
    on_log_partition, on_marginals = random_upstream(scores)
    on_marginals[scores == -INF] = NAN
    possible = everything(scores, None, roots, (on_log_partition, None), "reference")[0] > -INF
    assert 0 < possible.sum() < 7
    on_log_partition[~possible] = INF
    log_partition, marginals, gradient = everything(scores, None, roots, (on_log_partition, on_marginals), "cuda")
    for i in range(7):
        if not possible[i]:
            assert log_partition[i] == -INF and marginals[i].eq(0).all() and gradient[i].eq(0).all()
            continue
        exact = EnumeratedTrees(scores[i], roots == "single")
        wanted = exact.gradient(on_log_partition[i], on_marginals[i].masked_fill(scores[i] == -INF, 0))
        for actual, target in ((log_partition, exact.log_partition), (marginals, exact.marginals), (gradient, wanted)):
            torch.testing.assert_close(actual[i].double(), target, rtol=3e-6, atol=3e-6)


def test_words_that_no_order_but_one_eliminates():
    # A chain from the root through words 3, 2 and 1, and one through 1, 3 and 2.
    scores = torch.full((2, 4, 3), -INF)
    scores[0, 0, 2] = scores[0, 3, 1] = scores[0, 2, 0] = 1.5
    scores[1, 0, 0] = scores[1, 1, 2] = scores[1, 3, 1] = 1.5
    check(scores, None, "single", random_upstream(scores), 1e-6)


@pytest.mark.parametrize("stand_in", (-1e9, torch.finfo(torch.float32).min))
def test_large_negative_stand_in_for_minus_infinity(roots, stand_in):
    scores, mask = torch.randn(4, 4, 3), torch.rand(4, 4, 3) < 0.3
    upstream = random_upstream(scores)
    expected = everything(scores.masked_fill(mask, -INF), None, roots, upstream, "reference", torch.double)
    actual = everything(scores.masked_fill(mask, stand_in), None, roots, upstream, "cuda")
    possible = expected[0] > -INF
    assert 0 < possible.sum()
    for value, target in zip(actual, expected):
        torch.testing.assert_close(value[possible].double(), target[possible], rtol=3e-6, atol=3e-6)
        assert not value.isnan().any()


def test_padding_reaches_nothing(poisoned, roots):
    lengths = torch.tensor([2, 4, 0])
    scores = torch.randn(3, 5, 4)
    upstream = random_upstream(scores)
    clean = everything(scores, lengths, roots, upstream, "cuda")
    words = torch.arange(4) < lengths[:, None]
    heads = torch.cat((torch.ones(3, 1, dtype=torch.bool), words), 1)
    padding = ~(heads.unsqueeze(-1) & words.unsqueeze(-2))
    dirty = upstream[0], upstream[1].masked_fill(padding, NAN)
    for value, target in zip(everything(scores.masked_fill(padding, NAN), lengths, roots, dirty, "cuda"), clean):
        assert torch.equal(value, target)


def test_kernels_look_at_no_padding_and_no_upstream_where_there_is_no_arc(poisoned, roots):
    from fairseq_structattn.distributions.spanning_tree import cuda

    lengths = torch.tensor([2, 3, 0], device=DEVICE)
    scores = torch.randn(3, 4, 3, device=DEVICE)
    scores[:, 1, 0] = scores[:, 2, 1] = scores[:, 3, 2] = scores[:, 3, 1] = -INF
    on_marginals = torch.randn_like(scores).masked_fill(scores == -INF, NAN)
    for item, length in enumerate(lengths.tolist()):
        scores[item, length + 1 :] = scores[item, :, length:] = NAN
        on_marginals[item, length + 1 :] = on_marginals[item, :, length:] = NAN
    scores.requires_grad_()
    log_partition, marginals = cuda.expectations(scores, lengths, roots == "single")
    (gradient,) = torch.autograd.grad(marginals, scores, on_marginals)
    assert torch.isfinite(log_partition[:2]).all()
    for value in (marginals, gradient):
        assert torch.isfinite(value).all() and value[2].eq(0).all()
        assert value[0, :, 2].eq(0).all() and value[0, 3].eq(0).all() and value[0].ne(0).any()


def test_a_sentence_does_not_depend_on_its_neighbours_and_runs_are_identical(roots):
    scores = torch.randn(2, 5, 4)
    upstream = random_upstream(scores)
    together = everything(scores, None, roots, upstream, "cuda")
    alone = everything(scores[1:2], None, roots, [g[1:2] for g in upstream], "cuda")
    again = everything(scores, None, roots, upstream, "cuda")
    assert all(torch.equal(value[1:2], target) for value, target in zip(together, alone))
    assert all(map(torch.equal, together, again))


@pytest.mark.parametrize("missing", (0, 1))
def test_one_upstream_gradient(poisoned, roots, missing):
    scores = torch.randn(2, 5, 4)
    upstream = list(random_upstream(scores))
    upstream[missing] = None
    check(scores, torch.tensor([4, 2]), roots, upstream, 3e-6)


def test_number_of_trees_and_of_heads(roots):
    for n in (1, 2, 5):
        log_partition, marginals, _ = everything(torch.zeros(1, n + 1, n), None, roots, (torch.ones(1), None), "cuda")
        count = (n + 1) ** (n - 1) if roots == "multi" else n ** (n - 1)
        torch.testing.assert_close(log_partition.exp(), torch.tensor([float(count)]), rtol=3e-6, atol=0)
        torch.testing.assert_close(marginals.sum(-2), torch.ones(1, n))
        if roots == "single":
            torch.testing.assert_close(marginals[:, 0].sum(-1), torch.ones(1))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision_in_and_out(roots, dtype):
    scores = (5 * torch.randn(2, 6, 5)).to(dtype)
    upstream = random_upstream(scores)
    exact = everything(scores.float(), None, roots, [g.float() for g in upstream], "cuda")
    for value, target in zip(everything(scores, None, roots, upstream, "cuda"), exact):
        assert torch.equal(value, target.to(dtype)) or (value - target.to(dtype)).abs().max() < 1e-2


@pytest.mark.parametrize("shape", ((0, 4, 3), (2, 1), (2, 2, 3, 2)))
def test_any_batch_shape(roots, shape):
    scores = torch.randn(shape)
    check(scores, None, roots, random_upstream(scores), 3e-6)


def test_sentences_without_words(roots):
    with use_backend("cuda"):
        tree = SpanningTree(torch.randn(3, 1, 0, device=DEVICE), roots=roots)
        assert tree.log_partition.tolist() == [0.0 if roots == "multi" else -INF] * 3
        assert tree.marginals.shape == (3, 1, 0)


def test_other_memory_layout_and_the_tensors_of_the_caller(roots):
    scores = torch.randn(4, 2, 5).permute(1, 2, 0)
    upstream = torch.randn(()).expand(2), torch.randn(4, 5, 2).permute(2, 1, 0)
    lengths, before = torch.tensor(3).expand(2), scores.clone()
    check(scores, lengths, roots, upstream, 3e-6)
    assert torch.equal(scores, before)


def test_a_score_that_is_no_number_is_not_hidden(roots):
    scores = torch.randn(2, 5, 4)
    scores[0, 0, 0] = NAN
    for value in everything(scores, None, roots, random_upstream(scores), "cuda"):
        assert value[0].isnan().any() and torch.isfinite(value[1]).all()


def test_argmax_and_samples(roots):
    scores = torch.randn(2, 6, 5, device=DEVICE)
    with use_backend("cuda"):
        tree = SpanningTree(scores, torch.tensor([5, 3], device=DEVICE), roots)
        for parts in (tree.argmax, tree.sample((4,))):
            assert torch.isfinite(tree.log_prob(parts)).all()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_is_captured_in_a_graph(roots):
    scores = torch.randn(4, 21, 20, device=DEVICE, requires_grad=True)
    lengths = torch.tensor([20, 3, 0, 17], device=DEVICE)
    upstream = torch.randn_like(scores)

    def step():
        marginals = SpanningTree(scores, lengths, roots).marginals
        return marginals, torch.autograd.grad(marginals, scores, upstream)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        scores.normal_()
    graph.replay()
    for value, target in zip(captured, step()):
        assert torch.equal(value, target)
