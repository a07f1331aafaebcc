"""Building blocks of models: attention, also with many heads, its scores, source attention, recurrent layers. They need
torch alone."""

from fairseq_structattn.modules.attention import AttentionSource, StructuredAttention
from fairseq_structattn.modules.multihead_attention import StructuredMultiheadAttention
from fairseq_structattn.modules.scores import Score, register_score
from fairseq_structattn.modules.source_attention import SourceAttention

__all__ = [
    "AttentionSource",
    "Score",
    "SourceAttention",
    "StructuredAttention",
    "StructuredMultiheadAttention",
    "register_score",
]
