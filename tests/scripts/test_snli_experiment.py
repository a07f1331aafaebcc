"""scripts/experiments/snli: which runs there are, that none wins by size, what is reported, and the whole way once."""

import json
import os
import random
import subprocess
import sys
from argparse import Namespace

import make_run
import numpy as np
import pytest
import systems
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from helpers_scripts import SCRIPTS, load_script

import fairseq_structattn  # noqa: F401  (registers the architectures)

pytestmark = pytest.mark.usefixtures("forked_python")

HERE = SCRIPTS / "experiments" / "snli"
report = load_script("experiments/snli/report.py")
prepare = load_script("experiments/snli/prepare.py")

VERSIONS = {"python": "3.11.7"}


# The runs


def test_plan():
    assert systems.plan(["parser"])[0] == systems.TEACHER
    assert systems.plan(["pairs", "translation.tree"]) == [f"pairs.{name}" for name in systems.SYSTEMS] + [
        "translation.tree"
    ]
    assert {systems.teacher(name) for name in systems.plan(["pairs"])} == {"", systems.TEACHER}
    assert systems.teacher("translation.supervised") in systems.plan(["parser"])
    with pytest.raises(systems.InputError, match="unknown run pairs.trees; choose from parser, pairs"):
        systems.plan(["pairs.trees"])


def options_of(name):
    """As fairseq-train has them."""
    from fairseq import options

    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, ["data", *systems.train_options(name), "--save-dir", "x"])


def test_fairseq_knows_all_options():
    for name in systems.plan(list(systems.KINDS)):
        assert options_of(name).maximize_best_checkpoint_metric


def test_no_system_wins_by_size():
    sizes = {}
    for name in systems.plan(["pairs"]):
        cfg, labels = options_of(name), Dictionary()
        for label in "abc":
            labels.add_symbol(label)
        task = Namespace(source_dictionary=Dictionary(), label_dictionary=labels)
        model = ARCH_MODEL_REGISTRY[cfg.arch].build_model(cfg, task)
        sizes[name] = sum(value.numel() for part, value in model.named_parameters() if "embed_tokens" not in part)
    assert max(sizes.values()) < 1.01 * min(sizes.values()), sizes


def test_data_that_runs_need():
    assert prepare.needed(["pairs.none"]) == ["pairs"]
    assert prepare.needed(["pairs.tree", "pairs.given"]) == ["pairs", "treebank.projective.cased"]
    assert prepare.needed(["translation.supervised"]) == ["translation", "treebank.projective.lower"]


# What is kept and reported


def test_right_pairs_are_kept_as_they_are():
    for bits in ([], [True], [False] * 5, [bool(number % 3) for number in range(23)]):
        assert make_run.unpack(make_run.pack(bits)) == bits
    with pytest.raises(make_run.InputError, match="not as make_run.py writes"):
        make_run.unpack("xyz")


def made(name, seed, test):
    metric = make_run.METRICS[name.partition(".")[0]]
    epochs = [{"train_loss": 1.0, f"valid_{metric}": value, "seconds": 3} for value in (50.0, 60.0 + seed)]
    about = {"versions": VERSIONS, "machine": "a machine", "parameters": {"all": 1500, "without_embeddings": 1200}}
    return {"name": name, "seed": seed, "epochs": epochs, "test": test, **about}


def pairs(share, seed, **more):
    right = [bool(value) for value in np.random.default_rng(seed).random(400) < share]
    return {"accuracy": 100 * sum(right) / 400, "right": make_run.pack(right), **more}


def test_differences_are_paired_and_identical_systems_have_p_1():
    own = {1: {"test": pairs(0.7, 1)}, 2: {"test": pairs(0.7, 2)}}
    found = report.difference(own, own)
    assert (found.mean, found.low, found.high, found.p, found.seeds) == (0, 0, 0, 1, 2)
    assert report.p_value(np.array([100.0, 0, -100, 0, 0])) == 1
    # Of 2⁶ exchanges two are as far from 0 as six gains of the same sign.
    assert report.p_value(np.array([100.0] * 6 + [0] * 9)) == pytest.approx(2 / 64, abs=0.01)
    better = report.difference({1: {"test": pairs(0.9, 1)}}, own)
    gain = pairs(0.9, 1)["accuracy"] - pairs(0.7, 1)["accuracy"]
    assert better.mean == pytest.approx(gain) and better.low > 0 and better.p < 0.01 and better.seeds == 1


def test_report_of_some_runs(tmp_path):
    trees = {how: {"directed": 20.0, "undirected": 40.0} for how in ("argmax", "risk")}
    runs = [made("pairs.flat", seed, pairs(0.6, seed)) for seed in (1, 2)]
    runs += [made("pairs.tree", 1, pairs(0.8, 1, trees=trees, unknown_words=12.5))]
    runs += [made(systems.TEACHER, 1, {**trees, "uniform": {"directed": 11.5, "undirected": 22.0}})]
    for run in runs:
        (tmp_path / f"{run['name']}-{run['seed']}.json").write_text(json.dumps(run))
    text = report.report(report.read_runs(str(tmp_path)))
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "| softmax (simple) | 2 of 3 | 1,200 | 61.5 ± 0.7 |" in text
    assert "| 0 of 3 | – | – | – | – | – | – | 85.8 |" in lines["no attention"]
    assert "| projective tree (structured) | 1 of 3 | 20.0 | 40.0 | 20.0 | 40.0 |" in text
    gain = pairs(0.8, 1)["accuracy"] - pairs(0.6, 1)["accuracy"]
    assert lines["tree"].split(" | ")[1:3] == ["–", f"{gain:+.1f} (< 0.001)"]
    assert "12.5 % are `<unk>` for the models of pairs" in text
    assert "| uniform |  | 11.5 | 22.0 |  |  |" in text and "Runs made: 4." in text
    assert report.report({}).endswith("Runs made: 0.")
    assert "published" not in text
    text = report.report({"published.tree": {1: made("published.tree", 1, pairs(0.8, 1, trees=trees))}})
    assert "### SNLI, published setting" in text and text.count("| projective tree (structured) | 1 of 3 | 1,200") == 1
    assert text.count("| projective tree (structured) | 1 of 3 | 20.0 | 40.0") == 1


# The whole way


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))


@pytest.fixture
def corpora(tmp_path):
    rng = random.Random(1)
    words = "a dog cat sees the Man and runs".split()
    sentences = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(60)]
    for part in ("train", "dev", "test"):
        trees = [
            "".join(f"{k}\t{word}\t_\t_\t_\t_\t{k - 1}\tdep\t_\t_\n" for k, word in enumerate(sentence.split(), 1))
            for sentence in sentences[:20]
        ]
        write_lines(tmp_path / "raw" / f"en_ewt-ud-{part}.conllu", trees)
        write_lines(tmp_path / "raw" / f"s1.{part}", sentences)
        write_lines(tmp_path / "raw" / f"s2.{part}", sentences[::-1])
        write_lines(tmp_path / "raw" / f"labels.{part}", [rng.choice(["x", "y", "z"]) for _ in sentences])
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            write_lines(
                tmp_path / "raw" / "tok" / f"{part}.lc.norm.tok.{language}", [line.lower() for line in sentences]
            )
    return tmp_path / "raw"


@pytest.mark.slow
def test_the_whole_way_and_what_is_there_is_not_made_again(tmp_path, corpora):
    names = ["pairs.pretrained", "translation.flat"]
    call = ["bash", str(HERE / "run.sh"), "--dry-run", str(tmp_path / "work"), *names]
    call += [word for option in ("--corpus", "--treebank", "--multi30k") for word in (option, str(corpora))]
    settings = dict(os.environ, SEEDS="1", PYTHON=sys.executable)
    outputs = []
    for _ in range(2):
        done = subprocess.run(call, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
        outputs.append(done.stdout)
    assert outputs[0].count("training, log in") == 3 and "training, log in" not in outputs[1]
    results = tmp_path / "work" / "results"
    assert sorted(path.name for path in results.iterdir()) == [
        f"{name}-1.json" for name in sorted([*names, systems.TEACHER])
    ]
    kept = json.loads((results / "pairs.pretrained-1.json").read_text())
    assert len(kept["epochs"]) == 2 and len(make_run.unpack(kept["test"]["right"])) == 60
    assert 0 <= kept["test"]["trees"]["risk"]["directed"] <= 100
    heads = (tmp_path / "work" / "pairs" / "bin" / "train.heads.premise").read_text().splitlines()
    assert [len(line.split()) for line in heads] == [len(line.split()) for line in (corpora / "s1.dev").open()]
    assert "| 1 of 3 |" in (tmp_path / "work" / "README.md").read_text()
    (results / "translation.flat-1.json").write_text("{}")
    done = subprocess.run(call, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0 and "translation.flat-1.json: not an object of JSON with fingerprint" in done.stdout


def test_data_that_is_missing_is_named(tmp_path):
    with pytest.raises(make_run.InputError, match="published.tree: the published setting has fixed word vectors"):
        make_run.Run("published.tree", 1, str(tmp_path), str(tmp_path))
    for call, message in (
        (["pairs.none"], "--corpus : no s1.dev there; see scripts/experiments/snli/README.md for the data"),
        ([systems.TEACHER, "--treebank", str(tmp_path)], f"--treebank {tmp_path}: no en_ewt-ud-train.conllu there"),
    ):
        with pytest.raises(SystemExit, match=message):
            prepare.main([str(tmp_path / "work"), *call])
