"""The criterion of the parser: −log p of trees for each word, and how many heads are right."""

from argparse import Namespace

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.logging import metrics
from waiting import as_on_an_accelerator, waits

import fairseq_structattn  # noqa: F401  (registers the criterion)
from fairseq_structattn.criterions.parsing import right_heads
from fairseq_structattn.distributions import SpanningTree

LENGTHS = torch.tensor([3, 2])
HEADS = torch.tensor([[2, 0, 2], [0, 1, -1]])


class Model(torch.nn.Module):
    """Answers what it is given."""

    def __init__(self, distribution):
        super().__init__()
        self.distribution = distribution

    def forward(self, **net_input):
        return self.distribution


def distribution():
    torch.manual_seed(0)
    return SpanningTree(torch.randn(2, 4, 3), LENGTHS, "single")


def sample(heads=HEADS):
    return {
        "id": torch.tensor([3, 0]),
        "net_input": {},
        "ntokens": 5,
        "source_heads": heads,
        "source_heads_path": "heads",
        "source_heads_complete": bool(heads[0].ne(-1).all() & heads[1, :2].ne(-1).all()),
    }


def criterion():
    return CRITERION_REGISTRY["structattn_parsing"](Namespace(datasets={}, target_dictionary=None))


def test_loss_is_that_of_the_trees():
    trees = distribution()
    loss, words, log = criterion()(Model(trees).train(), sample())
    torch.testing.assert_close(loss, -trees.log_prob_of_heads(HEADS).sum())
    assert words == 5 and "n_correct" not in log
    _, _, log = criterion()(Model(trees).eval(), sample())
    with metrics.aggregate(new_root=True) as logged:
        criterion().reduce_metrics([log, log])
    values = logged.get_smoothed_values()
    assert values["loss"] == round(loss.item() / 5, 4)
    assert values["uas"] == 100 * right_heads(trees, HEADS).item() / 5


@pytest.mark.parametrize("heads", [HEADS, torch.tensor([[2, 0, -1], [0, -1, -1]])])
def test_nothing_is_waited_for_before_the_backward_pass(heads):
    with as_on_an_accelerator():
        trees = SpanningTree(torch.randn(2, 4, 3, requires_grad=True), LENGTHS)
        made, model, batch = criterion(), Model(trees).train(), sample(heads)
        assert not waits(lambda: made(model, batch))
        del batch["source_heads_complete"]
        assert waits(lambda: made(model, batch))


def test_right_heads():
    scores = torch.zeros(2, 4, 3)
    for item, heads in enumerate(((2, 0, 2), (0, 1))):
        for word, head in enumerate(heads):
            scores[item, head, word] = 9.0
    trees = SpanningTree(scores, LENGTHS, "single")
    assert right_heads(trees, HEADS) == 5
    assert right_heads(trees, torch.tensor([[3, 0, 2], [2, 0, -1]])) == 2
    assert right_heads(trees, torch.tensor([[-1, 0], [-1, -1]])) == 1


def test_trees_that_cannot_be_are_named():
    with pytest.raises(
        ValueError, match="heads, line 4: words 1 and 2 are attached to the root: choose --tree-roots multi"
    ):
        criterion()(Model(distribution()), sample(torch.tensor([[0, 0, 2], [0, 1, -1]])))
