"""Optimizers; importing this package registers them with fairseq, which does not import them by itself."""

from fairseq_structattn.optimizers.adagrad import StructuredAdagrad

__all__ = ["StructuredAdagrad"]
