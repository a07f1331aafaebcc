"""``--print-alignment``, hard and soft: every hypothesis of a beam, every architecture, left-padded batches."""

from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, PRESETS, TRANSFORMERS, batch, build, dictionary, sentences
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer

WITH_ATTENTION = [name for name in PRESETS if name != "structattn_rnn_vanilla"]
# Architectures and their options.
ALIGNED = [(arch, {}) for arch in (*WITH_ATTENTION, *TRANSFORMERS)]
ALIGNED += [(arch, {"input_feeding": True, "attention_query": "previous"}) for arch in WITH_ATTENTION]
SOURCES = sentences((5, 1, 8, 2, 3, 7))
TARGETS = sentences((3, 4, 1, 6, 2, 5), seed=1)
PRINTED = 2e-6  # six decimals


def weights_without_padding(model, source, target):
    """``[tgt_len, src_len]`` for one pair by itself."""
    net_input = batch([source], [target])["net_input"]
    with torch.no_grad():
        return model(**net_input)[1]["attn"][0][0]


def strongest(weights):
    """The position of the largest weight of each word, as pairs (source, target); </s> is no word."""
    words = weights[:-1, :-1]
    return [(int(row.argmax()), step) for step, row in enumerate(words)] if words.size(1) else []


def check(kind, alignment, weights):
    if kind == "hard":
        assert alignment == strongest(weights)
    else:
        printed = torch.tensor([[float(weight) for weight in row] for row in alignment])
        torch.testing.assert_close(printed, weights, atol=PRINTED, rtol=0)


@pytest.mark.parametrize(
    "arch, options", ALIGNED, ids=[f"{arch}-{'by step' if more else ''}" for arch, more in ALIGNED]
)
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignment_of_translations(kind, arch, options):
    model = build(arch, **options)
    generator = SequenceGeneratorWithAlignment([model], DICTIONARY, beam_size=4, max_len_b=6, print_alignment=kind)
    found = generator.generate([model], batch(SOURCES, width=10))
    assert [len(hypotheses) for hypotheses in found] == [4] * len(SOURCES)
    for source, hypotheses in zip(SOURCES, found):
        for hypothesis in hypotheses:
            weights = weights_without_padding(model, source, hypothesis["tokens"])
            check(kind, hypothesis["alignment"], weights)


@pytest.mark.parametrize("arch", [*WITH_ATTENTION, *TRANSFORMERS])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignment_of_references(kind, arch):
    model = build(arch)
    scored = SequenceScorer(DICTIONARY, compute_alignment=kind).generate([model], batch(SOURCES, TARGETS, width=10))
    for source, target, (hypothesis,) in zip(SOURCES, TARGETS, scored):
        check(kind, hypothesis["alignment"], weights_without_padding(model, source, target))


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_alignment_of_an_ensemble_is_that_of_the_average(kind):
    models = [build("structattn_rnn_crf"), build("structattn_rnn_bahdanau", seed=2)]
    generator = SequenceGeneratorWithAlignment(models, DICTIONARY, beam_size=3, max_len_b=6, print_alignment=kind)
    for source, hypotheses in zip(SOURCES, generator.generate(models, batch(SOURCES))):
        for hypothesis in hypotheses:
            weights = [weights_without_padding(model, source, hypothesis["tokens"]) for model in models]
            check(kind, hypothesis["alignment"], sum(weights) / 2)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_beams_that_are_not_filled_are_aligned(kind):
    words = dictionary(1)
    model = build("structattn_rnn_crf", Namespace(source_dictionary=words, target_dictionary=words))
    source = torch.tensor([words.index("w0"), words.eos()])
    generator = SequenceGeneratorWithAlignment([model], words, beam_size=4, max_len_b=1, print_alignment=kind)
    (hypotheses,) = generator.generate([model], batch([source]))
    assert 0 < len(hypotheses) < 4
    for hypothesis in hypotheses:
        check(kind, hypothesis["alignment"], weights_without_padding(model, source, hypothesis["tokens"]))


def test_a_model_without_attention_is_told_about():
    model, sample = build("structattn_rnn_vanilla"), batch(SOURCES, TARGETS)
    with pytest.raises(ValueError, match="--print-alignment, --replace-unk: the model has no attention"):
        SequenceGeneratorWithAlignment([model], DICTIONARY, beam_size=2, max_len_b=4).generate([model], sample)
    with pytest.raises(ValueError, match="--print-alignment, --replace-unk: the model has no attention"):
        SequenceScorer(DICTIONARY, compute_alignment="hard").generate([model], sample)
    # Who does not ask for alignments is not bothered.
    assert len(SequenceScorer(DICTIONARY).generate([model], sample)) == len(SOURCES)
