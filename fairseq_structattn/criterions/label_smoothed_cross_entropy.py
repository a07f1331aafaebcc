"""``structattn_label_smoothed_cross_entropy``: fairseq's label smoothed cross entropy and any :mod:`terms
<fairseq_structattn.criterions.terms>`."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Dict

from fairseq import utils
from fairseq.criterions import CRITERION_REGISTRY, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import nn

from fairseq_structattn.criterions.length_to_failure import length_to_failure
from fairseq_structattn.criterions.terms import build_terms, term_names, term_options, when_registered

NAME = "structattn_label_smoothed_cross_entropy"
OPTIONS = "StructuredLabelSmoothedCrossEntropyOptions"


@dataclass
class OwnOptions(LabelSmoothedCrossEntropyCriterionConfig):
    """Fairseq's options and ours, without those of the terms."""

    report_length_to_failure: bool = field(
        default=False, metadata={"help": "log the mean share of the target before the first error, in percent"}
    )


class StructuredLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Cross entropy with label smoothing, plus each registered :class:`~fairseq_structattn.criterions.terms.Term` times
    its weight.

    Terms are sums over words, like the cross entropy: an update takes their mean over sentences with `sentence_avg`,
    over target words without it. Terms are logged without their weights, in nats per word that they count, as 0 if they
    count none. A term of weight 0 is neither computed nor logged. Alignments and heads of every split are checked
    before the first update. Terms that need distributions need a model that has ``has_posterior`` and returns its
    distributions as :class:`~fairseq_structattn.models.rnn.RNNDecoder` does.

    Args:
        task: the fairseq task
        sentence_avg: losses are averaged over sentences, not over tokens
        label_smoothing: ε of the smoothing
        ignore_prefix_size: target tokens left out at the beginning
        report_accuracy: log the fraction of tokens that are predicted correctly
        report_length_to_failure: log ``length_to_failure``, see
            :func:`~fairseq_structattn.criterions.length_to_failure.length_to_failure`, in percent
        of_terms: options of terms, such as their weights, by name

    Raises:
        TypeError: an option that no term has
        ValueError: a value that its term refuses
    """

    def __init__(
        self,
        task,
        sentence_avg,
        label_smoothing,
        ignore_prefix_size=0,
        report_accuracy=False,
        report_length_to_failure=False,
        **of_terms,
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.terms = build_terms(task, sentence_avg, of_terms)
        self.report_length_to_failure = report_length_to_failure
        self.eos = task.target_dictionary.eos()

    @classmethod
    def build_criterion(cls, cfg, task) -> "StructuredLabelSmoothedCrossEntropy":
        """The criterion of a configuration, which has the options of all terms."""
        names = [declared.name for declared in fields(globals()[OPTIONS]) if declared.name != "_name"]
        return cls(task, **{name: getattr(cfg, name) for name in names})

    def forward(self, model, sample, reduce=True):
        """The loss, its sample size and what to log; see fairseq's criterion of the same name."""
        net_output = model(**sample["net_input"], **self._request(model))
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
        for term in self.terms if reduce else ():
            value, words = term.value(model, sample, net_output[1])
            loss = loss + term.weight * value
            logging_output[term.name], logging_output[f"{term.name}_words"] = value.data, words
        logging_output["loss"] = loss.data
        return loss, sample_size, logging_output

    def _request(self, model: nn.Module) -> Dict[str, bool]:
        """Arguments of the model beside its input."""
        needed = [term.flag() for term in self.terms if term.needs_distribution]
        if needed and not getattr(model, "has_posterior", False):
            raise ValueError(
                f"{needed[0]} needs the distributions that a model attends with, which this one does not return: "
                "choose an --arch structattn_rnn… or structattn_transformer…"
            )
        return {"return_posterior": True} if needed else {}

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Logs fairseq's metrics, and each term, its sum divided by its words."""
        super().reduce_metrics(logging_outputs)
        for name in term_names():
            if any(name in log for log in logging_outputs):
                words = utils.item(sum(log.get(f"{name}_words", 0) for log in logging_outputs))
                value = utils.item(sum(log.get(name, 0) for log in logging_outputs))
                metrics.log_scalar(name, value / max(words, 1), words, round=4)
        if any("length_to_failure" in log for log in logging_outputs):
            sentences = sum(log.get("nsentences", 0) for log in logging_outputs)
            share = sum(utils.item(log.get("length_to_failure", 0)) for log in logging_outputs) / sentences
            metrics.log_scalar("length_to_failure", 100 * share, sentences, round=2)


def _offer() -> None:
    """Registers the criterion with the options of all terms. Checkpoints name the class of the options, which is found
    in this module."""
    of_terms = [
        (name, kind, field(default=default, metadata={"help": text})) for name, kind, default, text in term_options()
    ]
    options = make_dataclass(OPTIONS, of_terms, bases=(OwnOptions,))
    options.__module__, options.__doc__ = __name__, "Fairseq's options, ours, and those of the terms."
    globals()[OPTIONS] = options
    CRITERION_REGISTRY.pop(NAME, None)
    register_criterion(NAME, dataclass=options)(StructuredLabelSmoothedCrossEntropy)


when_registered(_offer)
