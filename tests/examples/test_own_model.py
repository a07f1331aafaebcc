"""user_dir_examples/own_model: with softmax it is fairseq's model, whatever the heads it translates, and it trains."""

import re
from argparse import Namespace

import pytest
import torch
from building import TASK, batch, generate, log_probs, sentences
from loading import EXAMPLES, INSTALLED, load_example
from torch.testing import assert_close

pytest.importorskip("fairseq")
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY  # noqa: E402

own_model = load_example("own_model")
SOURCE, TARGET = sentences([6, 2, 4]), sentences([3, 5, 2], seed=1)
SIZES = {
    "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "encoder_layers": 1, "encoder_kernel_size_list": [3],
    "decoder_layers": 2, "decoder_kernel_size_list": [3], "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_conv_type": "lightweight", "decoder_conv_type": "lightweight", "weight_softmax": True,
}  # fmt: skip


def build(arch, seed=2, **options):
    torch.manual_seed(seed)
    given = Namespace(arch=arch, **SIZES, **options)
    ARCH_CONFIG_REGISTRY[arch](given)
    return ARCH_MODEL_REGISTRY[arch].build_model(given, TASK).eval()


def test_with_softmax_it_is_the_model_of_fairseq():
    theirs, ours = build("lightconv"), build("structured_lightconv")
    assert_close(log_probs(ours, batch(SOURCE, TARGET)), log_probs(theirs, batch(SOURCE, TARGET)))
    for one, other in zip(generate([theirs], batch(SOURCE)), generate([ours], batch(SOURCE))):
        assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()


def test_checkpoints_of_fairseq_load():
    ours = build("structured_lightconv", seed=3, cross_attention_heads="linear-chain:2,softmax")
    ours.load_state_dict(build("lightconv").state_dict())
    assert sum(name.endswith("pairwise") for name in ours.state_dict()) == 2


@pytest.mark.parametrize("left_pad", [True, False])
def test_padding_and_steps_change_nothing(left_pad):
    model = build("structured_lightconv", cross_attention_heads="linear-chain:2,sigmoid:1,softmax")
    together = log_probs(model, batch(SOURCE, TARGET, left_pad=left_pad))
    for row, (source, target) in enumerate(zip(SOURCE, TARGET)):
        alone = log_probs(model, batch([source], [target]))[0]
        assert_close(together[row, : len(target)], alone, atol=1e-5, rtol=0)
    for source, hypotheses in zip(SOURCE, generate([model], batch(SOURCE))):
        for hypothesis in hypotheses:
            forced = log_probs(model, batch([source], [hypothesis["tokens"]]))[0]
            assert_close(hypothesis["positional_scores"], forced, atol=1e-4, rtol=0)


def test_it_is_short():
    assert len((EXAMPLES / "own_model" / "__init__.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.slow
def test_trains_and_translates(run_fairseq, tiny_corpus, tmp_path):
    plugin = ["--user-dir", EXAMPLES / "own_model", "--cpu"]
    sizes = ["--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-layers", 1, "--decoder-layers", 1]
    sizes += ["--encoder-kernel-size-list", "[3]", "--decoder-kernel-size-list", "[3]"]
    log = run_fairseq(
        "train", tiny_corpus.bin, *plugin, "--arch", "structured_lightconv", *sizes, "--optimizer", "adam",
        "--cross-attention-heads", "linear-chain:2,softmax", "--lr", 0.003, "--batch-size", 16, "--max-epoch", 4,
        "--criterion", "structattn_label_smoothed_cross_entropy", "--pairwise-l2", 0.0005,
        "--no-epoch-checkpoints", "--save-dir", tmp_path, "--log-format", "json", env=INSTALLED,
    )  # fmt: skip
    losses = [float(value) for value in re.findall(r'"valid_loss": "([\d.]+)"', log)]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.3
    penalties = [float(value) for value in re.findall(r'"train_pairwise_l2": "([\d.e-]+)"', log)]
    assert penalties and penalties[-1] > 0
    output = run_fairseq(
        "generate", tiny_corpus.bin, *plugin, "--path", tmp_path / "checkpoint_best.pt", "--beam", 3,
        "--print-alignment", "soft", env=INSTALLED,
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", output, re.M)) == 100
