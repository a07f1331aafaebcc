"""A Transformer with structured cross attention: fairseq's own model, whose decoder attends by exact inference."""

import math
from typing import Dict, Optional, Tuple

import torch
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel, base_architecture
from torch import Tensor, nn

import fairseq_structattn  # noqa: F401  (repairs what the installed fairseq gets wrong, registers the criterion)
from fairseq_structattn.distributions import distribution_names, get_distribution
from fairseq_structattn.modules.attention import AttentionSource, StructuredAttention

# Distributions over trees need scores of arcs, too.
CHOICES = [name for name in distribution_names() if not get_distribution(name).needs_arcs]


@with_incremental_state
class StructuredCrossAttention(nn.Module):
    """Stands in for fairseq's ``MultiheadAttention`` between decoder and encoder.

    Args:
        query_dim: size of a decoder state
        source_dim: size of an encoder state
        heads: they share one distribution, as they would share one softmax
        distribution: a value of ``--cross-attention``
    """

    def __init__(self, query_dim: int, source_dim: int, heads: int, distribution: str):
        super().__init__()
        self.heads, self.head_dim = heads, query_dim // heads
        self.q_proj = nn.Linear(query_dim, query_dim)
        self.k_proj = nn.Linear(source_dim, query_dim)
        self.v_proj = nn.Linear(source_dim, query_dim)
        self.out_proj = nn.Linear(query_dim, query_dim)
        self.attention = StructuredAttention(
            self.head_dim, self.head_dim, score="dot", distribution=distribution, normalize="sum"
        )

    def forward(
        self, query, key, value, key_padding_mask=None, incremental_state=None, need_weights=True,
        need_head_weights=False, static_kv=True,
    ) -> Tuple[Tensor, Optional[Tensor]]:  # fmt: skip
        """Queries ``[tgt_len, batch, query_dim]`` attend to ``key`` ``[src_len, batch, source_dim]``.

        Returns:
            contexts ``[tgt_len, batch, query_dim]``, and weights in the order of the source, ``[batch, tgt_len,
            src_len]``, or of each head ``[heads, batch, tgt_len, src_len]``
        """
        source = self.get_incremental_state(incremental_state, "source")
        if source is None:
            source = self._source(key, key_padding_mask)
            self.set_incremental_state(incremental_state, "source", source)
        lengths = source["lengths"].repeat_interleave(self.heads)
        attended = AttentionSource(self._split(source["keys"]), self._split(source["values"]), lengths)
        queries = self._split(self.q_proj(query).transpose(0, 1)) / math.sqrt(self.head_dim)
        contexts, weights = self.attention(queries, attended)
        tgt_len, batch = query.shape[:2]
        contexts = contexts.view(batch, self.heads, tgt_len, self.head_dim).permute(2, 0, 1, 3).flatten(2)
        if not need_weights and not need_head_weights:
            return self.out_proj(contexts), None
        weights = weights.view(batch, self.heads, tgt_len, -1)
        places = source["places"][:, None, None].expand_as(weights)
        weights = torch.zeros_like(weights).scatter(-1, places, weights).transpose(0, 1)
        return self.out_proj(contexts), weights if need_head_weights else weights.mean(0)

    def _source(self, states: Tensor, padding: Optional[Tensor]) -> Dict[str, Tensor]:
        """What depends on the source only, ``[batch, …]``: fairseq pads on the left, distributions on the right."""
        states = states.transpose(0, 1)
        if padding is None:
            padding = torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
        places = padding.long().argsort(dim=1, stable=True)
        states = states.gather(1, places.unsqueeze(-1).expand_as(states))
        lengths = (~padding).sum(1)
        return {"keys": self.k_proj(states), "values": self.v_proj(states), "lengths": lengths, "places": places}

    def _split(self, states: Tensor) -> Tensor:
        """``[batch, length, dim]`` as ``[batch · heads, length, head_dim]``."""
        batch, length, _ = states.shape
        return states.view(batch, length, self.heads, self.head_dim).transpose(1, 2).flatten(0, 1)

    def reorder_incremental_state(self, incremental_state, new_order: Tensor):
        """Follows the beam."""
        source = self.get_incremental_state(incremental_state, "source")
        if source is not None:
            kept = {name: tensor.index_select(0, new_order) for name, tensor in source.items()}
            self.set_incremental_state(incremental_state, "source", kept)
        return incremental_state


class StructuredDecoder(TransformerDecoder):
    """fairseq's decoder, its cross attention replaced."""

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        layer = super().build_decoder_layer(cfg, no_encoder_attn)
        layer.encoder_attn = StructuredCrossAttention(
            cfg.decoder.embed_dim, cfg.encoder.embed_dim, cfg.decoder.attention_heads, cfg.cross_attention
        )
        return layer


@register_model("structured_transformer")
class StructuredTransformer(TransformerModel):
    """``transformer`` with ``--cross-attention``; all other options are those of ``transformer``."""

    @classmethod
    def add_args(cls, parser) -> None:
        super().add_args(parser)
        parser.add_argument("--cross-attention", choices=CHOICES, help="what the decoder expects (linear-chain)")

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens):
        return StructuredDecoder(args, tgt_dict, embed_tokens)


@register_model_architecture("structured_transformer", "structured_transformer")
def structured_transformer(args) -> None:
    args.cross_attention = getattr(args, "cross_attention", "linear-chain")
    base_architecture(args)
