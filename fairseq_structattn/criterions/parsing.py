"""``structattn_parsing``: −log p of given trees, and the attachment score of the best trees."""

from typing import Dict, Tuple

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_structattn.criterions.checked_data import CheckedData
from fairseq_structattn.criterions.given_trees import check_trees
from fairseq_structattn.criterions.tree_supervision import tree_supervision_term
from fairseq_structattn.distributions.arcs import NO_HEAD, ArcDistribution


@register_criterion("structattn_parsing", dataclass=FairseqDataclass)
class ParsingCriterion(FairseqCriterion):
    """−log p of the given trees, a mean over words in an update, logged in nats as ``loss``; in validation also
    ``uas``, the percentage of words whose head in the most likely tree is the given one (unlabelled attachment score).

    Trees that the model cannot have, crossing ones for instance, end the training with their file and line.
    """

    def __init__(self, task):
        super().__init__(task)
        self._checked = CheckedData(task)

    def forward(self, model, sample: dict, reduce: bool = True) -> Tuple[Tensor, Tensor, Dict]:
        """The loss, its sample size and what to log."""
        distribution, heads = model(**sample["net_input"]), sample["source_heads"]
        for _, data in self._checked.unseen():
            check_trees(data, distribution)
        loss, words = tree_supervision_term(
            distribution, heads, sample["id"], sample["source_heads_path"], sample.get("source_heads_complete")
        )
        log = {"loss": loss.data, "ntokens": sample["ntokens"], "nsentences": len(heads), "sample_size": words}
        if not model.training:
            log["n_correct"] = right_heads(distribution, heads)
        return loss, words, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        """Logs ``loss`` and ``uas``."""
        words = utils.item(sum(log["sample_size"] for log in logging_outputs))
        loss = utils.item(sum(log["loss"] for log in logging_outputs))
        metrics.log_scalar("loss", loss / max(words, 1), words, round=4)
        if any("n_correct" in log for log in logging_outputs):
            right = utils.item(sum(log["n_correct"] for log in logging_outputs))
            metrics.log_scalar("uas", 100 * right / max(words, 1), words, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """All entries are sums."""
        return True


def right_heads(distribution: ArcDistribution, heads: Tensor) -> Tensor:
    """Number of the given heads ``[batch, words]`` that the most likely structure has."""
    heads = F.pad(heads, (0, distribution.max_length - heads.size(1)), value=NO_HEAD)
    with torch.no_grad():
        found = distribution.argmax.argmax(1)
    return ((found == heads) & distribution.position_mask).sum()
