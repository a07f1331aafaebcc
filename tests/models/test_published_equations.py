"""Decoders against the equations of their papers, written out for one sentence."""

import torch
from building import DICTIONARY, batch, build, sentences

from fairseq_structattn.distributions import LinearChain

SOURCE, TARGET = sentences([6]), sentences([5], seed=1)


def encoder_states(model):
    return model.encoder(batch(SOURCE)["net_input"]["src_tokens"]).source.values[0]


def embedded_target(model):
    return model.decoder.embed_tokens(batch(SOURCE, TARGET)["net_input"]["prev_output_tokens"])[0]


def features_of(model):
    sample = batch(SOURCE, TARGET)["net_input"]
    features, _ = model.decoder.extract_features(sample["prev_output_tokens"], model.encoder(sample["src_tokens"]))
    return features[0]


def test_bahdanau():
    """Bahdanau et al. 2015, appendix A.1.2 and A.2.2, with PyTorch's GRU."""
    model = build("structattn_rnn_bahdanau")
    decoder, annotations, embedded = model.decoder, encoder_states(model), embedded_target(model)
    score, cell = decoder.attention.score, decoder.rnn.rnn
    hidden = annotations.size(1) // 2
    project = decoder.start.projections[0]
    state = torch.tanh(project.weight @ annotations[0, hidden:] + project.bias)
    expected = []
    for word in embedded:
        query, keys = score.query_projection.weight @ state, annotations @ score.key_projection.weight.t()
        weights = torch.softmax(torch.tanh(query + keys) @ score.energy.weight[0], 0)
        context = weights @ annotations
        pieces = decoder.readout.projection(torch.cat((state, context, word)))
        expected.append(torch.maximum(pieces[0::2], pieces[1::2]))
        state = gru(torch.cat((word, context)), state, cell)
    torch.testing.assert_close(features_of(model), torch.stack(expected), atol=1e-5, rtol=0)


def gru(inputs, state, cell):
    from_input = cell.weight_ih_l0 @ inputs + cell.bias_ih_l0
    from_state = cell.weight_hh_l0 @ state + cell.bias_hh_l0
    reset_input, update_input, new_input = from_input.chunk(3)
    reset_state, update_state, new_state = from_state.chunk(3)
    update = torch.sigmoid(update_input + update_state)
    proposal = torch.tanh(new_input + torch.sigmoid(reset_input + reset_state) * new_state)
    return (1 - update) * proposal + update * state


def attentional_states(model, feed=False):
    """Attentional states of a one-layer model, step by step, narrowed as stock lstm does where sizes differ."""
    decoder, annotations = model.decoder, encoder_states(model)
    state = decoder.start(model.encoder(batch(SOURCE)["net_input"]["src_tokens"]).finals)
    attentional = torch.zeros(1, decoder.feed_dim)
    for word in embedded_target(model):
        inputs = torch.cat((word.unsqueeze(0), attentional), 1) if feed else word.unsqueeze(0)
        hidden, state = decoder.rnn.rnn(inputs.unsqueeze(0), state)
        hidden = hidden[0, 0]
        scores = annotations @ decoder.attention.score.key_projection.weight.t() @ hidden
        context = expected_weights(decoder, scores) @ annotations
        attentional = torch.tanh(decoder.readout.projection.weight @ torch.cat((context, hidden))).unsqueeze(0)
        yield decoder.narrowing(attentional[0])


def expected_weights(decoder, scores):
    tables = decoder.attention.tables
    if "pairwise" not in tables:
        return torch.softmax(scores, 0)
    marginals = LinearChain(scores, tables["pairwise"]).marginals
    return 2 * marginals / marginals.sum()


def one_layer(arch, **options):
    return build(arch, encoder_layers=1, decoder_layers=1, **options)


def test_luong_without_input_feeding():
    """Luong et al. 2015, equations 5 to 8."""
    model = one_layer("structattn_rnn_luong_general")
    torch.testing.assert_close(features_of(model), torch.stack(list(attentional_states(model))), atol=1e-5, rtol=0)


def test_luong_with_input_feeding():
    """Luong et al. 2015, section 3.3."""
    model = one_layer("structattn_rnn_luong_general", input_feeding=True)
    expected = torch.stack(list(attentional_states(model, feed=True)))
    torch.testing.assert_close(features_of(model), expected, atol=1e-5, rtol=0)


def test_segmentation_attention():
    """Kim et al. 2017, section 4.2: c = λ Σ (μᵢ/Σμ) hᵢ with λ = 2, one 2×2 table, start from zeros."""
    model = one_layer("structattn_rnn_crf")
    assert model.decoder.attention.tables["pairwise"].shape == (2, 2)
    torch.testing.assert_close(features_of(model), torch.stack(list(attentional_states(model))), atol=1e-5, rtol=0)
    assert DICTIONARY.eos() == TARGET[0][-1]
