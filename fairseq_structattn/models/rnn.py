"""``structattn_rnn``: a recurrent encoder-decoder whose attention is any distribution of this package."""

from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder, register_model
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor, nn

from fairseq_structattn.distributions import StructuredDistribution
from fairseq_structattn.models.decoder_graphs import DecoderGraphs, Looped
from fairseq_structattn.models.encoder_output import EncoderOutput
from fairseq_structattn.models.pretrained import is_built_for_checkpoint, load_pretrained
from fairseq_structattn.models.renamed_parameters import SOURCE_ATTENTION, rename
from fairseq_structattn.models.rnn_options import NO_ATTENTION, RNNOptions
from fairseq_structattn.modules.attention import Attend, AttentionSource, AttentionSteps, StructuredAttention
from fairseq_structattn.modules.bridge import STARTS
from fairseq_structattn.modules.embeddings import TiedOutput, WordEmbedding
from fairseq_structattn.modules.estimators import Estimator
from fairseq_structattn.modules.readout import READOUTS
from fairseq_structattn.modules.recurrent import DecoderRNN, SentenceRNN, State, stack_state, unstack_state
from fairseq_structattn.modules.source_attention import SCORERS, ExpectedHeads, SourceAttention
from fairseq_structattn.modules.span_attention import ExpectedSpans, SpanAttention, span_attention_names

IncrementalState = Dict[str, Dict[str, Tensor]]


class DecoderStep(NamedTuple):
    """The results of one target step: the state used as query ``[batch, hidden]``, its context ``[batch, source_dim]``
    (None without attention), and the features fed to the next step ``[batch, feed_dim]`` (None without feeding)."""

    hidden: Tensor
    context: Optional[Tensor]
    feed: Optional[Tensor]


class Decoded(NamedTuple):
    """The results of the target steps of a call: features ``[tgt_len, batch, output_dim]``, weights ``[batch, tgt_len,
    src_len]`` and their distribution (None without attention). The next call starts from the other fields: the state,
    the features fed to its first step, and coverage ``[batch, src_len, size]`` (or None). Where target steps ran one
    after the other, `attend` has the attention of each."""

    features: Tensor
    weights: Optional[Tensor]
    posterior: Callable[[], Optional[StructuredDistribution]]
    state: State
    feed: Tensor
    coverage: Optional[Tensor]
    attend: Optional[AttentionSteps] = None


@register_model("structattn_rnn", dataclass=RNNOptions)
class StructuredAttentionRNN(FairseqEncoderDecoderModel):
    """Encoder-decoder with attention over structures (Kim et al. 2017); its architectures are in
    :mod:`~fairseq_structattn.models.rnn_architectures`.

    With ``return_posterior=True``, ``forward`` also returns the attention distributions, see
    :meth:`RNNDecoder.forward`. Criterions check ``has_posterior`` before they ask for them.
    """

    has_posterior = True

    @classmethod
    def build_model(cls, cfg, task) -> "StructuredAttentionRNN":
        """Builds the model for the dictionaries of `task`.

        Args:
            cfg: the options, as fairseq's configuration, a namespace or :class:`RNNOptions`
            task: a fairseq task with ``source_dictionary`` and ``target_dictionary``

        Raises:
            ValueError: options that cannot work, by name and value; an invalid file of pretrained embeddings, by line
        """
        options = RNNOptions.from_namespace(cfg)
        options.check()
        source_embedding, target_embedding = _build_embeddings(options, task)
        attention = cls.build_attention(options)
        encoder = RNNEncoder(options, task.source_dictionary, source_embedding, attention)
        decoder = RNNDecoder(options, task.target_dictionary, target_embedding, encoder.rnn.final_dim, attention)
        model = cls(encoder, decoder)
        _initialize(model, options.init_range)
        if not is_built_for_checkpoint():
            if options.encoder_embed_path:
                load_pretrained(source_embedding, task.source_dictionary, "encoder", options.encoder_embed_path)
            if options.decoder_embed_path:
                load_pretrained(target_embedding, task.target_dictionary, "decoder", options.decoder_embed_path)
        return model

    @classmethod
    def build_attention(cls, options: RNNOptions) -> Optional[StructuredAttention]:
        """The attention of the decoder; None without. A model of one's own may override it."""
        if options.attention_distribution == NO_ATTENTION:
            return None
        return StructuredAttention(
            query_dim=options.decoder_hidden_size,
            source_dim=options.source_dim(),
            score=options.attention_score,
            distribution=options.attention_distribution,
            hidden_dim=options.attention_hidden_size or options.decoder_hidden_size,
            scale=options.attention_scale,
            normalize=options.attention_normalize,
            roots=options.tree_roots,
            coverage=options.attention_coverage,
            coverage_size=options.attention_coverage_size,
            max_fertility=options.attention_max_fertility,
            couplings=options.attention_couplings,
            max_segment_length=options.attention_max_segment_length,
            estimator=options.attention_estimator,
            generation_estimator=options.attention_estimator_generation,
        )

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Optional[Sequence[str]] = None, **options
    ):
        """fairseq calls this before translation. With ``--retain-dropout``, dropout stays on in all modules or, with
        ``--retain-dropout-modules``, in those of ``RNNEncoder`` and ``RNNDecoder`` that are named."""
        super().make_generation_fast_(**options)
        for part in (self.encoder, self.decoder) if retain_dropout else ():
            if retain_dropout_modules is None or type(part).__name__ in retain_dropout_modules:
                part.train()


class RNNEncoder(FairseqEncoder):
    """Embeddings and a stacked LSTM or GRU; with source attention, states are concatenated with expected heads.

    Args:
        options: options of the model
        dictionary: dictionary of the source language
        embed_tokens: embeddings of the source language
        attention: attention of the decoder, which computes keys from source states
    """

    def __init__(
        self, options: RNNOptions, dictionary, embed_tokens: WordEmbedding, attention: Optional[StructuredAttention]
    ):
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.padding_idx = dictionary.pad()
        self.dropout_in = options.dropout_of("encoder_dropout_in")
        self.dropout_out = options.dropout_of("encoder_dropout_out")
        self.rnn = SentenceRNN(
            options.cell,
            embed_tokens.embedding_dim,
            options.encoder_hidden_size,
            options.encoder_layers,
            options.encoder_bidirectional,
            options.dropout_of("layer_dropout"),
            reads_lengths=True,
        )
        self.source_attn = _build_source_attention(options)
        self.max_source_positions = options.max_source_positions
        # The encoder runs this part of the decoder's attention once per sentence. Its modules are registered in the
        # encoder to keep the names in checkpoints and the order of parameters, which determines initial values for a
        # seed and the assignment of optimizer states.
        self.prepare = _states_alone if attention is None else attention.prepare
        self.key_projection = nn.Identity() if attention is None else attention.score.key_projection
        coverage = None if attention is None else attention.coverage
        self.coverage_projection = None if coverage is None else coverage.source_projection
        self.arc_scorer = _build_scorer(options) if attention and attention.distribution.needs_arcs else None
        # Models with a parser put this root symbol before every sentence: "$" in Kim et al. 2017, section 4.1.
        parses = self.source_attn is not None or self.arc_scorer is not None
        self.root = nn.Parameter(torch.randn(embed_tokens.embedding_dim)) if parses else None

    def forward(
        self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, return_posterior: bool = False, **unused
    ) -> EncoderOutput:
        """Encodes a batch.

        Args:
            src_tokens: ``[batch, src_len]``, padded on the left or on the right, possibly wider than its longest
                sentence
            src_lengths: not used, since padding is recognised by its symbol
            return_posterior: store the distribution over the heads of the words in ``heads``
        """
        heads = None
        embedded, states, finals, lengths, left_padding = self._read(src_tokens)
        words = states if self.root is None else states[:, 1:]
        if self.source_attn is not None:
            heads, vectors = self.source_attn(embedded, states, lengths)
            words = torch.cat((words, vectors), -1)
        words = F.dropout(words, self.dropout_out, self.training)
        arcs = None if self.arc_scorer is None else self.arc_scorer(embedded[:-1], (lengths - 1).clamp(min=0))
        source = self.prepare(words, lengths, arcs)
        return EncoderOutput(source, left_padding, finals, heads if return_posterior else None)

    def source_attention(self, src_tokens: Tensor) -> Union[ExpectedHeads, ExpectedSpans]:
        """The result of ``--source-attention`` for a batch ``[batch, src_len]``, padded on either side: the
        distribution over heads, or over binary trees, with its marginals and the best tree, and the expected vectors.

        Raises:
            ValueError: the model has no source attention
        """
        if self.source_attn is None:
            raise ValueError("this model was trained with --source-attention none: it has no trees to show")
        embedded, states, _, lengths, _ = self._read(src_tokens)
        return self.source_attn(embedded, states, lengths)

    def _read(self, src_tokens: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Right-padded embeddings ``[src_len, batch, embed_dim]`` and states ``[batch, src_len, state_dim]``, both with
        the root first if there is one; final states; lengths without the root, and left padding, each ``[batch]``."""
        lengths = src_tokens.ne(self.padding_idx).sum(1)
        left_padding = src_tokens.ne(self.padding_idx).cumsum(1).eq(0).sum(1)
        embedded = self.embed_tokens(rotate_left(src_tokens, left_padding)).transpose(0, 1)
        if self.root is not None:
            root = self.root.to(embedded.dtype).expand(1, embedded.size(1), -1)
            embedded = torch.cat((root, embedded))
        embedded = F.dropout(embedded, self.dropout_in, self.training)
        states, finals = self.rnn(embedded, lengths if self.root is None else lengths + 1)
        return embedded, states.transpose(0, 1), finals, lengths, left_padding

    def reorder_encoder_out(self, encoder_out: EncoderOutput, new_order: Tensor) -> EncoderOutput:
        """See :meth:`EncoderOutput.reorder`."""
        return encoder_out.reorder(new_order)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """Lets checkpoints of version 0.1.0 load."""
        rename(state_dict, name, *SOURCE_ATTENTION)

    def max_positions(self) -> int:
        """Longest source sentence, in tokens."""
        return self.max_source_positions


class RNNDecoder(FairseqIncrementalDecoder):
    """Stacked LSTM or GRU that attends to the source.

    If no input of the recurrence depends on earlier attention, all target steps run at once and attention is one call.
    With input feeding, the previous state as query, or coverage, target steps run one after the other.

    Args:
        options: options of the model
        dictionary: dictionary of the target language
        embed_tokens: embeddings of the target language
        final_dim: size of a final state of an encoder layer
        attention: attention to the source; None for the plain encoder-decoder
    """

    def __init__(
        self,
        options: RNNOptions,
        dictionary,
        embed_tokens: WordEmbedding,
        final_dim: int,
        attention: Optional[StructuredAttention],
    ):
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.attention = attention
        self.dropout_in = options.dropout_of("decoder_dropout_in")
        self.dropout_out = options.dropout_of("decoder_dropout_out")
        self.max_target_positions = options.max_target_positions
        self.graphs = DecoderGraphs() if options.decoder_graphs else None
        self.query_previous = options.attention_query == "previous"
        self.has_coverage = attention is not None and attention.coverage is not None
        embed_dim, hidden_size = embed_tokens.embedding_dim, options.decoder_hidden_size
        out_embed_dim = options.decoder_out_embed_dim
        context_dim = 0 if attention is None else options.source_dim()
        self.readout = READOUTS[options.decoder_readout](hidden_size, context_dim, embed_dim, out_embed_dim)
        self.feed_dim = self.readout.output_dim if options.input_feeding else 0
        self.rnn = DecoderRNN(
            options.cell,
            embed_dim + (context_dim if self.query_previous else 0) + self.feed_dim,
            hidden_size,
            options.decoder_layers,
            options.dropout_of("layer_dropout"),
        )
        self.start = STARTS[options.decoder_start](
            final_dim, hidden_size, options.encoder_layers, options.decoder_layers, self.rnn.state_size
        )
        self.narrowing = None
        if self.readout.output_dim != out_embed_dim:
            self.narrowing = nn.Linear(self.readout.output_dim, out_embed_dim)
        self.output_projection = self._build_output(options, len(dictionary))
        self.adaptive_softmax = self._build_adaptive_softmax(options, len(dictionary))

    def _build_output(self, options: RNNOptions, words: int) -> Optional[nn.Linear]:
        if options.adaptive_softmax_cutoff:
            return None
        if options.share_decoder_input_output_embed or options.share_all_embeddings:
            return TiedOutput(self.embed_tokens)
        return nn.Linear(options.decoder_out_embed_dim, words)

    def _build_adaptive_softmax(self, options: RNNOptions, words: int) -> Optional[AdaptiveSoftmax]:
        cutoff = options.adaptive_softmax_cutoff
        if not cutoff:
            return None
        if cutoff[-1] > words:
            raise ValueError(
                f"--adaptive-softmax-cutoff {','.join(map(str, cutoff))}: the target dictionary has only {words} "
                "words, and no cutoff may exceed that"
            )
        return AdaptiveSoftmax(words, options.decoder_out_embed_dim, list(cutoff), dropout=self.dropout_out)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOutput,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        return_posterior: bool = False,
        **unused,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Decodes a batch, or its next words.

        Args:
            prev_output_tokens: ``[batch, tgt_len]``, the target shifted right
            encoder_out: result of the encoder
            incremental_state: dictionary that holds the state between steps; from the second call on, only the last
                token is read
            features_only: leave out the output layer
            return_posterior: also return the attention distributions

        Returns:
            scores of words ``[batch, tgt_len, vocabulary]`` (with an adaptive softmax or `features_only`: features
            ``[batch, tgt_len, decoder_out_embed_dim]``), and ``{"attn": [weights]}`` with weights
            ``[batch, tgt_len, src_len]`` in the order of ``src_tokens``, None without attention. With
            `return_posterior` the dictionary has two more entries, whose sentences are right-padded whatever the
            padding of ``src_tokens``. ``"posterior"`` is the distribution over the source for each target step, of
            batch shape ``[batch, tgt_len]``, or None. ``"source_attention"`` is the distribution over the heads of the
            source words, of batch shape ``[batch]``, or None (also if the encoder was not asked for it)
        """
        features, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, return_posterior=return_posterior
        )
        return (features if features_only else self.output_layer(features)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOutput,
        incremental_state: Optional[IncrementalState] = None,
        return_posterior: bool = False,
        **unused,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """:meth:`forward` without the output layer."""
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
        searches = incremental_state is not None and prev_output_tokens.size(1) == 1
        if self.has_coverage or return_posterior or not searches:
            searches, encoder_out = False, encoder_out.expanded()
        embedded = F.dropout(self.embed_tokens(prev_output_tokens), self.dropout_in, self.training).transpose(0, 1)
        start = self._initial_state(encoder_out, embedded) if cached is None else self._unpack(cached)
        one_by_one = self.query_previous or self.feed_dim or self.has_coverage
        run = self._step_by_step if one_by_one else self._all_at_once
        if self.graphs is not None and self._is_training_step(incremental_state) and self.graphs.takes(embedded):
            run = partial(self._from_graphs, self.graphs)
        if searches:
            run = self._next_word
        decoded = run(embedded, *start, encoder_out.source)
        self.set_incremental_state(incremental_state, "decoder", self._pack(decoded))
        features, weights = decoded.features, decoded.weights
        if weights is not None:
            weights = rotate_right(weights, encoder_out.left_padding).reshape(embedded.size(1), -1, weights.size(-1))
        if self.narrowing is not None:
            features = F.dropout(self.narrowing(features), self.dropout_out, self.training)
        extra: Dict[str, Any] = {"attn": [weights]}
        if return_posterior:
            extra.update(posterior=decoded.posterior(), source_attention=encoder_out.heads)
        return features.transpose(0, 1), extra

    def output_layer(self, features: Tensor, **unused) -> Tensor:
        """Scores of words; with an adaptive softmax, which computes scores later, the features themselves."""
        return features if self.output_projection is None else self.output_projection(features)

    def _initial_state(self, encoder_out: EncoderOutput, embedded: Tensor) -> Tuple[State, Tensor, Optional[Tensor]]:
        state = self.start(encoder_out.finals.repeat_interleave(encoder_out.beam, 0))
        return state, embedded.new_zeros(embedded.size(1), self.feed_dim), None

    def _all_at_once(
        self, embedded: Tensor, state: State, feed: Tensor, coverage: Optional[Tensor], source: AttentionSource
    ) -> Decoded:
        hidden, state = self.rnn(embedded, state)
        posterior = context = weights = None
        if self.attention is not None:
            posterior = self.attention.posterior(hidden.transpose(0, 1), source)
            context, weights = self.attention.expectation(posterior, source)
            context = context.transpose(0, 1)
        features = self._read_out(self.readout, hidden, context, embedded)
        return Decoded(features, weights, lambda: posterior, state, feed, coverage)

    def _step_by_step(
        self, embedded: Tensor, state: State, feed: Tensor, coverage: Optional[Tensor], source: AttentionSource
    ) -> Decoded:
        attend = None
        if self.attention is not None:
            attend = self.attention.for_steps(source, embedded.size(0), coverage)
        if self.query_previous or self.feed_dim:
            steps, state = self._run_steps(embedded, state, feed, attend)
            queries, contexts, feeds = zip(*steps)
            hidden = torch.stack(queries)
        else:
            # The recurrence does not depend on attention, whose steps depend on each other by coverage.
            hidden, state = self.rnn(embedded, state)
            contexts, feeds = tuple(self._attend(attend, query) for query in hidden.unbind(0)), ()
        if self.feed_dim:
            features, feed = torch.stack(feeds), feeds[-1]
        else:
            # No step needs the features of another, so they are computed for all steps together.
            features = self._read_out(self.readout, hidden, torch.stack(contexts), embedded)
        if attend is None:
            return Decoded(features, None, lambda: None, state, feed, None)
        return Decoded(features, attend.weights(), attend.posterior, state, feed, attend.coverage, attend)

    def _next_word(
        self, embedded: Tensor, state: State, feed: Tensor, coverage: Optional[Tensor], source: AttentionSource
    ) -> Decoded:
        """One target step of a beam search. To attention, the hypotheses of a sentence are several target steps, so
        that it reads each sentence once; weights are ``[sentences, beam, src_len]``."""
        layers, word = unstack_state(state), embedded[0]
        if self.query_previous:
            hidden = layers[-1][0]
            context, weights = self._attend_from_all(hidden, source)
            layers = self.rnn.one_step(_side_by_side(word, context, feed), layers)
        else:
            layers = self.rnn.one_step(_side_by_side(word, None, feed), layers)
            hidden = layers[-1][0]
            context, weights = self._attend_from_all(hidden, source)
        features = self._read_out(self.readout, hidden, context, word)
        feed = features if self.feed_dim else feed
        return Decoded(features.unsqueeze(0), weights, lambda: None, stack_state(layers), feed, coverage)

    def _attend_from_all(self, hidden: Tensor, source: AttentionSource) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """Contexts ``[rows, source_dim]`` and weights for the states ``[rows, hidden]`` of all hypotheses."""
        if self.attention is None:
            return None, None
        contexts, weights = self.attention(hidden.view(source.lengths.size(0), -1, hidden.size(-1)), source)
        return contexts.flatten(0, 1), weights

    def _is_training_step(self, incremental_state: Optional[IncrementalState]) -> bool:
        return incremental_state is None and self.training and torch.is_grad_enabled()

    def _from_graphs(
        self,
        graphs: DecoderGraphs,
        embedded: Tensor,
        state: State,
        feed: Tensor,
        coverage: Optional[Tensor],
        source: AttentionSource,
    ) -> Decoded:
        """:meth:`_step_by_step` in a training step, from CUDA graphs. No call goes on from it, so the state is that
        before the first step."""
        looped = graphs(self._loop, self._parameters_of_loop(), embedded, state, feed, source)

        def posterior() -> Optional[StructuredDistribution]:
            if self.attention is None or looped.scores is None or looped.queries is None:
                return None
            return self.attention.distribution_of(looped.scores, looped.queries, source)

        return Decoded(looped.features, looped.weights, posterior, state, feed, coverage)

    def _loop(self, embedded: Tensor, state: State, feed: Tensor, source: AttentionSource) -> Looped:
        decoded = self._step_by_step(embedded, state, feed, None, source)
        if decoded.attend is None:
            return Looped(decoded.features)
        return Looped(decoded.features, decoded.weights, *decoded.attend.compared())

    def _parameters_of_loop(self) -> List[Tensor]:
        parts = (self.rnn, self.attention, self.readout)
        return [parameter for part in parts if part is not None for parameter in part.parameters()]

    def _run_steps(
        self, embedded: Tensor, state: State, feed: Tensor, attend: Optional[Attend]
    ) -> Tuple[List[DecoderStep], State]:
        steps: List[DecoderStep] = []
        layers, advance = unstack_state(state), self.rnn.for_steps(embedded)
        readout = self.readout.for_steps(*embedded.shape[:2]) if self.feed_dim else None
        for word in embedded.unbind(0):
            if self.query_previous:
                hidden = layers[-1][0]
                context = self._attend(attend, hidden)
                layers = advance(feed if context is None else _beside(context, feed), layers)
            else:
                layers = advance(feed, layers)
                hidden = layers[-1][0]
                context = self._attend(attend, hidden)
            if readout is not None:
                feed = self._read_out(readout, hidden, context, word)
            steps.append(DecoderStep(hidden, context, None if readout is None else feed))
        return steps, stack_state(layers)

    @staticmethod
    def _attend(attend: Optional[Attend], hidden: Tensor) -> Optional[Tensor]:
        """Contexts ``[batch, source_dim]`` for `hidden` ``[batch, hidden]``."""
        return None if attend is None else attend(hidden.unsqueeze(1)).squeeze(1)

    def _read_out(
        self, readout: Callable[..., Tensor], hidden: Tensor, context: Optional[Tensor], word: Tensor
    ) -> Tensor:
        return F.dropout(readout(hidden, context, word), self.dropout_out, self.training)

    def _pack(self, decoded: Decoded) -> Dict[str, Tensor]:
        state = {f"state{index}": part for index, part in enumerate(decoded.state)}
        coverage = {} if decoded.coverage is None else {"coverage": decoded.coverage.permute(2, 0, 1)}
        return {"feed": decoded.feed, **state, **coverage}

    def _unpack(self, cached: Dict[str, Tensor]) -> Tuple[State, Tensor, Optional[Tensor]]:
        state = tuple(cached[f"state{index}"] for index in range(self.rnn.state_size))
        coverage = cached.get("coverage")
        return state, cached["feed"], None if coverage is None else coverage.permute(1, 2, 0)

    def reorder_incremental_state(self, incremental_state: Optional[IncrementalState], new_order: Tensor) -> None:
        """Keeps the hypotheses `new_order` ``[new_batch]``. In all cached tensors the batch is the second to last
        dimension."""
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is not None:
            cached = {name: part.index_select(-2, new_order) for name, part in cached.items()}
            self.set_incremental_state(incremental_state, "decoder", cached)

    def max_positions(self) -> int:
        """Longest target sentence, in tokens."""
        return self.max_target_positions


def _states_alone(states: Tensor, lengths: Tensor, arcs: Optional[Tensor] = None) -> AttentionSource:
    """The :class:`AttentionSource` of a model without attention."""
    return AttentionSource(states, states, lengths, arcs)


def _beside(context: Tensor, feed: Tensor) -> Tensor:
    return torch.cat((context, feed), -1) if feed.size(-1) else context


def _side_by_side(word: Tensor, context: Optional[Tensor], feed: Tensor) -> Tensor:
    """The whole input of a target step."""
    parts = [part for part in (word, context, feed) if part is not None and part.size(-1)]
    return torch.cat(parts, -1) if len(parts) > 1 else word


def rotate_left(columns: Tensor, shift: Tensor) -> Tensor:
    """Rotates each item of a batch along its last dimension.

    Args:
        columns: ``[batch, ..., length]``
        shift: number of places, ``[batch]``
    """
    length = columns.size(-1)
    index = (torch.arange(length, device=shift.device) + shift.unsqueeze(1)) % length
    index = index.view(index.size(0), *[1] * (columns.dim() - 2), length)
    return columns.gather(-1, index.expand_as(columns))


def rotate_right(columns: Tensor, shift: Tensor) -> Tensor:
    """The inverse of :func:`rotate_left`."""
    return rotate_left(columns, -shift)


def _build_source_attention(options: RNNOptions) -> Union[SourceAttention, SpanAttention, None]:
    if options.source_attention == NO_ATTENTION:
        return None
    estimator = Estimator(options.attention_estimator, options.attention_estimator_generation)
    if options.source_attention in span_attention_names():
        return SpanAttention(_build_scorer(options), options.source_attention, estimator)
    return SourceAttention(_build_scorer(options), options.source_attention, options.tree_roots, estimator)


def _build_scorer(options: RNNOptions) -> nn.Module:
    embed_dim = options.encoder_embed_dim
    return SCORERS[options.arc_score](embed_dim, options.parser_hidden_size or embed_dim, options.arc_bound)


def _build_embeddings(options: RNNOptions, task) -> Tuple[WordEmbedding, WordEmbedding]:
    source_dictionary, target_dictionary = task.source_dictionary, task.target_dictionary
    source = WordEmbedding(len(source_dictionary), options.encoder_embed_dim, source_dictionary.pad())
    source.weight.requires_grad = not options.encoder_freeze_embed
    if options.share_all_embeddings:
        if source_dictionary != target_dictionary:
            raise ValueError(
                "--share-all-embeddings needs one dictionary for both languages: "
                "binarise again with fairseq-preprocess --joined-dictionary"
            )
        return source, source
    target = WordEmbedding(len(target_dictionary), options.decoder_embed_dim, target_dictionary.pad())
    target.weight.requires_grad = not options.decoder_freeze_embed
    return source, target


def _initialize(model: nn.Module, init_range: float) -> None:
    for parameter in model.parameters() if init_range else ():
        nn.init.uniform_(parameter, -init_range, init_range)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.zeros_(module.weight[module.padding_idx])
