"""A convolutional model of fairseq whose decoder attends to the source by exact inference."""

from fairseq.models import register_model, register_model_architecture
from fairseq.models.lightconv import LightConvModel, base_architecture, lightconv_iwslt_de_en

import fairseq_structattn  # noqa: F401  (repairs what the installed fairseq gets wrong, registers the criterion)
from fairseq_structattn.modules.head_groups import SOFTMAX
from fairseq_structattn.modules.multihead_attention import structured


@register_model("structured_lightconv")
class StructuredLightConv(LightConvModel):
    """``lightconv`` (Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions", ICLR 2019) with
    ``--cross-attention-heads``; all other options are those of ``lightconv``, whose checkpoints load."""

    @staticmethod
    def add_args(parser) -> None:
        LightConvModel.add_args(parser)
        parser.add_argument("--cross-attention-heads", help="such as softmax:4,linear-chain:4 (default: softmax)")

    @classmethod
    def build_model(cls, args, task):
        model = super().build_model(args, task)
        heads = getattr(args, "cross_attention_heads", None) or SOFTMAX
        for layer in model.decoder.layers:
            layer.encoder_attn = structured(layer.encoder_attn, heads=heads)
        return model


@register_model_architecture("structured_lightconv", "structured_lightconv")
def structured_lightconv(args) -> None:
    base_architecture(args)


@register_model_architecture("structured_lightconv", "structured_lightconv_iwslt_de_en")
def structured_lightconv_iwslt_de_en(args) -> None:
    lightconv_iwslt_de_en(args)
