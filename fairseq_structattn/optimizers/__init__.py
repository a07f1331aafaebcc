"""Optimizers; importing this package registers them with fairseq, which does not import them by itself."""

from fairseq_structattn.optimizers.adagrad import StructuredAdagrad
from fairseq_structattn.optimizers.adam import StructuredAdam

__all__ = ["StructuredAdagrad", "StructuredAdam"]
