"""Multi-head attention in which every head may have another distribution."""

import uuid
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fairseq_structattn.distributions import StructuredDistribution
from fairseq_structattn.distributions.semi_markov import MAX_SEGMENT_LENGTH
from fairseq_structattn.distributions.trees import ROOTS
from fairseq_structattn.modules.attention import NORMALIZATIONS
from fairseq_structattn.modules.estimators import EXPECTATION, Estimator
from fairseq_structattn.modules.head_groups import SOFTMAX, ArcHeads, HeadGroup, Settings, build_group, parse_heads
from fairseq_structattn.modules.right_padding import RightPadding

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


class HeadAttention(NamedTuple):
    """The attention of one head in one call.

    Attributes:
        weights: ``[batch, tgt_len, src_len]``, in the order of the keys, without dropout
        posterior: its distribution, of batch shape ``[batch, tgt_len]`` or, over arcs, ``[batch]``. Keys, and over arcs
            queries too, are right-padded, wherever the padding was
        contexts: expected values ``[batch, tgt_len, head_dim]``, in the order of the queries
    """

    weights: Tensor
    posterior: StructuredDistribution
    contexts: Tensor


# The heads that are observed in this thread: for the name of a module, the number of the head and what it did.
_OBSERVED: ContextVar[Optional[Dict[str, Tuple[int, List[HeadAttention]]]]] = ContextVar("observed heads", default=None)


class StructuredMultiheadAttention(nn.Module):
    """Stands in for fairseq's ``MultiheadAttention``: the weights of a head are marginals of its distribution.

    Vaswani et al., "Attention Is All You Need" (NIPS 2017), section 3.2.2, where every head has a softmax. The first
    arguments, the parameters and their initial values are those of fairseq, so that its checkpoints load. Structured
    heads have further parameters, see :mod:`.head_groups`, which keep their initial values if a checkpoint does not
    have them. Padding may be anywhere. Inference is in float32 at least.

    Args:
        embed_dim: size of a query and of the result
        num_heads: number of heads; it divides `embed_dim`
        kdim, vdim: sizes of keys and values (default: `embed_dim`)
        dropout: probability of dropout on weights
        bias: whether projections have a bias
        add_bias_kv, add_zero_attn, q_noise, xformers_att_config: must have their default values
        self_attention: keys and values are the queries; heads over arcs need it
        encoder_decoder_attention: keys and values are the states of an encoder
        heads: the distributions of the heads, see :func:`~fairseq_structattn.modules.head_groups.parse_heads`
        scale, normalize: of weights of heads over positions, see
            :class:`~fairseq_structattn.modules.attention.StructuredAttention`
        roots: for trees, number of words that may be attached to the root: ``"multi"`` or ``"single"``
        max_segment_length, estimator, generation_estimator: see
            :class:`~fairseq_structattn.modules.attention.StructuredAttention`

    Raises:
        ValueError: heads that cannot work, by name, and options of fairseq that are not supported, by name

    Example:
        >>> attention = StructuredMultiheadAttention(8, 4, self_attention=True, heads="softmax:2,projective-tree:2")
        >>> states = torch.randn(5, 3, 8)  # [length, batch, embed_dim]
        >>> attended, weights = attention(states, states, states, need_head_weights=True)
        >>> attended.shape, weights.shape
        (torch.Size([5, 3, 8]), torch.Size([4, 3, 5, 5]))
    """

    dropout_module: nn.Module

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        self_attention: bool = False,
        encoder_decoder_attention: bool = False,
        dictionary=None,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
        xformers_att_config: Optional[str] = None,
        xformers_blocksparse_layout: Optional[Tensor] = None,
        xformers_blocksparse_blocksize: Optional[int] = 16,
        *,
        heads: str = SOFTMAX,
        scale: float = 1.0,
        normalize: str = "sum",
        roots: str = "multi",
        max_segment_length: int = MAX_SEGMENT_LENGTH,
        estimator: str = EXPECTATION,
        generation_estimator: str = EXPECTATION,
    ):
        super().__init__()
        _refuse(
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            q_noise=q_noise,
            xformers_att_config=xformers_att_config,
            xformers_blocksparse_layout=xformers_blocksparse_layout,
        )
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim is {embed_dim}; it must be a multiple of num_heads, {num_heads}")
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"normalize is {normalize!r}; choose one of: {', '.join(NORMALIZATIONS)}")
        if roots not in ROOTS:
            raise ValueError(f"roots is {roots!r}; choose one of: {', '.join(ROOTS)}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.qkv_same_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.scaling = self.head_dim**-0.5
        self.self_attention, self.encoder_decoder_attention = self_attention, encoder_decoder_attention
        self.dropout_module = nn.Dropout(dropout)
        self.k_proj = nn.Linear(self.kdim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(self.vdim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()
        settings = Settings(
            self.head_dim, scale, normalize, roots, max_segment_length, Estimator(estimator, generation_estimator)
        )
        self.groups = nn.ModuleList(build_group(share, settings) for share in parse_heads(heads, num_heads))
        self._state_name = f"{uuid.uuid4()}.attn_state"
        for group in self._groups():
            if isinstance(group, ArcHeads) and not self_attention:
                raise ValueError(
                    f"heads is {heads!r}: {group.name} is a distribution over arcs between the words of one sentence, "
                    "which only self-attention has; choose a distribution over positions"
                )

    def reset_parameters(self) -> None:
        """Initialises the projections as fairseq does."""
        gain = 2**-0.5 if self.qkv_same_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attends to the keys from every query.

        Args:
            query: ``[tgt_len, batch, embed_dim]``
            key: ``[src_len, batch, kdim]``; not used in self-attention, nor where `static_kv` finds cached keys
            value: ``[src_len, batch, vdim]``, likewise
            key_padding_mask: True at keys that are padding, ``[batch, src_len]``
            incremental_state: holds keys and values between calls
            need_weights: return weights, the mean over heads
            static_kv: keys and values are the same at every call with the same `incremental_state`
            attn_mask: added to the scores of heads over positions, ``[tgt_len, src_len]``; booleans forbid
            before_softmax: return scores ``[batch · heads, tgt_len, src_len]``, −inf in padding, and values
                ``[batch · heads, src_len, head_dim]`` instead; for softmax in all heads
            need_head_weights: return the weights of each head

        Returns:
            results ``[tgt_len, batch, embed_dim]`` and weights ``[batch, tgt_len, src_len]``, with
            `need_head_weights` ``[heads, batch, tgt_len, src_len]``, or None; both in the order of queries and keys,
            the weights in float32 at least

        Raises:
            ValueError: shapes that do not fit, and arguments that structured heads cannot take, by name
        """
        self._check(query, key, incremental_state, static_kv, attn_mask, before_softmax)
        queries = self._split(self.q_proj(query) * self.scaling)
        keys, values, mask = self._keys_and_values(query, key, value, key_padding_mask, incremental_state, static_kv)
        scores = torch.bmm(queries, keys.transpose(1, 2))
        if attn_mask is not None:
            scores = scores + _additive(attn_mask, scores.dtype)
        if before_softmax:
            return self._without_padding(scores, mask), values
        scores, queries, values = map(self._by_sentence, (scores, queries, values))
        contexts, weights = self._attend(scores, queries, values, mask)
        tgt_len, batch = query.shape[:2]
        attended = self.out_proj(contexts.permute(2, 0, 1, 3).reshape(tgt_len, batch, self.embed_dim))
        if need_head_weights:
            return attended, weights.transpose(0, 1)
        return attended, weights.mean(1) if need_weights else None

    @contextmanager
    def observe(self, head: int) -> Iterator[List[HeadAttention]]:
        """A context that collects the attention of a head, in a list with an entry for each call of the module.

        Args:
            head: number of the head, counted from 0 in the order of `heads`

        Raises:
            ValueError: there is no such head
        """
        if not 0 <= head < self.num_heads:
            raise ValueError(f"there is no head {head}; the heads are numbered from 0 to {self.num_heads - 1}")
        found: List[HeadAttention] = []
        token = _OBSERVED.set({**(_OBSERVED.get() or {}), self._state_name: (head, found)})
        try:
            yield found
        finally:
            _OBSERVED.reset(token)

    def reorder_incremental_state(
        self, incremental_state: Optional[IncrementalState], new_order: Tensor
    ) -> Optional[IncrementalState]:
        """Keeps the hypotheses `new_order` ``[new_batch]`` of a beam search."""
        cached = self._get_input_buffer(incremental_state)
        if cached:
            kept = {name: None if part is None else part.index_select(0, new_order) for name, part in cached.items()}
            self._set_input_buffer(incremental_state, kept)
        return incremental_state

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Lets checkpoints without the parameters of structured heads load: these parameters keep their values."""
        for own, value in self.groups.state_dict().items():
            state_dict.setdefault(f"{name}.groups.{own}" if name else f"groups.{own}", value.clone())

    # fairseq's layers read and write the cache by these names.

    def _get_input_buffer(self, incremental_state: Optional[IncrementalState]) -> Dict[str, Optional[Tensor]]:
        return {} if incremental_state is None else incremental_state.get(self._state_name, {})

    def _set_input_buffer(
        self, incremental_state: Optional[IncrementalState], buffer: Dict[str, Optional[Tensor]]
    ) -> Optional[IncrementalState]:
        if incremental_state is not None:
            incremental_state[self._state_name] = buffer
        return incremental_state

    def _check(self, query, key, incremental_state, static_kv, attn_mask, before_softmax) -> None:
        if query.size(-1) != self.embed_dim:
            raise ValueError(f"query has {query.size(-1)} dimensions; embed_dim is {self.embed_dim}")
        if key is not None and key.size(1) != query.size(1):
            raise ValueError(
                f"key has {key.size(1)} sentences and query {query.size(1)}; repeat the sentences of the encoder for "
                "each hypothesis"
            )
        structured = [group.name for group in self._groups() if group.name != SOFTMAX]
        if not structured:
            return
        causal = self.self_attention and (attn_mask is not None or incremental_state is not None)
        if causal or (incremental_state is not None and not static_kv):
            raise ValueError(
                f"{structured[0]} heads select among all positions at once; attention to earlier positions only "
                "(attn_mask, incremental_state) needs softmax in all heads"
            )
        if before_softmax:
            raise ValueError(f"before_softmax needs softmax in all heads; there are {structured[0]} heads")

    def _keys_and_values(
        self, query, key, value, mask, incremental_state, static_kv
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """Keys and values ``[batch · heads, src_len, head_dim]`` and the mask of padding, with those of earlier calls.
        The cache has the entries of fairseq's."""
        cached = self._get_input_buffer(incremental_state)
        earlier_keys, earlier_values = cached.get("prev_key"), cached.get("prev_value")
        earlier_mask = cached.get("prev_key_padding_mask")
        if static_kv and earlier_keys is not None and earlier_values is not None:
            return earlier_keys.flatten(0, 1), earlier_values.flatten(0, 1), earlier_mask
        if self.self_attention:
            key = value = query
        if key is None or value is None:
            raise ValueError(
                "key and value are None, and there are none of an earlier call; give the states to attend to"
            )
        keys, values = self._split(self.k_proj(key)), self._split(self.v_proj(value))
        if earlier_keys is not None and earlier_values is not None:
            now = torch.zeros(query.size(1), keys.size(1), dtype=torch.bool, device=keys.device)
            mask = _longer_mask(earlier_mask, mask, earlier_keys.size(2), now)
            keys = torch.cat((earlier_keys.flatten(0, 1), keys), 1)
            values = torch.cat((earlier_values.flatten(0, 1), values), 1)
        if incremental_state is not None:
            buffer = {"prev_key": self._by_sentence(keys), "prev_value": self._by_sentence(values)}
            self._set_input_buffer(incremental_state, {**buffer, "prev_key_padding_mask": mask})
        return keys, values, mask

    def _attend(self, scores: Tensor, queries: Tensor, values: Tensor, mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Contexts ``[batch, heads, tgt_len, head_dim]`` and weights ``[batch, heads, tgt_len, src_len]``, for scores
        of the shape of the weights."""
        padding = RightPadding.of(mask)
        # Below float32 inference is not accurate.
        scores = scores if scores.dtype == torch.float64 else scores.float()
        found, first = [], 0
        for group in self._groups():
            own = slice(first, first + group.heads)
            found.append(self._attend_by(group, first, scores[:, own], queries[:, own], values[:, own], padding))
            first = own.stop
        contexts, weights = zip(*found)
        return _joined(contexts), _joined(weights)

    def _attend_by(
        self, group: HeadGroup, first: int, scores: Tensor, queries: Tensor, values: Tensor, padding: RightPadding
    ) -> Tuple[Tensor, Tensor]:
        """:meth:`_attend` for the heads of a group, whose first head has the number `first`."""
        scores = padding.pack(scores, -1)
        if isinstance(group, ArcHeads):
            scores, queries = padding.pack(scores, -2), padding.pack(queries, -2)
        weights, root = group.weights_of(group.distribution_of(scores, queries, padding.lengths))
        weights = padding.unpack(weights, -1)
        if isinstance(group, ArcHeads):
            weights = padding.unpack(weights, -2)
        contexts = torch.matmul(self.dropout_module(weights.to(values.dtype)), values)
        if isinstance(group, ArcHeads) and root is not None:
            root = self.dropout_module(padding.unpack(root, -1).to(values.dtype))
            contexts = contexts + torch.einsum("bht,hd->bhtd", root, group.root_value.to(root.dtype))
        head, seen = (_OBSERVED.get() or {}).get(self._state_name, (-1, []))
        if first <= head < first + group.heads:
            posterior = group.of_head(head - first, scores, queries, padding.lengths)
            seen.append(HeadAttention(weights[:, head - first], posterior, contexts[:, head - first]))
        return contexts, weights

    def _without_padding(self, scores: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Scores ``[batch · heads, tgt_len, src_len]`` with −inf in padding."""
        if mask is None:
            return scores
        forbidden = mask.to(torch.bool)[:, None, None]
        return self._by_sentence(scores).masked_fill(forbidden, float("-inf")).flatten(0, 1)

    def _groups(self) -> Iterator[HeadGroup]:
        for group in self.groups:
            assert isinstance(group, HeadGroup)
            yield group

    def _split(self, states: Tensor) -> Tensor:
        """From ``[length, batch, embed_dim]`` to ``[batch · heads, length, head_dim]``."""
        length, batch, _ = states.shape
        return states.contiguous().view(length, batch * self.num_heads, self.head_dim).transpose(0, 1)

    def _by_sentence(self, parts: Tensor) -> Tensor:
        """From ``[batch · heads, ...]`` to ``[batch, heads, ...]``."""
        return parts.unflatten(0, (-1, self.num_heads))


def structured(attention: Any, **options) -> StructuredMultiheadAttention:
    """The structured form of a ``MultiheadAttention`` of fairseq: it has the same projections, and the same dropout.

    Args:
        attention: a module of fairseq, of which a model may have any number
        options: `heads` and what follows it, of :class:`StructuredMultiheadAttention`

    Raises:
        ValueError: see :class:`StructuredMultiheadAttention`
    """
    # The projections and all later modules of the model keep their initial values.
    with torch.random.fork_rng(devices=[]):
        made = StructuredMultiheadAttention(
            attention.embed_dim,
            attention.num_heads,
            attention.kdim,
            attention.vdim,
            add_bias_kv=attention.bias_k is not None,
            add_zero_attn=attention.add_zero_attn,
            self_attention=attention.self_attention,
            encoder_decoder_attention=attention.encoder_decoder_attention,
            xformers_att_config="given" if getattr(attention, "use_xformers", False) else None,
            **options,
        )
    for name in ("dropout_module", "k_proj", "v_proj", "q_proj", "out_proj"):
        setattr(made, name, getattr(attention, name))
    return made


def _refuse(**options) -> None:
    for name, value in options.items():
        if value:
            raise ValueError(f"{name} is {value!r}: structured attention does not have it; leave it out")


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores; of booleans, True forbids."""
    if mask.is_floating_point():
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask.to(torch.bool), float("-inf"))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Parts of all heads ``[batch, heads, ...]``, from those of the groups."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), 1)


def _longer_mask(before: Optional[Tensor], now: Optional[Tensor], earlier: int, later: Tensor) -> Optional[Tensor]:
    """The mask of `earlier` positions and those of `later` ``[batch, length]``; None without padding."""
    if before is None and now is None:
        return None
    before = later.new_zeros(later.size(0), earlier) if before is None else before.to(torch.bool)
    return torch.cat((before, later if now is None else now.to(torch.bool)), 1)
