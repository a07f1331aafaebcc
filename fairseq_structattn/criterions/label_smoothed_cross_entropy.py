"""``structattn_label_smoothed_cross_entropy``: fairseq's label smoothed cross entropy and terms on the attention."""

import logging
import weakref
from dataclasses import dataclass, field
from typing import Dict, Tuple

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_structattn.criterions.attention_entropy import attention_entropy
from fairseq_structattn.criterions.coverage_loss import coverage_loss
from fairseq_structattn.criterions.given_links import check_alignments
from fairseq_structattn.criterions.given_trees import check_trees
from fairseq_structattn.criterions.guided_alignment import alignment_matrix, guided_alignment_loss
from fairseq_structattn.criterions.length_to_failure import length_to_failure
from fairseq_structattn.criterions.shards import shards
from fairseq_structattn.criterions.tree_supervision import tree_supervision_term
from fairseq_structattn.modules.attention import StructuredAttention

logger = logging.getLogger(__name__)

# Terms of the loss that supervise attention, as they are called in the options and in the log.
TERMS = ("guided_alignment", "coverage_loss", "attention_entropy", "tree_supervision")
# Those that ask for the distributions of the model, not only for its attention weights.
POSTERIOR_TERMS = ("guided_alignment", "attention_entropy", "tree_supervision")


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
    guided_alignment: float = field(
        default=0.0,
        metadata={
            "help": "weight of the cross entropy of attention with the word alignments of the data (--load-alignments)"
        },
    )
    coverage_loss: float = field(
        default=0.0, metadata={"help": "weight of the penalty on attending again to what was attended to before"}
    )
    attention_entropy: float = field(
        default=0.0,
        metadata={"help": "weight of the entropy of the attention distribution: > 0 penalises it, < 0 rewards it"},
    )
    tree_supervision: float = field(
        default=0.0,
        metadata={
            "help": "weight of -log p of given heads of the source words (--task structattn_translation --load-heads)"
        },
    )
    report_length_to_failure: bool = field(
        default=False, metadata={"help": "log the mean share of the target before the first error, in percent"}
    )


@register_criterion("structattn_label_smoothed_cross_entropy", dataclass=StructuredLabelSmoothedCrossEntropyOptions)
class StructuredLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Cross entropy with label smoothing, plus ``pairwise_l2 / 2 · Σb²`` over the pairwise potentials ``b``, plus terms
    that supervise attention.

    The terms on attention are sums over words, as the cross entropy is, times their weights: with `sentence_avg` an
    update has their mean over sentences, without it that over target words. They are logged without their weights, in
    nats for each word that they count, 0 where they count none. A term of weight 0 is neither computed nor logged. What
    supervises is checked as a whole, for every split, before the first update. Those other than the coverage
    loss need a model that has ``has_posterior`` and returns its distributions as
    :class:`~fairseq_structattn.models.rnn.RNNDecoder` does.

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
        guided_alignment: weight of :func:`~fairseq_structattn.criterions.guided_alignment.guided_alignment_loss`,
            logged for each target word that has an alignment
        coverage_loss: weight of :func:`~fairseq_structattn.criterions.coverage_loss.coverage_loss`
        attention_entropy: weight of :func:`~fairseq_structattn.criterions.attention_entropy.attention_entropy`; less
            than 0, it keeps attention open
        tree_supervision: weight of :func:`~fairseq_structattn.criterions.tree_supervision.tree_supervision_loss`,
            logged for each source word whose head is given

    Raises:
        ValueError: a negative weight of another term than the entropy, or ``guided_alignment`` without
            ``--load-alignments``
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
        guided_alignment=0.0,
        coverage_loss=0.0,
        attention_entropy=0.0,
        tree_supervision=0.0,
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.pairwise_l2 = _not_negative("--pairwise-l2", pairwise_l2)
        weights = {
            "guided_alignment": _not_negative("--guided-alignment", guided_alignment),
            "coverage_loss": _not_negative("--coverage-loss", coverage_loss),
            "attention_entropy": attention_entropy,
            "tree_supervision": _not_negative("--tree-supervision", tree_supervision),
        }
        self.term_weights = {name: weight for name, weight in weights.items() if weight != 0}
        if guided_alignment and not getattr(task.cfg, "load_alignments", False):
            raise ValueError(f"--guided-alignment {guided_alignment} needs word alignments: add --load-alignments")
        elif getattr(task.cfg, "load_alignments", False) and not guided_alignment:
            logger.warning("--load-alignments is not used: its weight, --guided-alignment, is 0")
        if getattr(task.cfg, "load_heads", False) and not tree_supervision:
            logger.warning("--load-heads is not used: its weight, --tree-supervision, is 0")
        # Of each split, the data set whose alignments or trees were checked; the next shard is another.
        self._checked = {name: weakref.WeakValueDictionary() for name in ("guided_alignment", "tree_supervision")}
        self.report_length_to_failure = report_length_to_failure
        self.eos = task.target_dictionary.eos()

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
        if self.pairwise_l2 > 0 and reduce:
            penalty = self.pairwise_l2 / 2 * pairwise_square_norm(model) * sample_size
            loss = loss + penalty
            logging_output["pairwise_l2"] = utils.item(penalty.data)
        for name, weight in self.term_weights.items() if reduce else ():
            value, words = getattr(self, f"_{name}")(model, sample, net_output[1])
            loss = loss + weight * value
            logging_output[name], logging_output[f"{name}_words"] = value.data, words
        logging_output["loss"] = loss.data
        return loss, sample_size, logging_output

    def _request(self, model: nn.Module) -> Dict[str, bool]:
        """What to ask of the model beside its input."""
        needed = [name for name in POSTERIOR_TERMS if name in self.term_weights]
        if needed and not getattr(model, "has_posterior", False):
            raise ValueError(
                f"{_flag(needed[0])} needs the distributions that a model attends with, which this one does not "
                "return: choose an --arch structattn_rnn…"
            )
        return {"return_posterior": True} if needed else {}

    # The terms: their sums over a batch, and over how many words. Every batch has them, if need be as zeros, since
    # processes add up their logs, which must have the same entries.

    def _guided_alignment(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        posterior, target = _attended(extra["posterior"], "--guided-alignment"), sample["target"]
        for split, data in self._unchecked("guided_alignment"):
            check_alignments(self.task.cfg, split, data, required=model.training)
        links = sample.get("alignments")
        if links is None:
            return _nothing(target)
        weights, source = sample["align_weights"], sample["net_input"]["src_tokens"]
        alignment = alignment_matrix(links, weights, source, target.size(1), self.padding_idx)
        return guided_alignment_loss(posterior, alignment), weights.sum()

    def _unchecked(self, term: str):
        """Splits and their data sets that `term` has not seen yet, at first also those of later epochs."""
        checked = self._checked[term]
        is_first = not checked
        for split, data in getattr(self.task, "datasets", {}).items():
            if checked.get(split) is not data:
                yield split, data
                checked[split] = data
        if is_first and getattr(self.task.cfg, "train_subset", None) in checked:
            for data in shards(self.task):
                yield self.task.cfg.train_subset, data

    def _coverage_loss(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        counted = sample["target"].ne(self.padding_idx)
        return coverage_loss(_attended(extra["attn"][0], "--coverage-loss"), counted), counted.sum()

    def _attention_entropy(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        counted = sample["target"].ne(self.padding_idx)
        return attention_entropy(_attended(extra["posterior"], "--attention-entropy"), counted), counted.sum()

    def _tree_supervision(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        distribution, heads = extra["source_heads"], sample.get("source_heads")
        if distribution is None:
            raise ValueError("--tree-supervision: the model has no trees over the source: choose a --source-attention")
        if heads is None:
            if model.training:
                raise ValueError(
                    "--tree-supervision needs heads of the source words: add --task structattn_translation --load-heads"
                )
            return _nothing(sample["target"])
        for _, data in self._unchecked("tree_supervision"):
            check_trees(data, distribution)
        return tree_supervision_term(distribution, heads, sample["id"], sample["source_heads_path"])

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Logs fairseq's metrics, and each of our terms per sample, in nats."""
        super().reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        if any("pairwise_l2" in log for log in logging_outputs):
            penalty = sum(log.get("pairwise_l2", 0) for log in logging_outputs)
            metrics.log_scalar("pairwise_l2", penalty / sample_size, sample_size, round=6)
        for name in TERMS:
            if any(name in log for log in logging_outputs):
                words = utils.item(sum(log.get(f"{name}_words", 0) for log in logging_outputs))
                value = utils.item(sum(log.get(name, 0) for log in logging_outputs))
                metrics.log_scalar(name, value / max(words, 1), words, round=4)
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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _not_negative(option: str, weight: float) -> float:
    if weight < 0:
        raise ValueError(f"{option} {weight}: must be 0 or greater")
    return weight


def _attended(attention, option: str):
    if attention is None:
        raise ValueError(f"{option}: the model returns no attention: choose an --attention-distribution, not none")
    return attention


def _nothing(target: Tensor) -> Tuple[Tensor, Tensor]:
    """A term that no word of the batch has a part in."""
    return target.new_zeros((), dtype=torch.float32), target.new_zeros(())
