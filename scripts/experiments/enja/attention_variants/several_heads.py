"""``--arch enja_crf_heads`` and ``enja_simple_heads``: attention with four heads, each with its own distribution."""

import torch
from fairseq.models import register_model, register_model_architecture
from torch import Tensor, nn

from fairseq_structattn.models.rnn import StructuredAttentionRNN
from fairseq_structattn.models.rnn_architectures import crf, simple
from fairseq_structattn.models.rnn_options import RNNOptions
from fairseq_structattn.modules.attention import AttentionSource, StructuredAttention

HEADS = 4


class SeveralHeads(StructuredAttention):
    """:class:`StructuredAttention` with the general score, four times with parameters of their own. A context has one
    quarter of its units from each head, of a linear map of what the head selects (Vaswani et al. 2017, section 3.2.2).
    """

    def __init__(self, query_dim: int, source_dim: int, **options):
        super().__init__(query_dim, source_dim, **options)
        self.score.key_projection = nn.Linear(source_dim, HEADS * query_dim, bias=False)
        for name, table in self.tables.items():
            self.tables[name] = nn.Parameter(torch.empty(HEADS, *table.shape).uniform_(-0.1, 0.1))
        self.projections = nn.Parameter(torch.empty(HEADS, source_dim, source_dim // HEADS).uniform_(-0.1, 0.1))

    def posterior(self, query: Tensor, source: AttentionSource):
        """Of batch shape ``[batch, tgt_len, heads]``."""
        keys = source.keys.unflatten(-1, (HEADS, -1))
        scores = torch.einsum("btd,bshd->bths", query, keys).float()
        edges = max(scores.size(-1) - 1, 0)
        tables = {name: table.unsqueeze(1).expand(-1, edges, -1, -1) for name, table in self.tables.items()}
        return self._from_scores(scores, source.lengths[:, None, None], **tables)

    def expectation(self, posterior, source: AttentionSource):
        """Contexts ``[batch, tgt_len, source_dim]`` and the heads' mean weights ``[batch, tgt_len, src_len]``."""
        weights = self.weights_of(posterior).to(source.values.dtype)
        values = torch.einsum("bsd,hde->bhse", source.values, self.projections)
        return torch.einsum("bths,bhse->bthe", weights, values).flatten(2), weights.mean(2)


@register_model("enja_heads", dataclass=RNNOptions)
class HeadsModel(StructuredAttentionRNN):
    """``structattn_rnn`` with :class:`SeveralHeads`."""

    @classmethod
    def build_attention(cls, options: RNNOptions) -> SeveralHeads:
        return SeveralHeads(
            options.decoder_hidden_size,
            options.source_dim(),
            distribution=options.attention_distribution,
            scale=options.attention_scale,
            normalize=options.attention_normalize,
        )


register_model_architecture("enja_heads", "enja_crf_heads")(crf)
register_model_architecture("enja_heads", "enja_simple_heads")(simple)
