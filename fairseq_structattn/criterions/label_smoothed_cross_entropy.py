"""``structattn_label_smoothed_cross_entropy``: fairseq's label smoothed cross entropy and terms on the attention."""

from dataclasses import dataclass, field

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_structattn.criterions.length_to_failure import length_to_failure
from fairseq_structattn.modules.attention import StructuredAttention


@dataclass
class StructuredLabelSmoothedCrossEntropyOptions(LabelSmoothedCrossEntropyCriterionConfig):
    """Fairseq's options and the weights of our terms, all 0 by default."""

    pairwise_l2: float = field(
        default=0.0,
        metadata={
            "help": "weight of the L2 penalty on the pairwise potentials of the attention (paper: 0.005 with "
            "--sentence-avg; beside a mean over words, that divided by the words of a sentence)"
        },
    )
    report_length_to_failure: bool = field(
        default=False, metadata={"help": "log the mean share of the target before the first error, in percent"}
    )


@register_criterion("structattn_label_smoothed_cross_entropy", dataclass=StructuredLabelSmoothedCrossEntropyOptions)
class StructuredLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Cross entropy with label smoothing, plus ``pairwise_l2 / 2 · Σb²`` over the pairwise potentials ``b``.

    The penalty adds ``pairwise_l2 · b`` to the gradient of an update (Kim et al. 2017, section 4.2), however many
    batches and processes make the update: fairseq divides the sum of their losses by the sum of their sample sizes,
    so each batch carries the penalty times its own sample size. The paper's 0.005 stands beside a loss summed over the
    words of a sentence, as with `sentence_avg`; beside a mean over words the same balance is 0.005 divided by the words
    of a sentence.

    Args:
        task: the fairseq task
        sentence_avg: losses are averaged over sentences, not over tokens
        label_smoothing: ε of the smoothing
        ignore_prefix_size: target tokens left out at the beginning
        report_accuracy: log the share of tokens predicted right
        pairwise_l2: weight of the penalty
        report_length_to_failure: log ``length_to_failure``, see
            :func:`~fairseq_structattn.criterions.length_to_failure.length_to_failure`, in percent

    Raises:
        ValueError: a negative weight
    """

    def __init__(
        self,
        task,
        sentence_avg,
        label_smoothing,
        ignore_prefix_size=0,
        report_accuracy=False,
        pairwise_l2=0.0,
        report_length_to_failure=False,
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if pairwise_l2 < 0:
            raise ValueError(f"--pairwise-l2 {pairwise_l2}: must be 0 or greater")
        self.pairwise_l2 = pairwise_l2
        self.report_length_to_failure = report_length_to_failure
        self.eos = task.target_dictionary.eos()

    def forward(self, model, sample, reduce=True):
        """The loss, its sample size and what to log; see fairseq's criterion of the same name."""
        net_output = model(**sample["net_input"])
        loss, nll_loss = self.compute_loss(model, net_output, sample, reduce=reduce)
        target = sample["target"]
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "nll_loss": nll_loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            right, total = self.compute_accuracy(model, net_output, sample)
            logging_output.update(n_correct=utils.item(right.data), total=utils.item(total.data))
        if self.report_length_to_failure:
            predicted = net_output[0].detach().argmax(-1)
            logging_output["length_to_failure"] = length_to_failure(predicted, target, self.padding_idx, self.eos).sum()
        if self.pairwise_l2 > 0 and reduce:
            penalty = self.pairwise_l2 / 2 * pairwise_square_norm(model) * sample_size
            loss = loss + penalty
            logging_output["pairwise_l2"] = utils.item(penalty.data)
        logging_output["loss"] = loss.data
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Logs fairseq's metrics, and each of our terms per sample, in nats."""
        super().reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        if any("pairwise_l2" in log for log in logging_outputs):
            penalty = sum(log.get("pairwise_l2", 0) for log in logging_outputs)
            metrics.log_scalar("pairwise_l2", penalty / sample_size, sample_size, round=6)
        if any("length_to_failure" in log for log in logging_outputs):
            sentences = sum(log.get("nsentences", 0) for log in logging_outputs)
            share = sum(utils.item(log.get("length_to_failure", 0)) for log in logging_outputs) / sentences
            metrics.log_scalar("length_to_failure", 100 * share, sentences, round=2)


def pairwise_square_norm(model: nn.Module) -> Tensor:
    """``Σb²`` over the pairwise potentials of all attentions in `model`; 0 where there are none."""
    total = torch.zeros((), device=next(model.parameters()).device)
    for module in model.modules():
        if isinstance(module, StructuredAttention) and "pairwise" in module.tables:
            total = total + module.tables["pairwise"].float().pow(2).sum()
    return total
