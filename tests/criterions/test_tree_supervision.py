"""Supervision by given heads: worked out by hand, where it is zero, what is refused, and recovering given trees."""

import math
from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, batch, build, sentences
from waiting import as_on_an_accelerator, waits

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy
from fairseq_structattn.criterions.tree_supervision import tree_supervision_loss, why_impossible
from fairseq_structattn.distributions import IndependentHeads, ProjectiveTree, SpanningTree

PRESETS = ["tree", "flat", "tree_nonprojective"]
# Arcs of two words, heads by words: 0→1→2, 0→2→1 and both on the root weigh 2·5, 3·7 and 2·3.
WEIGHTS = torch.tensor([[[2.0, 3.0], [1.0, 5.0], [7.0, 1.0]]])
SAMPLE = batch(sentences([6, 4, 5]), sentences([3, 5, 4], seed=1))
HEADS = torch.tensor([[2, 3, 0, 3, 4], [0, 1, 2, -1, -1], [4, 4, 4, 0, -1]])


def criterion(weight=1.0, **options):
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace())
    return StructuredLabelSmoothedCrossEntropy(task, False, 0.0, tree_supervision=weight, **options)


def with_heads(heads):
    return {**SAMPLE, "source_heads": heads, "source_heads_path": "bin/train.heads.src"}


@pytest.mark.parametrize(
    "kind, heads, expected, given",
    [
        (ProjectiveTree, [0, 1], 10 / 37, 2),
        (SpanningTree, [2, 0], 21 / 37, 2),
        (ProjectiveTree, [0, -1], 16 / 37, 1),
        (SpanningTree, [-1, 1], 10 / 37, 1),
        (IndependentHeads, [0, 1], 2 / 10 * 5 / 9, 2),
        (IndependentHeads, [-1, 1], 5 / 9, 1),
    ],
)
def test_by_hand(kind, heads, expected, given):
    cost, words = tree_supervision_loss(kind(WEIGHTS.log()), torch.tensor([heads]))
    assert cost.item() == pytest.approx(-math.log(expected)) and words.item() == given


def test_zero_where_the_tree_is_certain_or_nothing_is_known():
    certain = torch.tensor([[[0.0, -math.inf], [0.0, 0.0], [-math.inf, 0.0]]])
    assert tree_supervision_loss(ProjectiveTree(certain), torch.tensor([[0, 1]]))[0].item() == 0
    assert tree_supervision_loss(ProjectiveTree(WEIGHTS.log()), torch.tensor([[-1, -1]]))[0].item() == pytest.approx(0)


def test_heads_that_are_padded_less_or_more_than_the_distribution():
    trees = ProjectiveTree(torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 1]))
    heads = torch.tensor([[0, 1], [0, -1]])
    wide = torch.nn.functional.pad(heads, (0, 5), value=-1)
    for result, expected in zip(tree_supervision_loss(trees, wide), tree_supervision_loss(trees, heads)):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "kind, roots, heads, reason",
    [
        (ProjectiveTree, "multi", [0, 4, 1, 1], "its arcs 1 → 3 and 4 → 2 cross.*--source-attention spanning-tree"),
        (ProjectiveTree, "multi", [2, 1, 0, 0], "go round in a circle"),
        (SpanningTree, "multi", [2, 3, 1, -1], "go round in a circle"),
        (SpanningTree, "single", [0, 0, 1, 1], "words 1 and 2 are attached to the root: choose --tree-roots multi"),
    ],
)
def test_impossible_trees_are_named_with_their_line(kind, roots, heads, reason):
    trees, heads = kind(torch.zeros(1, 5, 4), roots=roots), torch.tensor([heads])
    assert tree_supervision_loss(trees, heads)[0].item() == math.inf
    with pytest.raises(ValueError, match=reason):
        raise ValueError(why_impossible(trees, heads[0]))


@pytest.mark.parametrize("arch", ["structattn_rnn_tree", "transformer, trees"])
def test_the_line_is_that_of_the_sentence(arch):
    model = build(arch)
    crossing = HEADS.clone()
    crossing[2, :4] = torch.tensor([0, 4, 1, 1])
    message = "--tree-supervision: bin/train.heads.src, line 83: its arcs"
    sample = {**with_heads(crossing), "id": torch.tensor([7, 5, 82])}
    loss, _, _ = criterion()(model, sample)
    with pytest.raises(ValueError, match=message):
        loss.backward()
    with pytest.raises(ValueError, match=message), torch.no_grad():
        criterion()(model, sample)


@pytest.mark.parametrize("arch", [*(f"structattn_rnn_{name}" for name in PRESETS), "transformer, trees"])
def test_heads_are_recovered(arch):
    model = build(arch, arc_bound="none").train()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    logs = []
    for _ in range(40):
        loss, sample_size, log = criterion()(model, with_heads(HEADS))
        logs.append(log["tree_supervision"].item() / log["tree_supervision_words"].item())
        optimizer.zero_grad()
        (loss / sample_size).backward()
        optimizer.step()
    tree = model.eval().encoder.source_attention(SAMPLE["net_input"]["src_tokens"]).distribution
    found = tree.argmax.argmax(-2)
    known = HEADS != -1
    assert torch.equal(found[known], HEADS[known])
    assert logs[-1] < 0.2 * logs[0]


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("arch", [*(f"structattn_rnn_{name}" for name in PRESETS), "transformer, trees"])
def test_the_loss_is_there_before_a_value_is_read(arch, complete):
    heads = HEADS.clone()
    heads[0, 1] = HEADS[0, 1] if complete else -1
    sample = {**with_heads(heads), "source_heads_complete": complete}
    with as_on_an_accelerator():
        model, losses = build(arch), []
        output = model(**sample["net_input"], return_posterior=True)
        model.forward = lambda **unused: output
        assert not waits(lambda: losses.append(criterion()(model, sample)[0]))
        assert waits(losses[0].backward)
        del sample["source_heads_complete"]
        torch.testing.assert_close(losses[0], criterion()(model, sample)[0])
        assert waits(lambda: criterion()(model, sample))


def test_an_unknown_head_is_inferred_from_the_others():
    trees = ProjectiveTree(torch.zeros(1, 4, 3, requires_grad=True))
    cost, _ = tree_supervision_loss(trees, torch.tensor([[0, 1, -1]]))
    # Of 12 projective trees of three words those with 0→1→2 leave three heads to the last word.
    assert cost.item() == pytest.approx(math.log(4))


def test_binary_trees_have_no_heads():
    model = build("structattn_rnn", source_attention="binary-tree").train()
    with pytest.raises(ValueError, match="this model's trees are those of a BinaryTree, without heads"):
        criterion()(model, with_heads(HEADS))
