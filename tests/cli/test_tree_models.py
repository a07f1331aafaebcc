"""Syntactic attention from training to translation, and its measure both ways."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")


from fairseq_structattn.analysis import length_to_failure
from fairseq_structattn.models import StructuredAttentionRNN

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"


@pytest.fixture(scope="module")
def trained(run_fairseq, tiny_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    run_fairseq(
        "train", tiny_corpus.bin, "--user-dir", PACKAGE, "--arch", "structattn_rnn_tree", "--arc-bound", "none",
        "--criterion", "structattn_label_smoothed_cross_entropy", "--report-length-to-failure",
        "--best-checkpoint-metric", "length_to_failure", "--maximize-best-checkpoint-metric",
        "--optimizer", "adam", "--lr", "0.02", "--batch-size", "16", "--max-epoch", "12", "--cpu",
        "--no-epoch-checkpoints", "--save-dir", folder,
    )  # fmt: skip
    return folder / "checkpoint_best.pt"


def test_greedy_translation_fails_where_teacher_forcing_does(run_fairseq, tiny_corpus, trained, tmp_path):
    arguments = [tiny_corpus.bin, "--user-dir", PACKAGE, "--path", trained, "--batch-size", "16"]
    log = run_fairseq("validate", *arguments, "--task", "translation", "--valid-subset", "test")
    logged = float(re.findall(r"length_to_failure ([0-9.]+)", log)[-1])
    generated = tmp_path / "generated"
    generated.write_text(run_fairseq("generate", *arguments, "--gen-subset", "test", "--beam", "1"))
    references = (tiny_corpus.raw / "test.tgt").read_text().splitlines()
    hypotheses = length_to_failure.read_hypotheses(str(generated), len(references)).sentences
    measured = length_to_failure.mean_share(hypotheses, references)
    assert 5 < measured < 100
    assert logged == pytest.approx(measured, abs=0.02)


def test_trees_can_be_had_from_a_checkpoint(tiny_corpus, trained):
    hub = StructuredAttentionRNN.from_pretrained(str(trained.parent), trained.name, str(tiny_corpus.bin))
    encoder = hub.models[0].encoder
    tokens = [hub.encode(sentence) for sentence in ("w01 w02 w03 w04", "w05 w06")]
    left_padded = torch.stack((tokens[0], torch.cat((torch.full((2,), encoder.padding_idx), tokens[1]))))
    heads = encoder.source_attention(left_padded)
    marginals, tree = heads.distribution.marginals, heads.distribution.argmax
    assert marginals.shape == tree.shape == (2, 5, 4)
    torch.testing.assert_close(marginals.sum(1), torch.tensor([[1.0] * 4, [1.0, 1.0, 0.0, 0.0]]))
    assert heads.distribution.log_prob(tree).exp().gt(0).all()
    alone = encoder.source_attention(tokens[1].unsqueeze(0)).distribution.marginals
    torch.testing.assert_close(marginals[1:, :3, :2], alone)
