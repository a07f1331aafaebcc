"""Options of ``structattn_transformer`` beside those of fairseq's ``transformer``."""

from dataclasses import dataclass, fields
from typing import FrozenSet, List, NamedTuple, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_structattn.distributions import distribution_names
from fairseq_structattn.distributions.semi_markov import MAX_SEGMENT_LENGTH
from fairseq_structattn.distributions.trees import ROOTS
from fairseq_structattn.models.option_checks import check_at_least, check_choices, check_estimators, flag, option
from fairseq_structattn.modules.attention import NORMALIZATIONS
from fairseq_structattn.modules.estimators import ESTIMATORS, EXPECTATION, estimators_help
from fairseq_structattn.modules.head_groups import SOFTMAX, HeadShare, is_over_arcs, parse_heads

ALL = "all"


class Place(NamedTuple):
    """An attention head of a stack of layers, both counted from 0."""

    layer: int
    head: int


class AttentionPlan(NamedTuple):
    """The distributions of the attention heads of a stack of layers.

    Attributes:
        heads: see :func:`~fairseq_structattn.modules.head_groups.parse_heads`; all other layers have softmax
        shares: `heads`, parsed
        layers: numbers of the layers with these heads
    """

    heads: str
    shares: List[HeadShare]
    layers: FrozenSet[int]

    @property
    def is_structured(self) -> bool:
        """Whether any head has another distribution than softmax."""
        return bool(self.layers) and any(share.distribution != SOFTMAX for share in self.shares)

    def heads_of(self, layer: int) -> str:
        """The heads of a layer."""
        return self.heads if layer in self.layers else SOFTMAX

    def first(self, over_arcs: bool) -> Optional[Place]:
        """The first head with structure in the last layer that has one, or with arcs in the first such layer."""
        head = 0
        for share in self.shares:
            if is_over_arcs(share.distribution) if over_arcs else share.distribution != SOFTMAX:
                return Place(min(self.layers) if over_arcs else max(self.layers), head) if self.layers else None
            head += share.heads
        return None

    def is_over_arcs(self, place: Place) -> bool:
        """Whether the head at `place` parses."""
        names = [share.distribution for share in self.shares for _ in range(share.heads)]
        return place.layer in self.layers and is_over_arcs(names[place.head])


@dataclass
class TransformerOptions(FairseqDataclass):
    """Options of :class:`~fairseq_structattn.models.transformer.StructuredTransformer`."""

    cross_attention_heads: str = option(
        SOFTMAX,
        "distributions of the heads with which the decoder attends to the source, such as softmax:4,linear-chain:2; "
        f"a name without a number has all other heads. Names: {', '.join(distribution_names())}, or one registered "
        "elsewhere, except distributions over arcs",
    )
    cross_attention_layers: str = option(
        ALL, "decoder layers with --cross-attention-heads: all, or numbers from 0 such as 4,5; the others have softmax"
    )
    encoder_self_attention_heads: str = option(
        SOFTMAX,
        "distributions of the heads of the encoder's self-attention, such as softmax:6,projective-tree:2; under a "
        "distribution over arcs each word attends to its head",
    )
    encoder_self_attention_layers: str = option(
        ALL, "encoder layers with --encoder-self-attention-heads: all, or numbers from 0"
    )
    attention_scale: float = option(1.0, "factor on the weights of heads over positions")
    attention_normalize: str = option(
        "sum",
        "sum: divide the marginals of heads over positions by their sum before scaling; none: use them as they are",
    )
    tree_roots: str = option(
        "multi", "words that may be attached to the root of a tree: multi (any number), single (one)"
    )
    attention_max_segment_length: int = option(
        MAX_SEGMENT_LENGTH, "longest segment, in positions, of heads with semi-markov"
    )
    attention_estimator: str = option(EXPECTATION, estimators_help("training"))
    attention_estimator_generation: str = option(EXPECTATION, estimators_help("validation and translation"))
    attention_head: Optional[str] = option(
        None,
        "LAYER.HEAD, both from 0: the head of the decoder whose weights and distributions the model returns (default: "
        "the first with structure in the last layer; with softmax alone, the mean of the heads of the last layer)",
    )
    parser_head: Optional[str] = option(
        None,
        "LAYER.HEAD, both from 0: the head of the encoder whose trees the model returns (default: the first over arcs)",
    )

    @classmethod
    def of(cls, given) -> "TransformerOptions":
        """The options among those of a namespace or a configuration of fairseq; defaults for what is missing."""
        found = {name: getattr(given, name, None) for name in (each.name for each in fields(cls)) if name != "_name"}
        return cls(**{name: value for name, value in found.items() if value is not None})

    def cross_attention(self, layers: int, heads: int) -> AttentionPlan:
        """The plan of a decoder's attention to the source.

        Raises:
            ValueError: options that cannot work, by name and value
        """
        plan = self._plan("cross_attention", layers, heads)
        for share in plan.shares:
            if is_over_arcs(share.distribution):
                raise ValueError(
                    f"--cross-attention-heads {plan.heads}: {share.distribution} is a distribution over arcs between "
                    "source words: it belongs into --encoder-self-attention-heads"
                )
        return plan

    def encoder_self_attention(self, layers: int, heads: int) -> AttentionPlan:
        """The plan of an encoder's self-attention.

        Raises:
            ValueError: options that cannot work, by name and value
        """
        return self._plan("encoder_self_attention", layers, heads)

    def attending(self, plan: AttentionPlan, layers: int, heads: int) -> Optional[Place]:
        """The place of the decoder's head to be returned; None for the mean of the last layer."""
        if self.attention_head is None:
            return plan.first(over_arcs=False)
        return _place("attention_head", self.attention_head, layers, heads)

    def parsing(self, plan: AttentionPlan, layers: int, heads: int) -> Optional[Place]:
        """The place of the encoder's head whose trees are to be returned, if there are trees."""
        if self.parser_head is None:
            return plan.first(over_arcs=True)
        place = _place("parser_head", self.parser_head, layers, heads)
        if not plan.is_over_arcs(place):
            raise ValueError(
                f"--parser-head {self.parser_head}: this head has no distribution over arcs; choose one that has by "
                f"--encoder-self-attention-heads {plan.heads} and --encoder-self-attention-layers"
            )
        return place

    def check(self, given) -> None:
        """Raises ValueError for options that cannot work, naming the option, its value and valid values.

        Args:
            given: all options, fairseq's included
        """
        check_choices(
            self,
            attention_normalize=NORMALIZATIONS,
            tree_roots=ROOTS,
            attention_estimator=ESTIMATORS,
            attention_estimator_generation=ESTIMATORS,
        )
        check_at_least(self, 1, "attention_max_segment_length")
        if self.attention_scale <= 0:
            raise ValueError(f"--attention-scale {self.attention_scale}: must be greater than 0")
        sizes = given.encoder_layers, given.encoder_attention_heads
        of_encoder = self.encoder_self_attention(*sizes)
        self.parsing(of_encoder, *sizes)
        sizes = given.decoder_layers, given.decoder_attention_heads
        of_decoder = self.cross_attention(*sizes)
        self.attending(of_decoder, *sizes)
        check_estimators(self, [share.distribution for plan in (of_encoder, of_decoder) for share in plan.shares])
        _check_of_fairseq(given, [of_encoder, of_decoder])

    def _plan(self, name: str, layers: int, heads: int) -> AttentionPlan:
        specification = getattr(self, f"{name}_heads")
        try:
            shares = parse_heads(specification, heads)
        except ValueError as error:
            raise ValueError(f"{flag(name)}-heads: {error}") from None
        chosen = _numbers(f"{flag(name)}-layers", getattr(self, f"{name}_layers"), layers)
        return AttentionPlan(specification, shares, chosen)


def _numbers(of: str, text: str, layers: int) -> FrozenSet[int]:
    if text == ALL:
        return frozenset(range(layers))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) < layers for part in parts):
        raise ValueError(f"{of} {text}: write all, or numbers of layers from 0 to {layers - 1} such as 0,{layers - 1}")
    return frozenset(map(int, parts))


def _place(name: str, text: str, layers: int, heads: int) -> Place:
    layer, _, head = text.partition(".")
    if not (layer.isdigit() and head.isdigit() and int(layer) < layers and int(head) < heads):
        raise ValueError(
            f"{flag(name)} {text}: write LAYER.HEAD, with a layer from 0 to {layers - 1} and a head from 0 to "
            f"{heads - 1}"
        )
    return Place(int(layer), int(head))


def _check_of_fairseq(given, plans: List[AttentionPlan]) -> None:
    """Refuses options of fairseq that structured heads do not have."""
    structured = [plan.heads for plan in plans if plan.is_structured]
    if not structured:
        return
    for name in ("quant_noise_pq", "encoder_xformers_att_config", "no_cross_attention", "cross_self_attention"):
        value = getattr(given, name, None)
        if value:
            raise ValueError(f"{flag(name)} {value} does not go together with heads {structured[0]}: leave one out")
