"""Optimizers; importing this package registers them with fairseq, which does not look for them by itself."""

from fairseq_structattn.optimizers.adagrad import StructuredAdagrad

__all__ = ["StructuredAdagrad"]
