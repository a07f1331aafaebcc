"""Models; importing this package registers them and their architectures with fairseq."""

from fairseq_structattn.models import rnn_architectures  # noqa: F401
from fairseq_structattn.models.decomposable_attention import DecomposableAttention
from fairseq_structattn.models.dependency_parser import DependencyParser
from fairseq_structattn.models.memory_network import MemoryNetwork
from fairseq_structattn.models.rnn import StructuredAttentionRNN
from fairseq_structattn.models.transformer import StructuredTransformer

__all__ = [
    "DecomposableAttention",
    "DependencyParser",
    "MemoryNetwork",
    "StructuredAttentionRNN",
    "StructuredTransformer",
]
