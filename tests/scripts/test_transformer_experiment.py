"""scripts/experiments/transformer: which runs there are, what they are, the report, and the whole way once."""

import json
import random

import made_translations
import pytest
import transformer_settings as settings
from helpers_scripts import load_script, run_experiment
from made_translations import sentences

from fairseq_structattn.analysis import kept_statistics
from fairseq_structattn.analysis.translation_run import ALWAYS

pytestmark = pytest.mark.usefixtures("forked_python")

report = load_script("experiments/transformer/report.py")
one_run = load_script("experiments/transformer/one_run.py")
NAMES = [str(name) for name in settings.finals()]


def write_trials(folder):
    """Of which the last is the best for trees, and the second for all other systems."""
    for corpus in settings.CORPORA:
        for system in settings.SYSTEMS:
            names = [str(name) for name in settings.trials(corpus) if name.system == system]
            made_translations.write_trials(folder, names, 2 if system == "tree" else 1)


def test_plan_has_every_system_on_both_corpora():
    assert settings.plan(["finals"]) == [settings.finals()] and len(NAMES) == len(set(NAMES)) == 8
    assert [len(group) for group in settings.plan(["trials.enja", "enja", "multi30k.tree"])] == [12, 4, 1]
    tried = settings.trials("enja")
    assert all(sum(name.system == system for name in tried) == len(settings.GRID) for system in settings.SYSTEMS)
    assert all(settings.parse_name(str(name)) == name for name in [*tried, *settings.finals()])


@pytest.mark.parametrize(
    "name, message",
    [
        ("iwslt.chain", "iwslt is none of enja multi30k"),
        ("enja.forest", "forest is none of softmax chain tree entmax"),
        ("enja.chain.x", "CORPUS.SYSTEM has two parts"),
        ("enja.chain@lr", "after @ it has settings such as"),
    ],
)
def test_unknown_runs_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        settings.plan([name])


def test_each_system_has_the_settings_of_its_own_trials(tmp_path):
    with pytest.raises(ValueError, match=r"enja.chain@\S+: this trial has to be made before .* trials.enja"):
        settings.train_options(settings.parse_name("enja.chain"), str(tmp_path))
    write_trials(tmp_path)
    for name in settings.finals():
        options = settings.train_options(name, str(tmp_path))
        expected = settings.GRID[2 if name.system == "tree" else 1]
        assert {option: options[options.index(f"--{option}") + 1] for option in expected} == expected
        trial = settings.train_options(settings.trials(name.corpus)[0], str(tmp_path))
        updates = [int(words[words.index("--max-update") + 1]) for words in (options, trial)]
        assert updates[1] * 3 <= updates[0] == settings.CORPORA[name.corpus].updates


def test_systems_differ_in_their_heads_alone(tmp_path):
    fairseq = pytest.importorskip("fairseq.options")
    from fairseq_structattn.models.transformer_options import TransformerOptions

    write_trials(tmp_path)
    plans, others = {}, set()
    for system in settings.SYSTEMS:
        words = settings.train_options(settings.parse_name(f"enja.{system}"), str(tmp_path))
        given = fairseq.parse_args_and_arch(fairseq.get_training_parser(), ["data", *words, *ALWAYS])
        own = TransformerOptions.of(given)
        own.check(given)
        encoder = own.encoder_self_attention(given.encoder_layers, given.encoder_attention_heads)
        decoder = own.cross_attention(given.decoder_layers, given.decoder_attention_heads)
        plans[system] = [[plan.heads_of(layer) for layer in range(2)] for plan in (encoder, decoder)]
        left = ("cross_attention_heads", "encoder_self_attention_heads", "encoder_self_attention_layers", "dropout")
        others.add(json.dumps({name: repr(value) for name, value in vars(given).items() if name not in left}))
    flat = ["softmax", "softmax"]
    assert plans == {
        "softmax": [flat, flat],
        "chain": [flat, ["linear-chain", "linear-chain"]],
        "tree": [["softmax", "projective-tree:2,softmax"], flat],
        "entmax": [flat, ["entmax15", "entmax15"]],
    }
    assert len(others) == 1


def test_report_of_what_there_is(tmp_path):
    results, made = tmp_path / "results", tmp_path / "made"
    made.mkdir()
    write_trials(results)
    for name, share, seeds in (
        ("enja.softmax", 0.4, (1, 2)),
        ("enja.tree", 0.2, (2, 3)),
        ("multi30k.chain", 0.1, (1,)),
    ):
        for seed in seeds:
            made_translations.write_run(results, name, seed, share)
    report.main([str(results), "--dest", str(made)])
    text = (made / "README.md").read_text(encoding="utf-8")
    assert "Scores: 5 of 24 runs" in text
    lines = text.splitlines()
    assert any(line.startswith("| Japanese to English | softmax | 2 of 3 | 3.00 ± 0.00 | 11.0 ") for line in lines)
    assert any(line.startswith("| English to German | softmax | 0 of 3 | – | – | – |") for line in lines)
    (against,) = [line for line in lines if line.count("p = ") == 3]  # Multi30k has no softmax to compare with
    assert against.startswith("| Japanese to English | trees in two heads of the encoder | 2 | +")
    second, last = settings.GRID[1:]
    assert f"chosen softmax: lr {second['lr']}, dropout {second['dropout']}; chain:" in text
    assert f"tree: lr {last['lr']}, dropout {last['dropout']}; entmax:" in text
    assert "](answer.png)" in text and (made / "answer.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["WORK", "trials.enja"], "no train.ja in any folder: name that of the corpus by --enja"),
        (["--multi30k", "WORK", "WORK", "multi30k.tree"], "no tok/train.lc.norm.tok.en in "),
        (["WORK", "nonsense"], "unknown run nonsense: nonsense is none of enja multi30k"),
    ],
)
def test_wrong_calls_are_answered(tmp_path, arguments, message):
    given = [str(tmp_path / "work") if word == "WORK" else word for word in arguments]
    done = run_experiment("transformer", "--dry-run", *given)
    assert done.returncode != 0 and message in done.stderr


@pytest.mark.slow
def test_from_text_to_the_report(tmp_path):
    pytest.importorskip("fairseq")
    pytest.importorskip("sentencepiece")
    rng = random.Random(4)
    corpus, work = tmp_path / "corpus", tmp_path / "work"
    (corpus / "tok").mkdir(parents=True)
    for split, count in (("train", 80), ("val", 6), ("test_2016_flickr", 30)):
        english = sentences(rng, count)
        for language, lines in (("en", english), ("de", [line[::-1] for line in english])):
            (corpus / "tok" / f"{split}.lc.norm.tok.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    work.mkdir()
    write_trials(work / "results")
    arguments = ["--dry-run", "--multi30k", corpus, work, "multi30k.tree"]
    done = run_experiment("transformer", *arguments, SEEDS="1")
    assert done.returncode == 0, done.stderr
    kept = json.loads((work / "results" / "multi30k.tree-1.json").read_text(encoding="utf-8"))
    assert len(kept["epochs"]) == 2 and len(kept["test"]["test2"]["statistics"]) == 20 * 5
    lengths = kept_statistics.decode(kept["test"]["test2"]["reference_lengths"])
    references = (work / "multi30k.raw" / "test2.de").read_text(encoding="utf-8").splitlines()
    assert lengths == [len(line.split()) for line in references]  # words, where the model writes pieces
    translated = (work / "runs" / "multi30k.tree-1" / "test2.txt").read_text(encoding="utf-8")
    assert not [line for line in translated.splitlines() if line.startswith("H-") and "▁" in line]
    assert "Scores: 1 of 24 runs" in (work / "README.md").read_text(encoding="utf-8")
    again = run_experiment("transformer", *arguments, SEEDS="1")
    assert again.returncode == 0 and "training" not in again.stdout
    (work / "multi30k" / "fingerprint").write_text("other data\n")
    stale = one_run.Run("multi30k.tree", 1, str(work), str(work / "results"), tiny=True)
    assert not stale.is_done()
