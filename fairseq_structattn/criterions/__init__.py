"""Criterions; importing this package registers them with fairseq, which does not import them by itself."""

from fairseq_structattn.criterions import (  # noqa: F401
    attention_entropy,
    coverage_loss,
    guided_alignment,
    pairwise_l2,
    tree_supervision,
)
from fairseq_structattn.criterions.label_smoothed_cross_entropy import StructuredLabelSmoothedCrossEntropy
from fairseq_structattn.criterions.parsing import ParsingCriterion
from fairseq_structattn.criterions.question_answering import QuestionAnswering
from fairseq_structattn.criterions.sentence_pair import SentencePairCriterion
from fairseq_structattn.criterions.terms import Term, register_term

__all__ = [
    "ParsingCriterion",
    "QuestionAnswering",
    "SentencePairCriterion",
    "StructuredLabelSmoothedCrossEntropy",
    "Term",
    "register_term",
]
