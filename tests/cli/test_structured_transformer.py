"""A Transformer with chains and trees on the command line: supervised, resumed, translating, exported, drawn."""

import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq import checkpoint_utils
from two_processes import check_processes_stay_equal_and_every_parameter_learns

from fairseq_structattn.analysis import export_attention, plot_attention
from fairseq_structattn.models import StructuredTransformer

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
SIZES = [
    "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-layers", 1, "--encoder-attention-heads", 4,
    "--decoder-layers", 2, "--decoder-attention-heads", 4, "--share-all-embeddings", "--dropout", 0,
]  # fmt: skip
HEADS = [
    "--cross-attention-heads",
    "softmax,linear-chain:1",
    "--encoder-self-attention-heads",
    "projective-tree:1,softmax",
]
OURS = ["--user-dir", PACKAGE, "--cpu"]
TRAINING = [
    "--optimizer", "adam", "--lr", 0.01, "--batch-size", 16, "--no-epoch-checkpoints", "--log-format", "json",
    "--criterion", "structattn_label_smoothed_cross_entropy", *OURS,
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tiny_corpus, run_fairseq, tmp_path_factory):
    """The reversal corpus with its alignments, and heads that are the words before."""
    folder = tmp_path_factory.mktemp("supervised")
    for split in ("train", "valid", "test"):
        for language in ("src", "tgt"):
            (folder / f"{split}.{language}").write_bytes((tiny_corpus.raw / f"{split}.{language}").read_bytes())
        lengths = [len(line.split()) for line in (folder / f"{split}.src").read_text().splitlines()]
        links = [" ".join(f"{n - 1 - i}-{i}" for i in range(n)) for n in lengths]
        (folder / f"{split}.align").write_text("\n".join(links) + "\n")
    run_fairseq(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--trainpref", folder / "train", "--validpref",
        folder / "valid", "--testpref", folder / "test", "--align-suffix", "align", "--destdir", folder / "bin",
        "--joined-dictionary", "--workers", 1,
    )  # fmt: skip
    for split in ("train", "valid"):
        lengths = [len(line.split()) for line in (folder / f"{split}.src").read_text().splitlines()]
        (folder / "bin" / f"{split}.heads.src").write_text(
            "".join(" ".join(map(str, range(n))) + "\n" for n in lengths)
        )
    return folder / "bin"


@pytest.fixture(scope="module")
def trained(run_fairseq, corpus, tmp_path_factory):
    """A folder with checkpoints, and what the training printed."""
    folder = tmp_path_factory.mktemp("trained")
    output = run_fairseq(
        "train", corpus, "--arch", "structattn_transformer", *SIZES, *HEADS, *TRAINING, "--max-epoch", 8,
        "--task", "structattn_translation", "--load-alignments", "--load-heads", "--guided-alignment", 0.5,
        "--tree-supervision", 0.5, "--pairwise-l2", 0.0005, "--save-dir", folder,
    )  # fmt: skip
    return folder / "checkpoint_best.pt", output


def logged(output, name):
    return [float(value) for value in re.findall(rf'"{name}": "([\d.e-]+)"', output)]


@pytest.mark.slow
def test_supervision(trained):
    for name in ("guided_alignment", "tree_supervision"):
        for split in ("train", "valid"):
            values = logged(trained[1], f"{split}_{name}")
            assert len(values) == 8 and values[-1] < 0.9 * values[0], (name, split)
    assert all(value > 0 for value in logged(trained[1], "train_pairwise_l2"))


def alignments(printed):
    return re.findall(r"^A-\d+\t(.*)$", printed, re.MULTILINE)


@pytest.mark.slow
def test_translations_and_their_alignments(run_fairseq, trained, corpus):
    command = [corpus, *OURS, "--path", trained[0], "--print-alignment", "hard", "--beam", 1]
    chain = run_fairseq("generate", *command)
    softmax = run_fairseq("generate", *command, "--model-overrides", "{'attention_head': '0.0'}")
    assert len(alignments(chain)) == len(alignments(softmax)) == 100
    assert alignments(softmax) != alignments(chain)
    translated = run_fairseq("generate", corpus, *OURS, "--path", trained[0], "--beam", 3)
    assert len(re.findall(r"^H-\d+\t", translated, re.MULTILINE)) == 100


@pytest.mark.slow
def test_records_and_pictures(trained, corpus, tmp_path):
    command = ["--path", trained[0], "--data", corpus, "--cpu", "--sentences", 4, "--log-format", "none"]
    records = {}
    for head in ("1.3", "0.0"):
        output = tmp_path / f"{head}.jsonl"
        chosen = ["--attention-head", head, "--conllu", tmp_path / f"{head}.conllu", "--output", output]
        export_attention.main(list(map(str, [*command, *chosen])))
        records[head] = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    for chain, softmax in zip(records["1.3"], records["0.0"]):
        assert chain["segments"] is not None and softmax["segments"] is None
        assert chain["tree"] == softmax["tree"] and len(chain["tree"]["heads"]) == len(chain["source"]) - 1
        torch.testing.assert_close(torch.tensor(softmax["weights"]), torch.tensor(softmax["marginals"]))
    picture = tmp_path / "attention.png"
    drawn = ["--path", trained[0], "--data", corpus, "--attention-head", "1.3", "--ids", "0", "--output", picture]
    plot_attention.main(list(map(str, drawn)))
    assert picture.stat().st_size > 1000
    with pytest.raises(SystemExit, match=r"--attention-head 2\.0: write LAYER\.HEAD, with a layer from 0 to 1"):
        export_attention.main(list(map(str, [*command, "--attention-head", "2.0", "--output", tmp_path / "a"])))


@pytest.mark.slow
def test_training_goes_on_from_fairseqs_transformer(run_fairseq, corpus, tmp_path):
    updates = [*TRAINING, "--disable-validation"]
    stock = ["--arch", "transformer", *SIZES, "--max-update", 2, "--save-dir", tmp_path / "stock"]
    run_fairseq("train", corpus, *updates, *stock)
    options = ["--arch", "structattn_transformer", *SIZES, *HEADS, "--save-dir", tmp_path / "ours", "--max-update", 1]
    checkpoint = tmp_path / "stock" / "checkpoint_last.pt"
    run_fairseq("train", corpus, *updates, *options, "--finetune-from-model", checkpoint, "--lr", 1e-9)
    before, after = (
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / name / "checkpoint_last.pt"))["model"]
        for name in ("stock", "ours")
    )
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=0)
    new = sorted(set(after) - set(before))
    assert [name.split(".groups.")[1] for name in new] == ["1.tables.pairwise"] * 2 + ["0.root_key", "0.root_value"]


@pytest.mark.slow
def test_from_python(trained, corpus):
    hub = StructuredTransformer.from_pretrained(str(trained[0].parent), trained[0].name, str(corpus))
    source = hub.encode("w01 w02 w03 w04")
    heads = hub.models[0].encoder.source_attention(source[None])
    given = heads.distribution.log_prob_of_heads(torch.tensor([[0, 1, 2, 3]])).exp()
    assert heads.vectors.shape == (1, 5, 8) and given > 0.1, "of 125 trees the one that it was trained to find"
    assert hub.translate("w01 w02 w03 w04", beam=2)


@pytest.mark.slow
def test_two_processes(corpus, tmp_path):
    options = [corpus, "--arch", "structattn_transformer", *SIZES, *HEADS, *TRAINING, "--max-update", 3]
    options += ["--disable-validation", "--save-dir", tmp_path / "saved"]
    check_processes_stay_equal_and_every_parameter_learns(options, "pytorch_ddp", tmp_path)


def test_wrong_heads_end_with_a_helpful_message(run_fairseq, corpus, tmp_path):
    wrong = ["--cross-attention-heads", "linear-chain:5", "--save-dir", tmp_path]
    ended = run_fairseq.end("train", corpus, "--arch", "structattn_transformer", *SIZES, *TRAINING, *wrong)
    message = ended.output.strip().splitlines()[-1]
    assert (
        ended.status != 0 and "--cross-attention-heads: 'linear-chain:5': the numbers of heads add up to 5" in message
    )
