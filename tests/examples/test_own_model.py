"""user_dir_examples/own_model: the attention against fairseq's, whatever the padding, and a training with the model."""

import re
from argparse import Namespace

import pytest
import torch
from loading import EXAMPLES, INSTALLED, load_example

pytest.importorskip("fairseq")
from fairseq.data import Dictionary  # noqa: E402
from fairseq.data.data_utils import collate_tokens  # noqa: E402
from fairseq.modules import MultiheadAttention  # noqa: E402
from fairseq.sequence_generator import SequenceGenerator  # noqa: E402

own_model = load_example("own_model")
DISTRIBUTIONS = ["softmax", "sigmoid", "linear-chain"]
SMALL = ["--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-layers", 1]
SMALL += ["--encoder-attention-heads", 2, "--decoder-attention-heads", 2, "--decoder-layers", 2]


@pytest.mark.parametrize("left", [True, False])
def test_with_softmax_it_is_the_attention_of_fairseq(left):
    torch.manual_seed(1)
    theirs = MultiheadAttention(8, 2, kdim=6, vdim=6, encoder_decoder_attention=True).eval()
    ours = own_model.StructuredCrossAttention(8, 6, 2, "softmax")
    ours.load_state_dict(theirs.state_dict())
    query, source = torch.randn(4, 3, 8), torch.randn(5, 3, 6)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [1]])
    padding = padding.flip(1) if left else padding
    expected = theirs(query, source, source, key_padding_mask=padding, static_kv=True, need_head_weights=True)
    found = ours(query, source, source, key_padding_mask=padding, need_head_weights=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours(query, source, source, padding)[1], expected[1].mean(0))


DICTIONARY = Dictionary()
for number in range(12):
    DICTIONARY.add_symbol(f"w{number}")


@pytest.fixture(params=DISTRIBUTIONS)
def model(request):
    torch.manual_seed(2)
    options = Namespace(
        encoder_embed_dim=16, encoder_ffn_embed_dim=16, encoder_layers=1, encoder_attention_heads=2,
        decoder_layers=2, decoder_attention_heads=2, cross_attention=request.param,
    )  # fmt: skip
    own_model.structured_transformer(options)
    task = Namespace(source_dictionary=DICTIONARY, target_dictionary=DICTIONARY)
    built = own_model.StructuredTransformer.build_model(options, task).eval()
    for name, table in built.named_parameters():
        if "attention.tables" in name:
            torch.nn.init.normal_(table)  # a chain whose neighbours matter
    # Sentences that end at different steps: what is left of the batch moves up.
    ending = 0.6 * torch.randn(16, generator=torch.Generator().manual_seed(4))
    built.decoder.output_projection.weight.data[DICTIONARY.eos()] = ending
    return built


def sentences():
    words = torch.Generator().manual_seed(3)
    return [
        torch.cat((torch.randint(4, len(DICTIONARY), (n,), generator=words), torch.tensor([DICTIONARY.eos()])))
        for n in (6, 2, 4)
    ]


def net_input(source, target, left_pad=True):
    return {
        "src_tokens": collate_tokens(source, DICTIONARY.pad(), left_pad=left_pad),
        "src_lengths": torch.tensor([len(sentence) for sentence in source]),
        "prev_output_tokens": collate_tokens([torch.cat((s[-1:], s[:-1])) for s in target], DICTIONARY.pad()),
    }


@pytest.mark.parametrize("left_pad", [True, False])
def test_padding_changes_nothing(model, left_pad):
    source = sentences()
    logits, extra = model(**net_input(source, source, left_pad))
    for item, sentence in enumerate(source):
        alone, alone_extra = model(**net_input([sentence], [sentence]))
        n = len(sentence)
        torch.testing.assert_close(logits[item, :n], alone[0], atol=2e-5, rtol=1e-4)
        weights = extra["attn"][0][item, :n]
        real = weights[:, -n:] if left_pad else weights[:, :n]
        torch.testing.assert_close(real, alone_extra["attn"][0][0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(weights.sum(-1), torch.ones(n), atol=1e-5, rtol=0)
        torch.testing.assert_close(real.sum(-1), torch.ones(n), atol=1e-5, rtol=0)


def test_beam_search_keeps_each_hypothesis_with_its_source(model):
    source = sentences()
    sample = {"net_input": {**net_input(source, source), "prev_output_tokens": None}}
    generated = SequenceGenerator([model], DICTIONARY, beam_size=4, max_len_b=12).generate([model], sample)
    steps = [max(len(hypothesis["tokens"]) for hypothesis in hypotheses) for hypotheses in generated]
    assert len(set(steps)) > 1
    for sentence, hypotheses in zip(source, generated):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"]
            logits, extra = model(**net_input([sentence], [tokens]))
            scores = logits.log_softmax(-1)[0].gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(hypothesis["positional_scores"], scores, atol=1e-4, rtol=1e-4)


def test_offers_every_distribution_over_positions():
    assert set(DISTRIBUTIONS) <= set(own_model.CHOICES) and "projective-tree" not in own_model.CHOICES


@pytest.mark.slow
def test_transformer_trains_and_translates(run_fairseq, tiny_corpus, tmp_path):
    plugin = ["--user-dir", EXAMPLES / "own_model", "--cpu"]
    log = run_fairseq(
        "train", tiny_corpus.bin, *plugin, "--arch", "structured_transformer", *SMALL, "--optimizer", "adam",
        "--lr", 0.003, "--criterion", "structattn_label_smoothed_cross_entropy", "--pairwise-l2", 0.0005,
        "--batch-size", 16, "--max-epoch", 6, "--no-epoch-checkpoints", "--save-dir", tmp_path,
        "--log-format", "json", env=INSTALLED,
    )  # fmt: skip
    losses = [float(value) for value in re.findall(r'"valid_loss": "([\d.]+)"', log)]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.3
    penalties = [float(value) for value in re.findall(r'"train_pairwise_l2": "([\d.e-]+)"', log)]
    assert penalties and penalties[-1] > 0
    output = run_fairseq(
        "generate", tiny_corpus.bin, *plugin, "--path", tmp_path / "checkpoint_best.pt", "--beam", 3,
        "--print-alignment", "soft", env=INSTALLED,
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", output, re.M)) == 100
