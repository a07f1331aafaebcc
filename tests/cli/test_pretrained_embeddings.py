"""A model trained with pretrained embeddings works on without their file; a training from scratch does not begin."""

from pathlib import Path

import pytest

pytest.importorskip("fairseq")

import torch  # noqa: E402

from fairseq_structattn.models import StructuredAttentionRNN  # noqa: E402

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
OPTIONS = [
    "--arch", "structattn_rnn", "--encoder-freeze-embed",
    "--encoder-embed-dim", 8, "--encoder-hidden-size", 8, "--decoder-embed-dim", 8, "--decoder-hidden-size", 8,
    "--decoder-out-embed-dim", 8, "--criterion", "label_smoothed_cross_entropy", "--optimizer", "sgd", "--lr", 0.1,
    "--batch-size", 30, "--max-update", 1, "--cpu", "--disable-validation", "--user-dir", PACKAGE,
]  # fmt: skip


@pytest.mark.slow
def test_the_file_is_only_needed_to_begin(run_fairseq, tiny_corpus, tmp_path):
    vectors, first = tmp_path / "vectors.txt", tmp_path / "first"
    vectors.write_text("w03 " + " ".join(["0.5"] * 8) + "\n")
    options = [tiny_corpus.bin, *OPTIONS, "--encoder-embed-path", vectors]
    run_fairseq("train", *options, "--save-dir", first)
    vectors.write_text("neither of that size nor anything\n")
    load = StructuredAttentionRNN.from_pretrained
    trained = load(str(first), "checkpoint_last.pt", str(tiny_corpus.bin)).models[0].encoder.embed_tokens.weight
    vectors.unlink()
    model = load(str(first), "checkpoint_last.pt", str(tiny_corpus.bin)).models[0]
    word = model.encoder.dictionary.index("w03")
    assert (trained[word] == 0.5).all() and torch.equal(model.encoder.embed_tokens.weight, trained)
    begun = ["--finetune-from-model", first / "checkpoint_last.pt"]
    run_fairseq("train", *options, "--save-dir", tmp_path / "tuned", *begun)
    tuned = load(str(tmp_path / "tuned"), "checkpoint_last.pt", str(tiny_corpus.bin)).models[0]
    assert torch.equal(tuned.encoder.embed_tokens.weight, trained)
    with pytest.raises(RuntimeError, match=f"FileNotFoundError: --encoder-embed-path {vectors}: no such file, and no"):
        run_fairseq("train", *options, "--save-dir", tmp_path / "scratch")
