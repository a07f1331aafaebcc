"""The criterion for pairs of sentences: loss, accuracy, and supervision for some epochs."""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.logging import metrics
from waiting import as_on_an_accelerator, waits

import fairseq_structattn  # noqa: F401  (registers the criterion)
from fairseq_structattn.distributions import ProjectiveTree
from fairseq_structattn.tasks.source_heads import SourceHeads

SCORES = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]])
ARCS = torch.linspace(-1, 1, 24).view(2, 4, 3)


class Model(torch.nn.Module):
    """Answers what it is given."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, **net_input):
        return SCORES, {"source_attention": self.heads}


def criterion(load_heads=True, **options):
    task = Namespace(cfg=Namespace(load_heads=load_heads), epoch=1, datasets={}, target_dictionary=None)
    return CRITERION_REGISTRY["structattn_sentence_pair"](task, **options)


def sample(heads=None):
    inputs = {"premise": torch.zeros(2, 3).long(), "hypothesis": torch.zeros(2, 3).long()}
    made = {"id": torch.tensor([4, 0]), "net_input": inputs, "target": torch.tensor([0, 1]), "ntokens": 10}
    if heads is not None:
        inputs["premise_heads"], inputs["hypothesis_heads"] = heads
        made["heads_path"] = ["p.heads", "h.heads"]
        made["heads_complete"] = [bool(each.ne(-1).all()) for each in heads]
    return made


def trees():
    return ProjectiveTree(ARCS), ProjectiveTree(-ARCS)


def test_loss_and_accuracy():
    loss, size, log = criterion()(Model(None), sample())
    torch.testing.assert_close(loss, F.cross_entropy(SCORES, torch.tensor([0, 1]), reduction="sum"))
    assert size == 2 and log["n_correct"] == 1
    with metrics.aggregate(new_root=True) as logged:
        criterion().reduce_metrics([log, log])
    values = logged.get_smoothed_values()
    assert values["accuracy"] == 50.0
    assert values["loss"] == round(loss.item() / 2 / torch.tensor(2.0).log().item(), 3)
    assert "tree_supervision" not in values


def test_nothing_is_waited_for_before_the_backward_pass():
    heads = torch.tensor([[2, 0, 2], [0, 1, 2]]), torch.tensor([[0, 1, -1], [-1, -1, -1]])
    with as_on_an_accelerator():
        made, batch, losses = criterion(tree_supervision=0.5), sample(heads), []
        model = Model(tuple(ProjectiveTree(arcs.requires_grad_()) for arcs in (ARCS.clone(), -ARCS)))
        assert not waits(lambda: losses.append(made(model, batch)[0]))
        assert waits(losses[0].backward)


def test_supervision_of_both_sides_in_the_first_epochs():
    heads = torch.tensor([[2, 0, 2], [0, 1, 2]]), torch.tensor([[0, 1, -1], [-1, -1, -1]])
    made, plain = criterion(tree_supervision=0.5, tree_supervision_epochs=2), criterion()
    (premises, hypotheses), batch = trees(), sample(heads)
    expected = -premises.log_prob_of_heads(heads[0]).sum() - hypotheses.log_prob_of_heads(heads[1])[0]
    base, _, _ = plain(Model(trees()), batch)
    for epoch, share in ((1, 0.5), (2, 0.5), (3, 0.0)):
        made.task.epoch = epoch
        loss, _, log = made(Model((premises, hypotheses)), batch)
        torch.testing.assert_close(loss, base + share * expected)
        assert ("tree_supervision" in log) == (share > 0)
        if share:
            assert log["tree_supervision_words"] == 8


def test_trees_are_checked_with_file_and_line(tmp_path):
    path = tmp_path / "train.heads.premise"
    path.write_text("0 1 2\n2 0 2\n2 1 0\n")
    made = criterion(tree_supervision=1.0)
    made.task.datasets["train"] = type("Data", (), {"heads": (SourceHeads(str(path), [3, 3, 3]), None)})()
    heads = torch.tensor([[2, 0, 2], [0, 1, 2]])
    with pytest.raises(ValueError, match="train.heads.premise, line 3: its arcs go round in a circle"):
        made(Model(trees()), sample((heads, heads)))
    made.task.datasets.clear()
    with pytest.raises(ValueError, match="h.heads, line 5: its arcs go round in a circle"):
        made(Model(trees()), sample((heads, torch.tensor([[2, 1, 0], [0, 1, 2]]))))


def test_data_without_heads_is_validated_all_the_same():
    made, model = criterion(tree_supervision=1.0), Model(trees())
    with pytest.raises(ValueError, match="the data to train on has no heads"):
        made(model.train(), sample())
    loss, _, log = made(model.eval(), sample())
    assert log["tree_supervision_words"] == 0 and torch.isfinite(loss)
    with pytest.raises(ValueError, match="no distribution over trees: choose a --source-attention"):
        made(Model(None), sample())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tree_supervision": -1.0}, "--tree-supervision -1.0: must be 0 or greater"),
        ({"tree_supervision": 1.0, "load_heads": False}, "--tree-supervision 1.0 needs heads: add --load-heads"),
        ({"tree_supervision": 1.0, "tree_supervision_epochs": 0}, "--tree-supervision-epochs 0: must be at least 1"),
        ({"tree_supervision_epochs": 1}, "--tree-supervision-epochs 1 has no meaning without"),
    ],
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        criterion(**options)
