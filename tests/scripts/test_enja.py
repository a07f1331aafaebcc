"""scripts/experiments/enja: which runs there are, what they keep, how systems are compared, and the whole way once."""

import json
import random
from collections import Counter
from pathlib import Path

import comparison
import made_translations
import numpy as np
import pytest
import recipes
import segments
import settings
import torch
from helpers_scripts import SCRIPTS, load_script, run_experiment
from made_translations import WORDS, epoch, sentences

from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.translation_run import ALWAYS, write_compact

pytestmark = pytest.mark.usefixtures("forked_python")

HERE = SCRIPTS / "experiments" / "enja"
report = load_script("experiments/enja/report.py")
one_run = load_script("experiments/enja/one_run.py")


def write_trials(folder):
    """Of which the second is the best for softmax and the last for the chain."""
    for model in settings.MODELS:
        last = len(settings.MODELS[model].grid) - 1
        for system, best in {"softmax": 1, "chain": last}.items():
            names = [str(name) for name in settings.trials(model) if name.system == system]
            made_translations.write_trials(folder, names, best)


# The runs


def test_plan_has_all_runs_the_more_telling_ones_first():
    groups = settings.plan(["finals"])
    names = [str(name) for group in groups for name in group]
    assert names[:2] == ["char.paper.softmax", "char.paper.chain"] and len(names) == len(set(names)) == 18
    sides = Counter(name.rpartition(".")[0] for name in names)
    assert sides == {"char.paper": 6, "char.modern": 6, "word.paper": 3, "pieces.paper": 3}
    assert settings.plan(["char.paper"]) == groups[:2]
    assert [str(name) for name in settings.plan(["explored"])[0]][0] == "char.paper.slow"
    tried = settings.trials("paper")
    assert set(Counter((name.system, name.trial) for name in tried).values()) == {1}
    assert Counter(name.system for name in tried) == dict.fromkeys(settings.TUNED, len(settings.MODELS["paper"].grid))
    assert all(settings.parse_name(str(name)) == name for name in tried)


@pytest.mark.parametrize(
    "name, message",
    [
        ("char.paper.max", "max is none of softmax softmax_2 sigmoid sigmoid_2 chain uncoupled slow"),
        ("char.paper", "nothing is none of softmax"),
        ("kana.paper.chain", "kana is none of char word pieces"),
        ("char.paper.chain.x", "has three parts"),
        ("char.paper.chain@lr", "after @ it has settings such as"),
    ],
)
def test_unknown_runs_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        settings.parse_name(name)


def test_controls_take_what_was_chosen_for_the_chain(tmp_path):
    with pytest.raises(ValueError, match=r"char.paper.softmax@\S+: this trial has to be made before .* trials.paper"):
        settings.train_options(settings.parse_name("char.paper.softmax"), str(tmp_path))
    write_trials(tmp_path)
    first, second, *_, last = ([point["lr"], point["dropout"]] for point in settings.MODELS["paper"].grid)
    for system in settings.SYSTEMS:
        options = settings.train_options(settings.Name("word", "paper", system), str(tmp_path))
        expected = second if system == "softmax" else last
        assert [options[options.index(f"--{option}") + 1] for option in ("lr", "dropout")] == expected


def test_models_are_those_that_were_asked_for(tmp_path):
    fairseq = pytest.importorskip("fairseq.options")
    from fairseq import utils

    from fairseq_structattn.models.rnn_options import RNNOptions

    utils.import_user_module(type("Options", (), {"user_dir": str(HERE / "attention_variants")}))
    write_trials(tmp_path)

    def options(name):
        words = settings.train_options(settings.parse_name(name), str(tmp_path)) + ALWAYS
        given = fairseq.parse_args_and_arch(fairseq.get_training_parser(), ["data", *words])
        return given, RNNOptions.from_namespace(given)

    given, paper = options("char.paper.chain")
    assert (paper.encoder_layers, paper.decoder_layers, paper.decoder_start) == (2, 2, "zero")
    assert not paper.encoder_bidirectional and not paper.input_feeding
    assert (given.optimizer, given.sentence_avg, given.pairwise_l2, given.clip_norm) == ("sgd", True, 0.005, 1)
    given, modern = options("char.modern.chain")
    assert (modern.encoder_layers, modern.encoder_bidirectional, modern.input_feeding) == (1, True, True)
    assert (given.optimizer, given.label_smoothing, given.sentence_avg) == ("adam", 0.1, False)
    chosen = float(settings.MODELS["modern"].grid[2]["dropout"])
    assert modern.dropout_of("decoder_dropout_in") == modern.dropout_of("layer_dropout") == chosen
    couplings = [options(f"char.paper.{system}")[1].attention_couplings for system in ("chain", "query", "neighbours")]
    assert couplings == ["shared", "query", "neighbours"]
    found = {}
    for system in settings.SYSTEMS:
        one = options(f"char.paper.{system}")[1]
        found[system] = (one.attention_distribution, one.attention_scale, one.attention_normalize)
    assert found == {
        "softmax": ("softmax", 1, "none"),
        "softmax_2": ("softmax", 2, "none"),
        "sigmoid": ("sigmoid", 1, "none"),
        "sigmoid_2": ("sigmoid", 2, "sum"),
        "chain": ("linear-chain", 2, "sum"),
        "uncoupled": ("uncoupled-chain", 2, "sum"),
    }


def test_explored_models_differ_as_their_names_say(tmp_path):
    fairseq = pytest.importorskip("fairseq.options")
    import building
    from fairseq import utils
    from fairseq.models import ARCH_MODEL_REGISTRY

    utils.import_user_module(type("Options", (), {"user_dir": str(HERE / "attention_variants")}))
    write_trials(tmp_path)
    sample = building.batch(building.sentences([5, 3]), building.sentences([4, 2], seed=1), left_pad=False)
    found = {}
    for system in ("chain", *settings.EXPLORED):
        words = settings.train_options(settings.parse_name(f"char.paper.{system}"), str(tmp_path), tiny=True)
        given = fairseq.parse_args_and_arch(fairseq.get_training_parser(), ["data", *words, *ALWAYS])
        torch.manual_seed(1)
        model = ARCH_MODEL_REGISTRY[given.arch].build_model(given, building.TASK).eval()
        scores, extra = model(**sample["net_input"], return_posterior=True)
        scores.logsumexp(-1).sum().backward()
        assert all(torch.isfinite(part.grad).all() for part in model.parameters() if part.grad is not None)
        found[system] = (model, extra["attn"][0], given)
    weights = {system: own for system, (_, own, _) in found.items()}
    ends = sample["net_input"]["src_tokens"] == building.DICTIONARY.eos()
    assert (weights["words"].transpose(1, 2)[ends] == 0).all() and (weights["chain"].transpose(1, 2)[ends] > 0).all()
    for system in ("words", "started", "bounded", "slow", "one_span", "query", "neighbours", "bridge"):
        assert not torch.allclose(weights[system], weights["chain"]), system
    assert torch.equal(weights["unpenalised"], weights["chain"]) and found["unpenalised"][2].pairwise_l2 == 0
    for system, total in (("heads", 2), ("softmax_heads", 1)):
        assert torch.allclose(weights[system].sum(-1), torch.tensor(float(total)))
    assert found["heads"][0].decoder.attention.tables["pairwise"].shape == (4, 2, 2)


def test_without_coupling_a_chain_is_a_sigmoid_with_a_bias():
    pytest.importorskip("fairseq")
    from attention_variants.uncoupled_chain import UncoupledChain

    torch.manual_seed(1)
    scores, table = torch.randn(2, 7, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    marginals = UncoupledChain.from_scores(scores, None, table).marginals
    checkered = torch.tensor([[1, -1], [-1, 1]], dtype=torch.float64)
    projected = table.detach() - comparison.coupling(table.detach().tolist()) / 4 * checkered
    assert abs(comparison.coupling(projected.tolist())) < 1e-12
    bias = comparison.bias(projected.tolist())
    assert torch.allclose(marginals[:, 1:-1], torch.sigmoid(scores + bias)[:, 1:-1])
    (gradient,) = torch.autograd.grad((marginals * torch.randn_like(marginals)).sum(), table)
    assert abs(comparison.coupling(gradient.tolist())) < 1e-7


# The report


def write_run(folder, name, seed, share):
    table = [[0.1, -0.2], [0.0, 0.7]] if "chain" in name else None
    weights = {"id": 3, "score": -0.5, "source": ["猫", "</s>"], "target": ["cat", "</s>"], "segments": None}
    further = {
        "epochs": [epoch(1, pairwise=table), epoch(2, pairwise=table)],
        "attention": [{**weights, "weights": [[0.9, 0.1], [0.2, 0.8]]}],
        "boundaries": {"threshold": 0.2, "sentence": [10, 5, 8, 4.0], "steps": [20, 5, 30, 9.0]},
    }
    made_translations.write_run(folder, name, seed, share, **further)


def test_lengths_are_those_of_the_source():
    run = {"test": made_translations.scored(random.Random(1), made_translations.tests(), 0.0)}
    found = comparison.by_length({1: run})
    assert [size for size, _ in found] == [2, 78, 0, 0] and found[1][1] == [pytest.approx(100)]


# Boundaries


def test_boundaries_lie_between_characters():
    assert segments.word_boundaries("これ は 本") == {2, 3}
    assert segments.boundaries([(0, 2), (3, 5)], 4) == {2, 3}  # 5 is behind </s>
    assert segments.above([0.5, 0.1, 0.6, 0.7], 0.5) == [(0, 1), (2, 4)]


def test_counts_of_a_sentence_and_of_chance():
    found = segments.counts([[(0, 2)], [(1, 2)]], {2, 3}, 4)
    assert found["steps"] == (3, 2, 4, pytest.approx(2.0)) and found["sentence"] == (2, 1, 2, pytest.approx(4 / 3))
    assert found["sentence"].scores == (50, 50, 50)
    assert found["sentence"].chance_scores == pytest.approx((200 / 3, 200 / 3, 200 / 3))
    assert segments.Count().scores == (0, 0, 0)


def test_thresholds_are_chosen_by_f1():
    marginals = [[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.25], [1.0, 0.0, 0.0, 0.0]]
    record = AttentionRecord(
        0, 0, 0.0, True, list("これは") + ["</s>"], ["a", "b", "</s>"], marginals, marginals=marginals
    )
    assert segments.best_threshold([record], ["これ は"]) == 0.1
    assert segments.measure([record], ["これ は"], 0.4)["sentence"] == (1, 1, 1, 0.5)


def test_report_of_what_there_is(tmp_path):
    results, made = tmp_path / "results", tmp_path / "made"
    made.mkdir()
    write_trials(results)
    for name, share, seeds in (("char.paper.softmax", 0.4, (1, 2)), ("char.paper.chain", 0.2, (1,))):
        for seed in seeds:
            write_run(results, name, seed, share)
    query = {"name": "char.paper.query", "seed": 1, "epochs": [epoch(1), epoch(2)]}
    write_compact(str(results / "char.paper.query-1.json"), query)
    (made / "README.md").write_text("before\n<!-- table: begin -->\n<!-- table: end -->\nafter\n")
    report.main([str(results), "--dest", str(made)])
    text = (made / "README.md").read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "Scores: 3 of 54 runs" in text
    lines = text.splitlines()
    assert any(line.startswith("| CHAR | paper | softmax | 2 of 3 | 3.00 ± 0.00 | 11.0 ± 0.0 | ") for line in lines)
    assert any(line.startswith("| WORD | paper | chain | 0 of 3 | – | – | – |") for line in lines)
    (against,) = [line for line in lines if line.startswith("| CHAR | paper | chain | 1 | ")]
    assert against.count("p = ") == 3
    assert any(line.startswith("| CHAR | paper | chain | J | 1.00 | 1.00 |") for line in lines)
    assert any(
        line == "| paper | softmax | p ≥ 0.2 | 50.0 | 62.5 | 55.6 | 40.0 | 50.0 | 44.4 | 25.0 | 45.0 |"
        for line in lines
    )
    assert "| chain, couplings of the query | 1 | 3.00 | 11.0 | 7 |" in lines
    _, second, *_, last = settings.MODELS["paper"].grid
    assert f"paper: chosen softmax: lr {second['lr']}, dropout {second['dropout']}; chain: lr {last['lr']}" in text
    for picture in ("answer.png", "learning.png", "by_length.png", "attention.png"):
        assert f"]({picture})" in text and (made / picture).stat().st_size > 5000


def test_report_without_runs_invents_none(tmp_path):
    (tmp_path / "results").mkdir()
    report.main([str(tmp_path / "results"), "--dest", str(tmp_path)])
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Scores: 0 of 54 runs" in text and text.count("| 0 of 3 |") == 18 and ".png" not in text


# The whole way


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["WORK", "trials.paper"],
            "no train.ja in any folder: name the folder of small_parallel_enja by DATA or",
        ),
        (["WORK", "nonsense"], "unknown run nonsense: nonsense is none of char word pieces"),
        (["--corpus"], "--corpus needs a value"),
        (["--data", "x"], "unknown option --data"),
    ],
)
def test_wrong_calls_are_answered(tmp_path, arguments, message):
    done = run_experiment(
        "enja", "--dry-run", *[str(tmp_path / "work") if word == "WORK" else word for word in arguments], DATA=""
    )
    assert done.returncode != 0 and message in done.stderr


@pytest.mark.slow
def test_from_raw_text_to_the_report(tmp_path):
    pytest.importorskip("fairseq")
    rng = random.Random(4)
    corpus, work = tmp_path / "corpus", tmp_path / "work"
    corpus.mkdir()
    for split, count in (("train", 80), ("dev", 6), ("test", 30)):
        english = sentences(rng, count)
        kana = {word: "猫犬見走二遅"[len(word) % 6] + "ん" * (number % 3) for number, word in enumerate(WORDS)}
        japanese = [" ".join(kana[word] for word in line.split()) for line in english]
        (corpus / f"{split}.en").write_text("\n".join(english) + "\n", encoding="utf-8")
        (corpus / f"{split}.ja").write_text("\n".join(japanese) + "\n", encoding="utf-8")
    write_trials(work.parent / "trials")
    work.mkdir()
    (work.parent / "trials").rename(work / "results")
    arguments = ["--dry-run", "--corpus", corpus, work, "char.modern.chain"]
    done = run_experiment("enja", *arguments, SEEDS="1")
    assert done.returncode == 0, done.stderr
    kept = json.loads((work / "results" / "char.modern.chain-1.json").read_text(encoding="utf-8"))
    assert len(kept["epochs"]) == 2 and np.shape(kept["epochs"][1]["pairwise"]) == (2, 2)
    assert len(kept["test"]["test2"]["statistics"]) == 20 * 5 and kept["boundaries"]["threshold"] == 0
    assert [record["id"] for record in kept["attention"]] == [12, 17, 21, 24, 26]
    assert "Scores: 1 of 54 runs" in (work / "README.md").read_text(encoding="utf-8")
    again = run_experiment("enja", *arguments, SEEDS="1", DATA="")
    assert again.returncode == 0 and "training" not in again.stdout
    recipes.main(["--work", str(work), "--results", str(work), "--tiny", "average"])
    (average,) = [json.loads(line) for line in (work / "recipes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert average["recipe"] == "average" and set(average["test"]) == set(recipes.SCORED)
    settings_of_run = (str(work), str(work / "results"), True)
    student = recipes.Student(recipes.Recipes(*settings_of_run).chain, *settings_of_run)
    student.prepare()
    translations, references = (
        (folder / "train.en").read_text(encoding="utf-8").splitlines() for folder in (Path(student.data), work / "char")
    )
    assert len(translations) == len(references) == 60 and translations != references
    (work / "char" / "fingerprint").write_text("other data\n")
    stale = one_run.Run("char.modern.chain", 1, str(work), str(work / "results"), tiny=True)
    assert not stale.is_done()
