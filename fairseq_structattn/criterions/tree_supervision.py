"""Supervision of latent trees over the source by given heads."""

import logging
from typing import Any, Mapping, Optional, Tuple

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.criterions.after_backward import after_backward
from fairseq_structattn.criterions.checked_data import CheckedData
from fairseq_structattn.criterions.given_trees import check_trees
from fairseq_structattn.criterions.impossible_heads import why_impossible
from fairseq_structattn.criterions.terms import Term, nothing, register_term
from fairseq_structattn.distributions.arcs import NO_HEAD, ArcDistribution

logger = logging.getLogger(__name__)


def tree_supervision_loss(
    distribution: ArcDistribution, heads: Tensor, complete: Optional[bool] = None
) -> Tuple[Tensor, Tensor]:
    """−log p of the given heads, in nats, and the number of given heads.

    If all heads of a sentence are given, the loss is log Z − score(tree) under a distribution over trees (Koo et al.,
    "Structured Prediction Models via the Matrix-Tree Theorem", EMNLP 2007, section 4), and the sum of the cross
    entropies of the arcs under a softmax for each word. If only some are given, p is the total probability of all trees
    that agree with them: the loss of a single given head h of a word m is −log μ(h → m).

    Args:
        distribution: over the heads of n words, of batch shape ``[batch]``
        heads: integers ``[batch, words]``, 0 for the root, −1 for an unknown head; may be padded to more or fewer words
            than n
        complete: whether the heads of all words are given; ``None``: they are looked at, see
            :meth:`~fairseq_structattn.distributions.arcs.ArcDistribution.log_prob_of_heads`

    Returns:
        the losses ``[batch]``, inf where no structure of the distribution has these heads, and the numbers ``[batch]``
    """
    heads = F.pad(heads, (0, distribution.max_length - heads.size(1)), value=NO_HEAD)
    given = (heads != NO_HEAD) & distribution.position_mask
    return -distribution.log_prob_of_heads(heads, complete), given.sum(-1)


def tree_supervision_term(
    distribution: ArcDistribution,
    heads: Tensor,
    sentences: Tensor,
    path: Optional[str],
    complete: Optional[bool] = None,
) -> Tuple[Tensor, Tensor]:
    """The sums over a batch of the losses and numbers of :func:`tree_supervision_loss`.

    With ``complete`` given, an accelerator is not waited for. Impossible heads raise when the backward pass has been
    queued, or at once without a gradient.

    Args:
        distribution: over the heads of the words
        heads: ``[batch, words]``
        sentences: numbers of the sentences in their data set ``[batch]``
        path: the file of the heads, with a line for each sentence
        complete: see :func:`tree_supervision_loss`

    Raises:
        ValueError: heads that no structure of the distribution has; the message names file and line
    """
    cost, given = tree_supervision_loss(distribution, heads, complete)
    cost = cost.masked_fill(given == 0, 0)
    impossible = cost.detach().isinf()

    def check() -> None:
        for index in impossible.nonzero().flatten().tolist()[:1]:
            line, reason = sentences[index].item() + 1, why_impossible(distribution, heads[index])
            raise ValueError(f"--tree-supervision: {path}, line {line}: {reason}")

    after_backward(cost, check)
    return cost.sum(), given.sum()


@register_term
class TreeSupervision(Term):
    """:func:`tree_supervision_loss` as a term; all heads of the data are checked before the first update."""

    name = "tree_supervision"
    description = "weight of -log p of given heads of the source words (--task structattn_translation --load-heads)"
    needs_distribution = True

    def __init__(self, task, options: Mapping[str, Any]):
        super().__init__(task, options)
        self._checked = CheckedData(task)

    @classmethod
    def skipped(cls, task) -> None:
        """Warns of heads that are loaded but not used."""
        if getattr(task.cfg, "load_heads", False):
            logger.warning("--load-heads is not used: its weight, --tree-supervision, is 0")

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """See :meth:`Term.value`; over the source words whose head is given."""
        distribution, heads = extra["source_attention"], sample.get("source_heads")
        if distribution is None:
            raise ValueError(
                "--tree-supervision: the model has no trees over the source: choose a --source-attention or, in a "
                "Transformer, --encoder-self-attention-heads with a distribution over arcs"
            )
        if not isinstance(distribution, ArcDistribution):
            raise ValueError(
                f"--tree-supervision gives words their heads, and this model's trees are those of a "
                f"{type(distribution).__name__}, without heads: choose another --source-attention"
            )
        if heads is None:
            if model.training:
                raise ValueError(
                    "--tree-supervision needs heads of the source words: add --task structattn_translation --load-heads"
                )
            return nothing(sample["target"])
        for _, data in self._checked.unseen():
            check_trees(data, distribution)
        path, complete = sample["source_heads_path"], sample.get("source_heads_complete")
        return tree_supervision_term(distribution, heads, sample["id"], path, complete)
