"""What projective and non-projective dependency trees share, seen through spanning trees."""

import importlib

import pytest
import torch
from enumeration_spanning import all_trees, arcs

from fairseq_structattn.distributions import SpanningTree, structured

INF = float("inf")
ROOTS = ("multi", "single")


def parts(*heads, n=None):
    """Trees given as tuples of heads, as parts ``[trees, n+1, n]``."""
    return torch.stack([arcs(tree, n or len(tree)) for tree in heads])


def in_support(structure, lengths=None, roots="multi"):
    n = structure.shape[-1]
    tree = SpanningTree(torch.zeros(n + 1, n), lengths, roots, validate_args=False)
    return torch.isfinite(tree.log_prob(structure)).tolist()


@pytest.mark.parametrize("roots", ROOTS)
@pytest.mark.parametrize("n", (1, 2, 3, 4))
def test_support_is_the_set_of_trees(roots, n):
    choices = torch.cartesian_prod(*[torch.arange(n + 1)] * n).reshape(-1, n).tolist()
    trees = set(all_trees(n, roots == "single"))
    expected = [tuple(heads) in trees for heads in choices]
    assert in_support(parts(*choices), roots=roots) == expected


def test_long_chains_and_long_cycles():
    n = 33
    chain = list(range(n))
    cycle = [n] + chain[1:]
    lasso = [0] + [5] + chain[2:]
    assert in_support(parts(chain, chain[::-1][:-1] + [0], cycle, lasso)) == [True, False, False, False]
    assert in_support(parts([word + 2 for word in range(n - 1)] + [0])) == [True]


@pytest.mark.parametrize("roots", ROOTS)
def test_what_is_not_one_head_per_word(roots):
    tree = arcs((2, 0, 2), 3)
    two_heads, none, halves, doubled = (tree.clone() for _ in range(4))
    two_heads[1, 2] = 1
    none[2, 0] = 0
    halves[2, 2] = halves[1, 2] = 0.5
    doubled[2, 0] = 2
    structures = torch.stack((tree, two_heads, none, halves, doubled))
    assert in_support(structures, roots=roots) == [True, False, False, False, False]


def test_arc_from_a_word_to_itself_is_not_looked_at():
    tree = arcs((2, 0), 2)
    tree[1, 0] = 1
    only_itself = arcs((1, 0), 2)
    assert in_support(torch.stack((tree, only_itself))) == [True, False]


@pytest.mark.parametrize("garbage", (1.0, float("nan"), INF))
def test_padding_of_a_structure_is_not_looked_at(garbage):
    structure = torch.full((2, 4, 3), garbage).double()
    structure[0, :3, :2] = arcs((2, 0), 2)
    structure[1, :3, :2] = arcs((2, 1), 2)
    assert in_support(structure, torch.tensor(2)) == [True, False]
    scores = torch.randn(4, 3).double()
    tree, alone = SpanningTree(scores, torch.tensor(2)), SpanningTree(scores[:3, :2])
    torch.testing.assert_close(tree.log_prob(structure[0]), alone.log_prob(structure[0, :3, :2]))


def test_a_head_in_padding_is_no_head():
    assert in_support(arcs((3, 0, 0), 3)[None], torch.tensor(2)) == [False]


def test_a_single_root_is_one_root():
    structures = parts((0, 0), (0, 1), (2, 0))
    assert in_support(structures, roots="multi") == [True, True, True]
    assert in_support(structures, roots="single") == [False, True, True]


def test_arc_mask():
    mask = SpanningTree(torch.zeros(2, 4, 3), torch.tensor([3, 1])).arc_mask
    assert mask.dtype == torch.bool
    assert mask[0].int().tolist() == [[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert mask[1].int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "error, match, arguments",
    (
        (TypeError, "arc_scores is a list; give a floating point tensor", ([[0.0], [0.0]],)),
        (TypeError, "arc_scores has dtype torch.int64.*float", (torch.zeros(3, 2).long(),)),
        (ValueError, r"arc_scores has shape \(3,\).*\[\*batch, n\+1, n\]", (torch.zeros(3),)),
        (ValueError, r"arc_scores has shape \(2, 3, 3\)", (torch.zeros(2, 3, 3),)),
        (ValueError, r"arc_scores has shape \(2, 3\)", (torch.zeros(2, 3),)),
        (ValueError, "roots is 'many'; choose one of: single, multi", (torch.zeros(3, 2), None, "many")),
        (TypeError, "lengths is a list", (torch.zeros(1, 3, 2), [2])),
        (TypeError, "lengths has dtype torch.float32", (torch.zeros(1, 3, 2), torch.ones(1))),
        (ValueError, "from 1 to 3; they must lie between 0 and 2", (torch.zeros(2, 3, 2), torch.tensor([1, 3]))),
        (ValueError, r"lengths has shape \(3,\).*batch shape \(2,\)", (torch.zeros(2, 3, 2), torch.ones(3).long())),
    ),
)
def test_errors_of_arguments(error, match, arguments):
    with pytest.raises(error, match=match):
        SpanningTree(*arguments)


@pytest.mark.parametrize("roots", ROOTS)
@pytest.mark.parametrize("kind", ("projective_tree", "spanning_tree"))
def test_kernels_of_gpus_stay_within_their_tensors_whatever_the_lengths(kind, roots):
    pytest.importorskip("triton")
    algorithms = importlib.import_module(f"fairseq_structattn.distributions.{kind}.cuda")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scores = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    found, expected = (
        algorithms.expectations(scores, torch.tensor(lengths, device=device), roots == "single")
        for lengths in ((5, -2, 3), (3, 0, 3))
    )
    for actual, right in zip(found, expected):
        assert torch.equal(actual, right)
    gradients = (torch.autograd.grad(marginals.square().sum(), scores)[0] for _, marginals in (found, expected))
    assert torch.equal(*gradients)


def test_lengths_nobody_could_look_at_count_as_the_nearest_possible_ones(monkeypatch):
    monkeypatch.setattr(structured, "has_values", lambda *tensors: False)
    assert SpanningTree(torch.zeros(3, 4, 3), torch.tensor([7, -1, 2])).lengths.tolist() == [3, 0, 2]


@pytest.mark.gpu
def test_lengths_on_a_gpu_are_checked_when_asked_for(monkeypatch):
    scores, lengths = torch.zeros(2, 4, 3, device="cuda"), torch.tensor([4, 1], device="cuda")
    assert SpanningTree(scores, lengths).lengths.tolist() == [3, 1]
    monkeypatch.setenv("STRUCTATTN_CHECK", "1")
    with pytest.raises(ValueError, match="lengths has values from 1 to 4; they must lie between 0 and 3"):
        SpanningTree(scores, lengths)
