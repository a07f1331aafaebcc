"""``structattn_question_answering``: cross entropy of the answers, and accuracies of answers and facts."""

import math
from typing import Dict, List

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_structattn.modules.fact_selection import NO_FACT


@register_criterion("structattn_question_answering", dataclass=FairseqDataclass)
class QuestionAnswering(FairseqCriterion):
    """Cross entropy of the answer to each question, and its mean over the questions of an update.

    ``loss`` is logged in bits per question. ``accuracy`` is the percentage of questions whose answer is the most
    probable symbol; ``fact_accuracy``, in validation only, the percentage of questions whose most likely sequence of
    facts is the sequence of supporting facts. ``fact_accuracy`` counts only questions with as many supporting facts as
    they take steps; a supporting fact that was cut from a long story cannot be found. Training does not use the
    supporting facts.
    """

    def forward(self, model, sample, reduce=True):
        """The loss, summed over questions unless not `reduce`, the number of questions, and what to log."""
        net_output = model(**sample["net_input"])
        log_probs = model.get_normalized_probs(net_output, log_probs=True)
        target = sample["target"]
        losses = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        unknown = target == self.task.target_dictionary.unk()
        right = (log_probs.argmax(-1) == target) & ~unknown
        logged = {
            "loss": losses.detach().sum(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["nsentences"],
            "right": right.sum(),
        }
        if not model.training:
            logged.update(_compared(net_output[1].facts, sample["supporting"], sample["supporting_lengths"]))
        return losses.sum() if reduce else losses, sample["nsentences"], logged

    @staticmethod
    def reduce_metrics(logging_outputs: List[Dict]) -> None:
        """Logs the means over the questions of all `logging_outputs`."""

        def total(name):
            return sum(output.get(name, 0) for output in logging_outputs)

        questions, told = total("nsentences"), total("told")
        metrics.log_scalar("loss", total("loss") / questions / math.log(2), questions, round=3)
        metrics.log_scalar("accuracy", 100.0 * total("right") / questions, questions, round=2)
        if told > 0:
            metrics.log_scalar("fact_accuracy", 100.0 * total("found") / told, told, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _compared(facts: Tensor, supporting: Tensor, lengths: Tensor) -> Dict[str, Tensor]:
    """The number of questions with one supporting fact for each step, and of those whose facts are the same.

    Args:
        facts: ``[batch, steps]``, :data:`NO_FACT` at steps that are not taken
        supporting: ``[batch, most]``, likewise for facts that were cut off, and beyond the last one
        lengths: number of supporting facts, ``[batch]``
    """
    told = lengths == (facts != NO_FACT).sum(1)
    steps = facts.shape[1]
    supporting = F.pad(supporting, (0, max(steps - supporting.shape[1], 0)), value=NO_FACT)[:, :steps]
    return {"told": told.sum(), "found": ((facts == supporting).all(1) & told).sum()}
