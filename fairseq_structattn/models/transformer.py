"""``structattn_transformer``: fairseq's Transformer, whose attention heads may have any distribution."""

from typing import Any, Dict, List, Optional, Tuple

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModel,
    base_architecture,
    transformer_iwslt_de_en,
    transformer_wmt_en_de,
)
from torch import Tensor

from fairseq_structattn.distributions.arcs import ArcDistribution
from fairseq_structattn.models.transformer_options import TransformerOptions
from fairseq_structattn.modules.head_groups import SOFTMAX
from fairseq_structattn.modules.multihead_attention import HeadAttention, StructuredMultiheadAttention, structured
from fairseq_structattn.modules.right_padding import RightPadding
from fairseq_structattn.modules.source_attention import ExpectedHeads

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


@register_model("structattn_transformer")
class StructuredTransformer(TransformerModel):
    """Transformer (Vaswani et al. 2017) with structured attention heads: chains and other distributions over positions
    in the decoder's attention to the source, and also trees in the encoder's self-attention.

    Its options are those of fairseq's ``transformer`` and :class:`.TransformerOptions`. With softmax in all heads it is
    fairseq's model. Checkpoints of ``transformer`` load; new parameters keep their initial values. With
    ``return_posterior=True``, ``forward`` also returns distributions, see :meth:`StructuredTransformerDecoder.forward`.
    """

    has_posterior = True
    own_options = TransformerOptions

    @classmethod
    def add_args(cls, parser) -> None:
        """Adds the options to a parser."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, TransformerOptions(), delete_default=True)

    @classmethod
    def build_model(cls, args, task) -> "StructuredTransformer":
        """Builds the model for the dictionaries of `task`.

        Raises:
            ValueError: options that cannot work, by name and value
        """
        base_architecture(args)
        TransformerOptions.of(args).check(args)
        return super().build_model(args, task)

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens) -> "StructuredTransformerEncoder":
        """fairseq's hook."""
        return StructuredTransformerEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens) -> "StructuredTransformerDecoder":
        """fairseq's hook."""
        config = TransformerConfig.from_namespace(args)
        return StructuredTransformerDecoder(config, tgt_dict, embed_tokens, no_encoder_attn=config.no_cross_attention)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        return_posterior: bool = False,
        **of_decoder,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Encodes and decodes a batch; see the encoder and the decoder."""
        encoder_out = self.encoder(
            src_tokens, src_lengths, return_all_hiddens=return_all_hiddens, return_posterior=return_posterior
        )
        return self.decoder(prev_output_tokens, encoder_out, return_posterior=return_posterior, **of_decoder)


class StructuredTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder, whose self-attention has structured heads.

    Args:
        cfg: fairseq's configuration of a Transformer, with :class:`.TransformerOptions`
        dictionary: dictionary of the source language
        embed_tokens: embeddings of the source language

    Attributes:
        parser: layer and head whose trees are returned; None without trees
    """

    def __init__(self, cfg, dictionary, embed_tokens, return_fc: bool = False):
        options, sizes = TransformerOptions.of(cfg), (cfg.encoder.layers, cfg.encoder.attention_heads)
        self._options, self._plan, self._built = options, options.encoder_self_attention(*sizes), 0
        super().__init__(cfg, dictionary, embed_tokens, return_fc=return_fc)
        self.parser = options.parsing(self._plan, *sizes)
        self.dropout_module.module_name = "TransformerEncoder"  # of --retain-dropout-modules

    def build_encoder_layer(self, cfg):
        """fairseq's hook."""
        layer = super().build_encoder_layer(cfg)
        heads, self._built = self._plan.heads_of(self._built), self._built + 1
        if heads != SOFTMAX:
            layer.self_attn = _with_heads(layer.self_attn, heads, self._options)
        if self._plan.is_structured and hasattr(layer, "can_use_fastpath"):
            # Official fairseq 0.12.2 translates by a function of PyTorch for whole layers, which calls no self_attn and
            # wants the batch first, in all layers or in none.
            layer.can_use_fastpath = False
        return layer

    @property
    def source_attn(self) -> Optional[StructuredMultiheadAttention]:
        """The module with the head that parses, or None."""
        return None if self.parser is None else self.layers[self.parser.layer].self_attn

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        return_posterior: bool = False,
    ) -> Dict[str, Any]:
        """Encodes a batch as fairseq does.

        Args:
            src_tokens: ``[batch, src_len]``, padded on either side
            src_lengths, return_all_hiddens, token_embeddings: see fairseq
            return_posterior: also return the distribution over the heads of the words, or None, as
                ``"source_attention"``
        """
        given = (src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if not return_posterior:
            return super().forward(*given)
        if self.source_attn is None or self.parser is None:
            return {**super().forward(*given), "source_attention": None}
        with self.source_attn.observe(self.parser.head) as seen:
            encoded = super().forward(*given)
        return {**encoded, "source_attention": _only(seen, self.cfg).posterior}

    def source_attention(self, src_tokens: Tensor) -> ExpectedHeads:
        """What the head that parses finds in a batch ``[batch, src_len]``, padded on either side: the distribution over
        heads, with its marginals and the best tree, and the expected values, right-padded.

        Raises:
            ValueError: the model has no trees
        """
        if self.source_attn is None or self.parser is None:
            raise ValueError("--encoder-self-attention-heads: no head has a distribution over arcs: no trees to show")
        with self.source_attn.observe(self.parser.head) as seen:
            super().forward(src_tokens)
        found = _only(seen, self.cfg)
        assert isinstance(found.posterior, ArcDistribution)
        padding = RightPadding.of(src_tokens.eq(self.padding_idx))
        return ExpectedHeads(found.posterior, padding.pack(found.contexts, -2))


class StructuredTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder, whose attention to the source has structured heads; its self-attention has softmax.

    Args:
        cfg: fairseq's configuration of a Transformer, with :class:`.TransformerOptions`
        dictionary: dictionary of the target language
        embed_tokens: embeddings of the target language
        no_encoder_attn: no attention to the source

    Attributes:
        attending: layer and head whose attention is returned; None for the mean of the heads of the last layer
    """

    def __init__(self, cfg, dictionary, embed_tokens, no_encoder_attn: bool = False, output_projection=None):
        options, sizes = TransformerOptions.of(cfg), (cfg.decoder.layers, cfg.decoder.attention_heads)
        self._options, self._plan, self._built = options, options.cross_attention(*sizes), 0
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        self.attending = None if no_encoder_attn else options.attending(self._plan, *sizes)
        self.has_attention = not no_encoder_attn
        self.dropout_module.module_name = "TransformerDecoder"  # of --retain-dropout-modules

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False):
        """fairseq's hook."""
        layer = super().build_decoder_layer(cfg, no_encoder_attn)
        heads, self._built = self._plan.heads_of(self._built), self._built + 1
        if not no_encoder_attn:
            layer.encoder_attn = _with_heads(layer.encoder_attn, heads, self._options)
        return layer

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, Any]] = None,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        return_posterior: bool = False,
        **unused,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Decodes a batch, or its next words, as fairseq does.

        Args:
            return_posterior: also return the attention distributions

        Returns:
            scores of words ``[batch, tgt_len, vocabulary]`` (with `features_only`: features), and a dictionary with
            ``"attn"``, a list with the weights ``[batch, tgt_len, src_len]`` of the head ``attending``, in the order of
            ``src_tokens``; `alignment_layer` or `alignment_heads` ask for means over heads instead. With
            `return_posterior` it has two more entries, whose sentences are right-padded whatever the padding of
            ``src_tokens``. ``"posterior"`` is the distribution of this head for each target step, of batch shape
            ``[batch, tgt_len]``: of the first head of the last layer if the weights are a mean over heads; None
            without attention to the source. ``"source_attention"`` is the distribution over the heads of the source
            words, of batch shape ``[batch]``, or None (also if the encoder was not asked for it)

        Raises:
            ValueError: `return_posterior` with options of fairseq that keep the distributions from being returned
        """
        features, extra = self.extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
            return_posterior,
        )
        return (features if features_only else self.output_layer(features)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, Any]],
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        return_posterior: bool = False,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """:meth:`forward` without the output layer."""
        extract, posterior = super().extract_features, None
        given = (prev_output_tokens, encoder_out, incremental_state, full_context_alignment)
        alignment = (alignment_layer, alignment_heads)
        is_mean = self.attending is None or alignment != (None, None)
        if not self.has_attention or (is_mean and not return_posterior):
            features, extra = extract(*given, *alignment)
        else:
            layer, head = self.attending or (self.num_layers - 1, 0)
            with self.layers[layer].encoder_attn.observe(head) as seen:
                features, extra = extract(*given, *alignment)
            if return_posterior:
                posterior = _only(seen, self.cfg).posterior
            if seen and not is_mean:
                extra["attn"] = [seen[-1].weights.to(features)]
        if return_posterior:
            extra.update(posterior=posterior, source_attention=(encoder_out or {}).get("source_attention"))
        return features, extra


def _with_heads(attention, heads: str, options: TransformerOptions) -> StructuredMultiheadAttention:
    return structured(
        attention,
        heads=heads,
        scale=options.attention_scale,
        normalize=options.attention_normalize,
        roots=options.tree_roots,
        max_segment_length=options.attention_max_segment_length,
        estimator=options.attention_estimator,
        generation_estimator=options.attention_estimator_generation,
    )


def _only(seen: List[HeadAttention], cfg) -> HeadAttention:
    """What the head did whose distributions are wanted."""
    if cfg.checkpoint_activations:
        raise ValueError(
            "--checkpoint-activations forgets the distributions that a term of the loss needs: leave one of them out"
        )
    if not seen:
        raise ValueError(
            "--encoder-layerdrop and --decoder-layerdrop: the layer whose distributions a term of the loss needs was "
            "left out; choose another by --attention-head or --parser-head, or keep all layers"
        )
    return seen[-1]


@register_model_architecture("structattn_transformer", "structattn_transformer")
def base(options) -> None:
    """Vaswani et al. 2017, "base": fairseq's ``transformer``. Heads have softmax unless the options say otherwise."""
    base_architecture(options)


@register_model_architecture("structattn_transformer", "structattn_transformer_iwslt_de_en")
def iwslt_de_en(options) -> None:
    """The sizes of fairseq's ``transformer_iwslt_de_en``: 6 layers, 512 units, 4 heads."""
    transformer_iwslt_de_en(options)


@register_model_architecture("structattn_transformer", "structattn_transformer_wmt_en_de")
def wmt_en_de(options) -> None:
    """The sizes of fairseq's ``transformer_wmt_en_de``: 6 layers, 512 units, 8 heads."""
    transformer_wmt_en_de(options)
