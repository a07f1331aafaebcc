"""``structattn_sentence_pair``: cross entropy of the label, accuracy, and supervision of the trees of both sides."""

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_structattn.criterions.checked_data import CheckedData
from fairseq_structattn.criterions.given_trees import check_heads
from fairseq_structattn.criterions.terms import nothing
from fairseq_structattn.criterions.tree_supervision import tree_supervision_term
from fairseq_structattn.tasks.sentence_pairs import SIDES


@dataclass
class SentencePairCriterionOptions(FairseqDataclass):
    """Options of :class:`SentencePairCriterion`."""

    tree_supervision: float = field(
        default=0.0, metadata={"help": "weight of -log p of the given heads of both sentences (--load-heads)"}
    )
    tree_supervision_epochs: Optional[int] = field(
        default=None,
        metadata={"help": "number of epochs with --tree-supervision; its weight is 0 afterwards (default: all)"},
    )


@register_criterion("structattn_sentence_pair", dataclass=SentencePairCriterionOptions)
class SentencePairCriterion(FairseqCriterion):
    """Cross entropy of the labels of pairs of sentences; losses are means over the pairs of an update, in nats, logged
    in bits as fairseq does. ``accuracy`` is logged in percent.

    Args:
        task: a ``structattn_sentence_pair``
        tree_supervision: weight of :func:`~fairseq_structattn.criterions.tree_supervision.tree_supervision_loss`,
            summed over both sentences; logged per word with a given head, in the epochs that have it
        tree_supervision_epochs: number of first epochs with this loss; None: all

    Raises:
        ValueError: a negative weight, fewer than one epoch, or supervision without heads
    """

    def __init__(self, task, tree_supervision: float = 0.0, tree_supervision_epochs: Optional[int] = None):
        super().__init__(task)
        if tree_supervision < 0:
            raise ValueError(f"--tree-supervision {tree_supervision}: must be 0 or greater")
        if tree_supervision_epochs is not None and tree_supervision_epochs < 1:
            raise ValueError(f"--tree-supervision-epochs {tree_supervision_epochs}: must be at least 1")
        if tree_supervision_epochs is not None and not tree_supervision:
            raise ValueError(
                f"--tree-supervision-epochs {tree_supervision_epochs} has no meaning without --tree-supervision WEIGHT"
            )
        if tree_supervision and not task.cfg.load_heads:
            raise ValueError(f"--tree-supervision {tree_supervision} needs heads: add --load-heads")
        self.tree_supervision, self.epochs = tree_supervision, tree_supervision_epochs
        self._checked = CheckedData(task)

    def forward(self, model, sample: dict, reduce: bool = True) -> Tuple[Tensor, int, Dict]:
        """The loss, its sample size and what to log."""
        net_output = model(**sample["net_input"])
        scores, target = net_output[0].float(), sample["target"]
        loss = F.cross_entropy(scores, target, reduction="sum" if reduce else "none")
        pairs = len(target)
        log = {
            "label_loss": loss.data.sum(),
            "n_correct": (scores.argmax(-1) == target).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": pairs,
            "sample_size": pairs,
        }
        if self._supervises() and reduce:
            cost, words = self._trees(net_output[1]["source_attention"], sample, model.training)
            loss = loss + self.tree_supervision * cost
            log["tree_supervision"], log["tree_supervision_words"] = cost.data, words
        log["loss"] = loss.data.sum()
        return loss, pairs, log

    def _supervises(self) -> bool:
        is_early = self.epochs is None or self.task.epoch <= self.epochs
        return self.tree_supervision > 0 and is_early

    def _trees(self, distributions, sample: dict, is_training: bool) -> Tuple[Tensor, Tensor]:
        if distributions is None:
            raise ValueError(
                "--tree-supervision: the model has no distribution over trees: choose a --source-attention such as "
                "projective-tree"
            )
        if "heads_path" not in sample:
            if is_training:
                raise ValueError("--tree-supervision: the data to train on has no heads of both sentences")
            return nothing(sample["target"])
        self._check(distributions)
        cost, words = nothing(sample["target"])
        complete = sample.get("heads_complete", [None] * len(SIDES))
        for side, distribution, path, known in zip(SIDES, distributions, sample["heads_path"], complete):
            heads = sample["net_input"][f"{side}_heads"]
            its_cost, its_words = tree_supervision_term(distribution, heads, sample["id"], path, known)
            cost, words = cost + its_cost, words + its_words
        return cost, words

    def _check(self, distributions) -> None:
        """Checks the trees of every data set once, before the first update that learns from them."""
        for _, data in self._checked.unseen():
            for heads, distribution in zip(data.heads, distributions):
                if heads is not None:
                    check_heads(heads, distribution)

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        """Logs ``loss`` in bits, ``accuracy`` in percent and, if used, ``tree_supervision`` in nats."""
        total = {
            name: utils.item(sum(log.get(name, 0) for log in logging_outputs)) for name in _logged(logging_outputs)
        }
        pairs = total["nsentences"]
        bits = torch.tensor(2.0).log().item()
        metrics.log_scalar("loss", total["loss"] / max(pairs, 1) / bits, pairs, round=3)
        metrics.log_scalar("label_loss", total["label_loss"] / max(pairs, 1) / bits, pairs, round=3)
        metrics.log_scalar("accuracy", 100 * total["n_correct"] / max(pairs, 1), pairs, round=2)
        if "tree_supervision" in total:
            words = total["tree_supervision_words"]
            metrics.log_scalar("tree_supervision", total["tree_supervision"] / max(words, 1), words, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """All entries are sums."""
        return True


def _logged(logging_outputs):
    return {name for log in logging_outputs for name in log}
