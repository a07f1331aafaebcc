"""Training as people do it: interrupted, with another optimizer, gathered updates, odd batches, wrong options."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("fairseq")

import torch
from fairseq import checkpoint_utils

import fairseq_structattn  # noqa: F401  (lets torch load checkpoints)

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
SENTENCES = 100
SIZES = {
    "encoder_embed_dim": 16, "encoder_hidden_size": 16, "encoder_layers": 1,
    "decoder_embed_dim": 16, "decoder_hidden_size": 16, "decoder_layers": 1, "decoder_out_embed_dim": 16,
}  # fmt: skip
CRF = ["--arch", "structattn_rnn_crf", *(f"--{name.replace('_', '-')}={size}" for name, size in SIZES.items())]
TRANSFORMER = [
    "--arch", "structattn_transformer", "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16, "--encoder-layers", 1,
    "--encoder-attention-heads", 4, "--decoder-layers", 1, "--decoder-attention-heads", 4,
    "--cross-attention-heads", "linear-chain:1,semi-markov:1,softmax",
    "--encoder-self-attention-heads", "projective-tree:1,spanning-tree:1,softmax",
    "--dropout", 0.2, "--attention-dropout", 0.2, "--attention-estimator", "straight-through",
]  # fmt: skip
OURS = ["--criterion", "structattn_label_smoothed_cross_entropy", "--pairwise-l2", "0.5"]
OURS += ["--coverage-loss", "0.3", "--attention-entropy", "0.2"]
ADAM = ["--optimizer", "adam", "--lr", "0.01"]
# Plain gradient descent: Adam would blow up differences of rounding where a gradient is almost 0.
SGD = ["--optimizer", "sgd", "--lr", "0.5", "--clip-norm", "0"]
# Neither the order of sentences nor chance may differ between one batch of 8 and two of 4.
SAME_DATA = ["--dropout", "0", "--curriculum", "100", "--required-batch-size-multiple", "1", "--max-update", "5"]
# Without the last option, fairseq's newer versions keep the batches of the first epoch, but make others on resuming.
RESUMED = [*OURS, *ADAM, "--batch-size", "16", "--log-interval", "1", "--update-epoch-batch-itr", "True"]
# 120 sentences in batches of 16 are 8 updates: the interruption is in the middle of the second epoch.
INTERRUPTED_AFTER, LAST_UPDATE = 12, 20
SAVED = f"checkpoint_2_{INTERRUPTED_AFTER}.pt"
# A larger epsilon than Adam's default, with which differences of rounding stay small where a gradient is almost 0.
STEADY = [*CRF, *RESUMED, "--adam-eps", "1e-3", "--max-update", LAST_UPDATE]
FUSED = "structattn_adam"
RESUMED_MODELS = {"rnn": CRF, "transformer": TRANSFORMER}
# Buckets need a number of tokens, of which they make a number of sentences for each length.
WIDE = ["--num-batch-buckets", "3", "--required-seq-len-multiple", "8", "--max-tokens", "256"]
ADAPTIVE = ["--adaptive-softmax-cutoff", "8,16", "--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"]


def run_jobs(run_fairseq, commands):
    """Runs `commands`, name → (fairseq command, arguments); returns name → how it has ended."""
    return {
        name: run_fairseq.end(command, *args, "--user-dir", PACKAGE, "--cpu")
        for name, (command, args) in commands.items()
    }


def training(corpus, root, name, *args):
    save = ["--save-dir", root / name, "--no-epoch-checkpoints", "--disable-validation", "--log-format", "json"]
    return "train", [corpus.bin, *save, *args]


def generation(corpus, root, name, *args):
    return "generate", [corpus.bin, "--path", root / name / "checkpoint_last.pt", "--batch-size", 16, *args]


class Runs(NamedTuple):
    """Where the trainings saved, and how the commands ended."""

    root: Path
    ended: dict

    def output(self, name):
        assert self.ended[name].status == 0, self.ended[name].output[-3000:]
        return self.ended[name].output

    def checkpoint(self, name):
        self.output(name)
        return checkpoint_utils.load_checkpoint_to_cpu(str(self.root / name / "checkpoint_last.pt"))


@pytest.fixture(scope="module")
def runs(run_fairseq, tiny_corpus, tmp_path_factory):
    """All trainings that ought to work, and translations with their models."""
    root = tmp_path_factory.mktemp("runs")

    def train(name, *args):
        return training(tiny_corpus, root, name, *args)

    def generate(name, *args):
        return generation(tiny_corpus, root, name, *args)

    commands = {
        "batches of 8": train("batches of 8", *CRF, *OURS, *SGD, *SAME_DATA, "--batch-size", 8),
        "two of 4": train("two of 4", *CRF, *OURS, *SGD, *SAME_DATA, "--batch-size", 4, "--update-freq", 2),
        "wide": train("wide", *CRF, *OURS, *ADAM, *WIDE, "--max-epoch", 3),
        "wide batches": generate("wide", *WIDE, "--score-reference"),
        "tight batches": generate("wide", "--score-reference"),
        "adaptive": train("adaptive", *CRF, *ADAPTIVE, *ADAM, "--batch-size", 16, "--max-epoch", 3),
        "adaptive translations": generate("adaptive"),
    }
    return Runs(root, run_jobs(run_fairseq, commands))


@pytest.fixture(scope="module")
def runs_of_optimizers(run_fairseq, tiny_corpus, tmp_path_factory):
    """Trainings by each optimizer, which save in between, and what goes on from there, by the same or the other one."""
    root = tmp_path_factory.mktemp("optimizers")

    def train(name, optimizer, *args):
        return training(tiny_corpus, root, name, *STEADY, "--optimizer", optimizer, *args)

    saving = ["--save-interval-updates", INTERRUPTED_AFTER]
    commands = {name: train(name, name, *saving) for name in ("adam", FUSED)}
    for first, second in ((FUSED, FUSED), (FUSED, "adam"), ("adam", FUSED)):
        name = f"{first}, {second}"
        commands[name] = train(name, second, "--restore-file", root / first / SAVED)
    return Runs(root, run_jobs(run_fairseq, commands))


@pytest.fixture(scope="module", params=RESUMED_MODELS.values(), ids=RESUMED_MODELS)
def resumed_runs(request, run_fairseq, tiny_corpus, tmp_path_factory):
    """A training without and with an interruption."""
    root = tmp_path_factory.mktemp("resumed")

    def train(name, last_update):
        return training(tiny_corpus, root, name, *request.param, *RESUMED, "--max-update", last_update)

    commands = {
        "uninterrupted": train("uninterrupted", LAST_UPDATE),
        "interrupted": train("resumed", INTERRUPTED_AFTER),
        "resumed": train("resumed", LAST_UPDATE),
    }
    return Runs(root, run_jobs(run_fairseq, commands))


def updates(output):
    """Update → what was logged of it, apart from times."""
    lines = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "| train_inner | {" in line]
    timed = ("wps", "ups", "wall", "train_wall")
    return {int(line["num_updates"]): {key: line[key] for key in line if key not in timed} for line in lines}


def hypotheses(output):
    return {int(number): text for number, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)}


def positional_scores(output):
    lines = re.findall(r"^P-(\d+)\t(.*)$", output, re.MULTILINE)
    return {int(number): [float(score) for score in text.split()] for number, text in lines}


def leaves(tree, path=()):
    """All tensors and values in nested containers, by where they are."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else None
    if items is None:
        return {path: tree}
    return {place: leaf for key, child in items for place, leaf in leaves(child, (*path, key)).items()}


@pytest.mark.slow
def test_resumed_training_logs_what_an_uninterrupted_one_does(resumed_runs):
    expected, before, after = (updates(resumed_runs.output(name)) for name in resumed_runs.ended)
    assert sorted(before) == list(range(1, INTERRUPTED_AFTER + 1))
    assert sorted(after) == list(range(INTERRUPTED_AFTER + 1, LAST_UPDATE + 1))
    assert {**before, **after} == expected


@pytest.mark.slow
def test_resumed_training_ends_bit_for_bit_like_an_uninterrupted_one(resumed_runs):
    assert_same_bits(*map(resumed_runs.checkpoint, ("uninterrupted", "resumed")))


@pytest.mark.slow
def test_a_training_by_fused_updates_goes_on_bit_for_bit(runs_of_optimizers):
    names = FUSED, f"{FUSED}, {FUSED}"
    expected, resumed = (updates(runs_of_optimizers.output(name)) for name in names)
    assert resumed == {number: log for number, log in expected.items() if number > INTERRUPTED_AFTER}
    assert_same_bits(*map(runs_of_optimizers.checkpoint, names))


@pytest.mark.slow
@pytest.mark.parametrize("first, second", [("adam", FUSED), (FUSED, "adam")])
def test_a_training_goes_on_by_the_other_optimizer(runs_of_optimizers, first, second):
    expected, resumed = (runs_of_optimizers.checkpoint(name) for name in (first, f"{first}, {second}"))
    assert resumed["cfg"]["optimizer"]["_name"] == second
    for part in ("model", "last_optimizer_state"):
        torch.testing.assert_close(leaves(resumed[part]), leaves(expected[part]), atol=1e-6, rtol=1e-4)


def assert_same_bits(expected, resumed):
    """Two checkpoints have the same parameters and the same state of the optimizer."""
    for part in ("model", "last_optimizer_state"):
        expected_leaves, resumed_leaves = leaves(expected[part]), leaves(resumed[part])
        assert expected_leaves.keys() == resumed_leaves.keys()
        for place, leaf in expected_leaves.items():
            same = torch.equal(leaf, resumed_leaves[place]) if torch.is_tensor(leaf) else leaf == resumed_leaves[place]
            assert same, (part, place)


@pytest.mark.slow
def test_update_frequency_equals_larger_batches(runs):
    expected, gathered = runs.checkpoint("batches of 8")["model"], runs.checkpoint("two of 4")["model"]
    assert any(name.endswith("pairwise") for name in expected)
    for name in expected:
        torch.testing.assert_close(gathered[name], expected[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.slow
def test_batches_wider_than_their_sentences(runs):
    runs.output("wide")
    wide, tight = (positional_scores(runs.output(f"{kind} batches")) for kind in ("wide", "tight"))
    assert sorted(wide) == sorted(tight) == list(range(SENTENCES))
    for number in wide:
        assert wide[number] == pytest.approx(tight[number], abs=2e-4), number


@pytest.mark.slow
def test_adaptive_softmax(runs):
    runs.output("adaptive")
    assert sorted(hypotheses(runs.output("adaptive translations"))) == list(range(SENTENCES))


# What is given, what the message has to name, and what it has to offer.
WRONG = {
    "distribution": (["--attention-distribution", "crf"], "--attention-distribution crf", "linear-chain"),
    "dot": (
        ["--attention-score", "dot", "--decoder-hidden-size", "24"],
        "--attention-score",
        "--decoder-hidden-size 16",
    ),
    "start": (["--decoder-start", "backward"], "--decoder-start backward", "--encoder-bidirectional"),
    "dropout": (["--dropout", "1.5"], "--dropout 1.5", "less than 1"),
    "cutoff": (["--adaptive-softmax-cutoff", "8,5000"], "--adaptive-softmax-cutoff 8,5000", "only 24 words"),
    "penalty": (["--pairwise-l2", "-1"], "--pairwise-l2 -1", "0 or greater"),
    "coverage": (["--attention-coverage", "all"], "--attention-coverage all", "fertility"),
    "guided": (["--guided-alignment", "1"], "--guided-alignment 1", "--load-alignments"),
    "no alignments": (["--guided-alignment", "1", "--load-alignments"], "train.align.src-tgt", "--align-suffix"),
    "no heads": (["--tree-supervision", "1", "--source-attention", "softmax"], "--tree-supervision", "--load-heads"),
    "no trees": (["--tree-supervision", "1"], "--tree-supervision", "--source-attention"),
    "no file": (["--task", "structattn_translation", "--load-heads"], "train.heads.src", "--load-heads"),
}


@pytest.fixture(scope="module")
def refused(run_fairseq, tiny_corpus, tmp_path_factory):
    root = tmp_path_factory.mktemp("wrong")
    right = [*CRF, *OURS, *ADAM, "--batch-size", "16", "--max-update", "1"]
    wrong = {name: training(tiny_corpus, root, name, *right, *given) for name, (given, _, _) in WRONG.items()}
    return run_jobs(run_fairseq, wrong)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_end_with_a_helpful_message(refused, name):
    _, option, way_out = WRONG[name]
    assert refused[name].status != 0
    message = refused[name].output.strip().splitlines()[-1]
    assert option in message and way_out in message


HYDRA = """
common:
  user_dir: {package}
  cpu: true
checkpoint:
  save_dir: {save_dir}
task:
  _name: translation
  data: {data}
model:
  _name: structattn_rnn_crf
  encoder_embed_dim: 16
  decoder_embed_dim: 16
criterion:
  _name: structattn_label_smoothed_cross_entropy
  pairwise_l2: 0.005
optimizer:
  _name: adam
lr_scheduler:
  _name: fixed
optimization:
  lr: [0.01]
  max_update: 100
dataset:
  batch_size: 16
"""


@pytest.fixture(scope="module")
def hydra_run(run_fairseq, tiny_corpus, tmp_path_factory):
    root = tmp_path_factory.mktemp("hydra")
    text = HYDRA.format(package=PACKAGE, save_dir=root / "saved", data=tiny_corpus.bin)
    (root / "crf.yaml").write_text(text)
    output = run_fairseq(
        "hydra_train", "--config-dir", root, "--config-name", "crf", "optimization.max_update=2", cwd=root
    )
    return root / "saved" / "checkpoint_last.pt", output


@pytest.mark.slow
def test_hydra_trains_the_architecture(hydra_run):
    path, _ = hydra_run
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert state["optimizer_history"][-1]["num_updates"] == 2  # an override on the command line
    model = state["cfg"]["model"]
    assert model["encoder_embed_dim"] == 16  # what the user says …
    # … and what the architecture says where the user says nothing
    assert (model["attention_distribution"], model["attention_scale"]) == ("linear-chain", 2.0)
    assert (model["decoder_hidden_size"], model["decoder_start"], model["dropout"]) == (500, "zero", 0.3)
    assert any(name.endswith("pairwise") for name in state["model"])


@pytest.mark.slow
def test_hydra_checkpoint_translates(run_fairseq, hydra_run, tiny_corpus):
    path, _ = hydra_run
    output = run_fairseq(
        "generate", tiny_corpus.bin, "--user-dir", PACKAGE, "--path", path, "--cpu",
        "--batch-size", "64", "--beam", "1", "--max-len-b", "5",
    )  # fmt: skip
    assert sorted(hypotheses(output)) == list(range(SENTENCES))
