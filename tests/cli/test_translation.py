"""From training to translations: what fairseq's commands print with a CRF model, whatever the batches are."""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("fairseq")

from fairseq import checkpoint_utils  # noqa: E402

from fairseq_structattn.models import StructuredAttentionRNN  # noqa: E402

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
SIZES = [
    "--encoder-embed-dim", "32", "--encoder-hidden-size", "32", "--encoder-layers", "1",
    "--decoder-embed-dim", "32", "--decoder-hidden-size", "32", "--decoder-layers", "1",
    "--decoder-out-embed-dim", "32",
]  # fmt: skip
SENTENCES = 100
EPOCHS = 10
# The CRF architecture normalises its marginals and scales them by this.
ATTENTION_SCALE = 2.0
# Scores and weights are printed with few digits, and depend a little on the order of sums.
PRINTED = 2e-4

# Runs one command after the other: most of the time of a command goes into importing fairseq.
DRIVER = """
import contextlib, importlib, json, sys
for job in json.load(sys.stdin):
    sys.argv = [job["command"]] + job["args"]
    with open(job["output"], "w") as output, contextlib.redirect_stdout(output):
        importlib.import_module("fairseq_cli." + job["command"]).cli_main()
"""


class Trained(NamedTuple):
    """Checkpoints of one training, and what it printed."""

    best: Path
    log: str


def train(run_fairseq, corpus, save_dir, *args):
    common = ["--optimizer", "adam", "--lr", "0.02", "--batch-size", "16", "--max-epoch", EPOCHS, "--cpu"]
    common += ["--no-epoch-checkpoints", "--log-format", "json", "--save-dir", save_dir]
    log = run_fairseq("train", corpus.bin, "--user-dir", PACKAGE, *common, *args)
    return Trained(save_dir / "checkpoint_best.pt", log)


@pytest.fixture(scope="module")
def crf(run_fairseq, tiny_corpus, tmp_path_factory):
    """A CRF model that knows a little: its translations vary with the source."""
    return train(
        run_fairseq, tiny_corpus, tmp_path_factory.mktemp("crf"), "--arch", "structattn_rnn_crf", *SIZES,
        "--criterion", "structattn_label_smoothed_cross_entropy", "--label-smoothing", "0.1",
        "--pairwise-l2", "0.005", "--eval-bleu", "--eval-bleu-args", '{"beam": 1}', "--eval-tokenized-bleu",
        "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric",
    )  # fmt: skip


@pytest.fixture(scope="module")
def lstm(run_fairseq, tiny_corpus, tmp_path_factory):
    """Fairseq's own model, for ensembles."""
    return train(
        run_fairseq, tiny_corpus, tmp_path_factory.mktemp("lstm"), "--arch", "lstm",
        "--encoder-embed-dim", "32", "--encoder-hidden-size", "32",
        "--decoder-embed-dim", "32", "--decoder-hidden-size", "32", "--decoder-out-embed-dim", "32",
        "--criterion", "cross_entropy",
    )  # fmt: skip


@pytest.fixture(scope="module")
def outputs(run_fairseq, crf, lstm, tiny_corpus, tmp_path_factory):
    """What each of many commands printed, by a name for it."""
    root = tmp_path_factory.mktemp("outputs")
    (root / "lines").write_text(INTERACTIVE_LINES)
    both = f"{crf.best}:{lstm.best}"
    generate = {
        "batches of 1": (crf.best, "--batch-size", "1", "--print-alignment", "hard"),
        "batches of 64": (crf.best, "--batch-size", "64", "--print-alignment", "hard"),
        "soft, batches of 1": (crf.best, "--batch-size", "1", "--print-alignment", "soft"),
        "soft, batches of 64": (crf.best, "--batch-size", "64", "--print-alignment", "soft"),
        "prefix": (crf.best, "--batch-size", "64", "--prefix-size", "1"),
        "reference, batches of 1": (crf.best, "--batch-size", "1", "--score-reference", "--print-alignment", "hard"),
        "reference, batches of 64": (crf.best, "--batch-size", "64", "--score-reference", "--print-alignment", "hard"),
        "reference, soft": (crf.best, "--batch-size", "64", "--score-reference", "--print-alignment", "soft"),
        "reference, lstm": (lstm.best, "--batch-size", "64", "--score-reference"),
        "reference, both": (both, "--batch-size", "64", "--score-reference"),
        "both": (both, "--batch-size", "64", "--print-alignment", "hard"),
    }  # fmt: skip
    commands = {name: ("generate", path, *args) for name, (path, *args) in generate.items()}
    commands["interactive, batches of 1"] = ("interactive", crf.best, "--input", root / "lines")
    commands["validate"] = ("validate", crf.best, "--task", "translation", "--batch-size", "16", "--log-format", "json")
    jobs = []
    for number, (command, path, *args) in enumerate(commands.values()):
        args = [tiny_corpus.bin, "--user-dir", PACKAGE, "--path", path, "--cpu", *args]
        jobs.append({"command": command, "args": [str(arg) for arg in args], "output": str(root / str(number))})
    run_fairseq.program(DRIVER, stdin=json.dumps(jobs))
    return {name: Path(job["output"]).read_text() for name, job in zip(commands, jobs)}


def answers(output, kind):
    """Sentence number → what its line of this kind says, without the score of a hypothesis."""
    found = re.findall(rf"^{kind}-(\d+)\t(.*)$", output, re.MULTILINE)
    assert len({number for number, _ in found}) == len(found)
    return {int(number): text.split("\t")[-1] for number, text in found}


def words(output, kind="H"):
    return {number: text.split() for number, text in answers(output, kind).items()}


def positional_scores(output):
    return {number: [float(score) for score in text.split()] for number, text in answers(output, "P").items()}


def hard_alignments(output):
    return {
        number: [tuple(map(int, pair.split("-"))) for pair in text.split()]
        for number, text in answers(output, "A").items()
    }


def soft_alignments(output):
    return {
        number: [[float(weight) for weight in row.split(",")] for row in text.split()]
        for number, text in answers(output, "A").items()
    }


def assert_close(first, second, tolerance=PRINTED):
    assert first.keys() == second.keys()
    for number in first:
        assert first[number] == pytest.approx(second[number], abs=tolerance), number


def log_lines(log, tag):
    return [json.loads(line[line.index("{") :]) for line in log.splitlines() if f"| {tag} | {{" in line]


@pytest.mark.slow
def test_every_sentence_is_translated_once(run_fairseq, outputs, crf, tiny_corpus):
    output = run_fairseq(
        "generate", tiny_corpus.bin, "--user-dir", PACKAGE, "--path", crf.best, "--cpu",
        "--batch-size", "24", "--required-batch-size-multiple", "8",
    )  # fmt: skip
    assert sorted(answers(output, "H")) == list(range(SENTENCES))
    assert words(output) == words(outputs["batches of 64"])  # which prints alignments as well


@pytest.mark.slow
def test_model_has_learned_something(outputs):
    # Otherwise the comparisons below compare one and the same sentence.
    assert len(set(answers(outputs["batches of 64"], "H").values())) > SENTENCES / 4


@pytest.mark.slow
def test_translations_do_not_depend_on_the_batch(outputs):
    alone, together = outputs["batches of 1"], outputs["batches of 64"]
    assert len(words(alone)) == SENTENCES
    assert words(alone) == words(together)
    assert_close(positional_scores(alone), positional_scores(together))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 64])
def test_hard_alignment_links_each_word_within_its_sentence(outputs, size):
    output = outputs[f"batches of {size}"]
    sources, hypotheses = words(output, "S"), words(output)
    alignments = hard_alignments(output)
    assert len(alignments) == SENTENCES
    for number, pairs in alignments.items():
        assert [target for _, target in pairs] == list(range(len(hypotheses[number])))
        assert all(0 <= source < len(sources[number]) for source, _ in pairs)


@pytest.mark.slow
def test_hard_alignments_do_not_depend_on_the_batch(outputs):
    alone = hard_alignments(outputs["batches of 1"])
    assert alone == hard_alignments(outputs["batches of 64"])
    # A shift of columns would not show if all words were linked to the first one.
    assert len({source for pairs in alone.values() for source, _ in pairs}) > 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 64])
def test_soft_alignment_shows_all_weights(outputs, size):
    output = outputs[f"soft, batches of {size}"]
    sources, hypotheses = words(output, "S"), words(output)
    alignments = soft_alignments(output)
    assert len(alignments) == SENTENCES
    for number, rows in alignments.items():
        assert len(rows) == len(hypotheses[number]) + 1  # the end of the sentence is predicted, too
        for row in rows:
            assert len(row) == len(sources[number]) + 1
            assert sum(row) == pytest.approx(ATTENTION_SCALE, abs=PRINTED)


@pytest.mark.slow
def test_soft_alignments_do_not_depend_on_the_batch(outputs):
    alone, together = (soft_alignments(outputs[f"soft, batches of {size}"]) for size in (1, 64))
    assert alone.keys() == together.keys()
    for number in alone:
        assert len(alone[number]) == len(together[number])
        for row, other in zip(alone[number], together[number]):
            assert row == pytest.approx(other, abs=PRINTED)


@pytest.mark.slow
def test_prefix_is_kept(outputs):
    references, forced = words(outputs["prefix"], "T"), words(outputs["prefix"])
    free = words(outputs["batches of 64"])
    assert len(forced) == SENTENCES
    assert all(forced[number][0] == references[number][0] for number in forced)
    # Had the model begun like the reference anyway, nothing would be tested.
    assert any(free[number][:1] != references[number][:1] for number in free)


@pytest.mark.slow
def test_references_are_scored(outputs):
    alone, together = (outputs[f"reference, batches of {size}"] for size in (1, 64))
    assert len(words(alone)) == SENTENCES
    assert words(alone) == words(alone, "T")
    assert_close(positional_scores(alone), positional_scores(together))


@pytest.mark.slow
def test_references_are_aligned(outputs):
    alone, together = (outputs[f"reference, batches of {size}"] for size in (1, 64))
    alignments, references = hard_alignments(alone), words(alone, "T")
    assert all(len(alignments[number]) == len(references[number]) for number in references)
    assert alignments == hard_alignments(together)


@pytest.mark.slow
def test_references_are_aligned_softly(outputs):
    hard, soft = hard_alignments(outputs["reference, batches of 64"]), soft_alignments(outputs["reference, soft"])
    references = words(outputs["reference, soft"], "T")
    for number, rows in soft.items():
        assert len(rows) == len(references[number]) + 1
        assert hard[number] == [(row.index(max(row[:-1])), step) for step, row in enumerate(rows[:-1])]


@pytest.mark.slow
def test_ensemble_averages_probabilities(outputs):
    ours, stock, both = (
        positional_scores(outputs[f"reference, {models}"]) for models in ("batches of 64", "lstm", "both")
    )
    assert len(both) == SENTENCES
    average = {
        number: [math.log2((2**one + 2**other) / 2) for one, other in zip(ours[number], stock[number])]
        for number in both
    }
    assert_close(both, average)
    assert both != ours


@pytest.mark.slow
def test_ensemble_translates(outputs):
    assert len(words(outputs["both"])) == SENTENCES
    assert len(hard_alignments(outputs["both"])) == SENTENCES


INTERACTIVE_LINES = "\n".join(["w01", "", " ".join(f"w{number % 20:02d}" for number in range(300)), "foo w02 bar", ""])


@pytest.mark.slow
def test_interactive_answers_every_line(run_fairseq, outputs, crf, tiny_corpus):
    together = run_fairseq(
        "interactive", tiny_corpus.bin, "--user-dir", PACKAGE, "--path", crf.best, "--cpu",
        "--buffer-size", "8", "--batch-size", "8", stdin=INTERACTIVE_LINES,
    )  # fmt: skip
    assert sorted(answers(together, "H")) == [0, 1, 2, 3]
    assert words(together) == words(outputs["interactive, batches of 1"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_interactive_aligns_as_generate_does(run_fairseq, outputs, crf, tiny_corpus, kind):
    sources = answers(outputs["batches of 64"], "S")
    numbers = sorted(sources)[:20]
    output = run_fairseq(
        "interactive", tiny_corpus.bin, "--user-dir", PACKAGE, "--path", crf.best, "--cpu", "--print-alignment", kind,
        "--buffer-size", "20", "--batch-size", "20", stdin="\n".join(sources[number] for number in numbers) + "\n",
    )  # fmt: skip
    if kind == "hard":
        expected = hard_alignments(outputs["batches of 64"])
        assert list(hard_alignments(output).values()) == [expected[number] for number in numbers]
        return
    expected = soft_alignments(outputs["soft, batches of 64"])
    for rows, number in zip(soft_alignments(output).values(), numbers):
        assert len(rows) == len(expected[number])
        for row, other in zip(rows, expected[number]):
            assert row == pytest.approx(other, abs=PRINTED)


@pytest.mark.slow
def test_best_checkpoint_is_the_one_with_the_best_bleu(crf):
    epochs = log_lines(crf.log, "valid")
    assert len(epochs) == EPOCHS
    best = max(float(epoch["valid_bleu"]) for epoch in epochs)
    assert best > 0
    assert float(epoch_of(crf)["valid_bleu"]) == best


def epoch_of(trained):
    """What validation printed when the best checkpoint was saved."""
    updates = checkpoint_utils.load_checkpoint_to_cpu(str(trained.best))["optimizer_history"][-1]["num_updates"]
    return next(line for line in log_lines(trained.log, "valid") if int(line["valid_num_updates"]) == updates)


@pytest.mark.slow
def test_validate_gives_the_loss_of_training(outputs, crf):
    (line,) = log_lines(outputs["validate"], "valid")
    expected = epoch_of(crf)
    for name in ("valid_loss", "valid_nll_loss", "valid_pairwise_l2"):
        assert float(line[name]) == pytest.approx(float(expected[name]), abs=1.1e-3), name


@pytest.mark.slow
def test_from_pretrained_translates_alike(outputs, crf, tiny_corpus):
    model = StructuredAttentionRNN.from_pretrained(
        str(crf.best.parent), crf.best.name, data_name_or_path=str(tiny_corpus.bin)
    )
    sources, hypotheses = answers(outputs["batches of 64"], "S"), answers(outputs["batches of 64"], "H")
    numbers = list(range(5))
    assert model.translate([sources[number] for number in numbers]) == [hypotheses[number] for number in numbers]
