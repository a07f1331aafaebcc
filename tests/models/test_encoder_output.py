"""Source sentences that hypotheses share, and decoding from them."""

import pytest
import torch
from building import PRESETS, batch, build, sentences

from fairseq_structattn.models.encoder_output import EncoderOutput
from fairseq_structattn.modules.attention import AttentionSource

SOURCES = sentences([6, 2, 4])


def made():
    torch.manual_seed(0)
    source = AttentionSource(torch.randn(3, 5, 2), torch.randn(3, 5, 4), torch.tensor([5, 2, 4]), torch.randn(3, 5, 4))
    return EncoderOutput(source, torch.tensor([0, 3, 1]), torch.randn(3, 1, 4))


def parts(output):
    return [*(part for part in output.source if part is not None), output.left_padding, output.finals]


@pytest.mark.parametrize(
    "orders, beam, copied",
    [
        ([[0, 0, 1, 1, 2, 2]], 2, False),
        ([[0, 0, 1, 1, 2, 2], [1, 1, 3, 2, 4, 5]], 2, False),
        ([[0, 0, 1, 1, 2, 2], [1, 1, 4, 5]], 2, True),
        ([[0, 0, 1, 1, 2, 2], [1, 1, 4, 5], [2, 3]], 2, True),
        ([[0, 0, 1, 1, 2, 2], [0, 2, 4]], 1, False),
        ([[0, 0, 1, 1, 2, 2], [3, 0, 1, 5]], 1, True),
        ([[0, 0, 0, 0, 1, 1, 2, 2]], 2, True),
        ([[2, 0, 1]], 1, True),
        ([[0, 0, 1]], 1, True),
        ([[1, 1, 1]], 3, True),
        ([[]], 1, True),
    ],
    ids=str,
)
def test_any_order(orders, beam, copied):
    start = output = made()
    rows = torch.arange(3)
    for order in orders:
        order = torch.tensor(order, dtype=torch.long)
        output, rows = output.reorder(order), rows[order]
    assert output.beam == beam
    assert (output.source.values is start.source.values) != copied
    for found, shared, part in zip(parts(output.expanded()), parts(output), parts(start)):
        assert torch.equal(found, part[rows])
        assert shared.size(0) * beam == len(rows)


def test_nothing_is_copied_while_no_sentence_is_finished():
    output = made()
    later = output.reorder(torch.tensor([0, 0, 1, 1, 2, 2])).reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
    assert all(found is part for found, part in zip(parts(later), parts(output)))


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("arch", PRESETS)
def test_search_says_what_all_words_at_once_say(arch, coverage):
    """Words of two hypotheses for each sentence, which a search asks for one after the other and reorders."""
    model = build(arch)
    if coverage:
        if model.decoder.attention is None or model.decoder.attention.distribution.needs_arcs:
            pytest.skip("no coverage without attention")
        model = build(arch, attention_coverage="sum")
    words = torch.randint(4, 20, (6, 4), generator=torch.Generator().manual_seed(1))
    order = torch.tensor([1, 0, 2, 2, 5, 4])
    source = batch(SOURCES)["net_input"]
    with torch.no_grad():
        encoded = model.encoder(**source)
        twice = encoded.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
        state = {}
        for step in range(3):
            found, extra = model.decoder(words[:, : step + 1], twice, incremental_state=state)
            weights = extra["attn"][0]
            if step == 1:
                model.decoder.reorder_incremental_state(state, order)
                twice, words = twice.reorder(order), torch.cat((words[order, :2], words[:, 2:]), 1)
        expected, extra = model.decoder(words[:, :3], twice.expanded())
    torch.testing.assert_close(found[:, 0], expected[:, -1])
    if weights is not None:
        torch.testing.assert_close(weights[:, 0], extra["attn"][0][:, -1])


def test_posteriors_of_a_search_have_one_row_for_each_hypothesis():
    model = build("structattn_rnn_crf")
    encoded = model.encoder(**batch(SOURCES)["net_input"]).reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    words = torch.full((6, 1), 5)
    _, extra = model.decoder(words, encoded, incremental_state={}, return_posterior=True)
    assert extra["posterior"].batch_shape == (6, 1)
    torch.testing.assert_close(extra["attn"][0], model.decoder(words, encoded.expanded())[1]["attn"][0])


def test_sources_of_a_search_are_read_once_for_all_hypotheses(monkeypatch):
    model, shapes = build("structattn_rnn_luong_general", input_feeding=True), []
    encoded = model.encoder(**batch(SOURCES)["net_input"]).reorder(torch.arange(3).repeat_interleave(5))
    attention = model.decoder.attention
    attend = attention.forward

    def noted(query, source):
        shapes.append(query.shape[:2])
        return attend(query, source)

    monkeypatch.setattr(attention, "forward", noted)
    model.decoder(torch.full((15, 1), 5), encoded, incremental_state={})
    assert shapes == [(3, 5)]
