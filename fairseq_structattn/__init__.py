"""Structured attention for fairseq: attention weights are marginals of a distribution over structures."""
