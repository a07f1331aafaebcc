"""analysis/bleu_by_length.py: which sentences are in a bucket, sacrebleu's own numbers, what is refused."""

import json
import random
import subprocess
import sys

import pytest

from fairseq_structattn.analysis import bleu_by_length as by_length

SENTENCES = 60
BOUNDS = [6, 9]


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def spoiled(sentence, rate, rng):
    return " ".join("nothing" if rng.random() < rate else word for word in sentence.split())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sentences of 3 to 11 words and two translations of them, one the output of fairseq-generate, out of order."""
    folder, rng = tmp_path_factory.mktemp("by_length"), random.Random(5)
    words = [f"w{number}" for number in range(9)]
    references = [" ".join(rng.choice(words) for _ in range(3 + number % 9)) for number in range(SENTENCES)]
    good, bad = ([spoiled(line, rate, rng) for line in references] for rate in (0.05, 0.3))
    write(folder / "ref", references)
    write(folder / "src", [line.replace("w", "v") for line in references])
    write(folder / "good", good)
    write(folder / "bad", [f"H-{i}\t-0.5\t{bad[i]}" for i in rng.sample(range(SENTENCES), SENTENCES)])
    for name, lines in (("ref", references), ("good", good), ("bad", bad)):
        write(folder / f"{name}.middle", [line for line, r in zip(lines, references) if 6 <= len(r.split()) < 9])
    return folder


def options(corpus, *more, systems=("good", "bad")):
    made = ["--source", str(corpus / "src"), "--reference", str(corpus / "ref"), "--tokenize", "none"]
    for name in systems:
        made += ["--system", name, str(corpus / name)]
    return made + [str(part) for part in more]


def sacrebleu(*arguments, tokenize="none"):
    """What sacrebleu's command tells."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "--tokenize", tokenize, "--force"]
    done = subprocess.run([*command, "--format", "json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def scored(corpus, tmp_path, *more, **named):
    output = tmp_path / "scores.json"
    by_length.main(options(corpus, "--buckets", "6,9", "--output", output, *more, **named))
    content = json.loads(output.read_text(encoding="utf-8"))
    return content, {(row["system"], row["bucket"]): row for row in content["rows"]}


def test_buckets_are_half_open_and_hold_every_sentence_once():
    lengths = [0, 5, 6, 7, 8, 9, 30]
    made = by_length.buckets(lengths, BOUNDS)
    assert [bucket.indices for bucket in made] == [[0, 1], [2, 3, 4], [5, 6]]
    assert [bucket.label for bucket in made] == ["< 6", "6–8", "≥ 9"]
    assert [bucket.label for bucket in by_length.buckets(lengths, [6, 7])] == ["< 6", "6", "≥ 7"]


def test_quantiles_have_about_as_many_sentences_each():
    assert by_length.quantile_bounds([1, 2, 3, 4, 5, 6, 7, 8], 4) == [3, 5, 7]
    # most sentences have one word: there are not four different lengths to part them
    assert by_length.quantile_bounds([1, 1, 1, 1, 1, 1, 2, 9], 4) == [2]


def test_scores_of_a_bucket_are_those_of_the_command_of_sacrebleu(corpus, tmp_path):
    content, rows = scored(corpus, tmp_path, "--samples", 200)
    files = [corpus / f"{name}.middle" for name in ("good", "bad")]
    for path, name in zip(files, ("good", "bad")):
        ours = rows[name, "6–8"]
        theirs = sacrebleu(corpus / "ref.middle", "-i", path, "-m", "bleu", "--confidence", "-w", 2)
        assert ours["bleu"] == pytest.approx(theirs["score"], abs=0.006)
        assert ours["confidence95"] == pytest.approx(theirs["confidence_var"], abs=0.006)
        assert ours["length_ratio"] == 1.0
    assert rows["bad", "6–8"]["p"] < 0.05 and rows["good", "6–8"]["p"] is None
    assert content["signature"].startswith("nrefs:1|bs:1000|seed:12345") and "tok:none" in content["signature"]
    assert content["p"] == "approximate randomisation, 200 trials, seed 12345"
    assert content["lines"] == {"good": "text", "bad": "H"}


def test_all_sentences_of_one_system(corpus, tmp_path):
    _, rows = scored(corpus, tmp_path, systems=("bad",))
    hypotheses = [line.split("\t") for line in (corpus / "bad").read_text(encoding="utf-8").splitlines()]
    ordered = write(tmp_path / "bad", [line[2] for line in sorted(hypotheses, key=lambda line: int(line[0][2:]))])
    alone = sacrebleu(corpus / "ref", "-i", ordered, "-m", "bleu", "--confidence", "-w", 2)
    assert rows["bad", "all"]["bleu"] == pytest.approx(alone["score"], abs=0.006)
    assert rows["bad", "all"]["confidence95"] == pytest.approx(alone["confidence_var"], abs=0.006)
    assert [rows["bad", bucket]["sentences"] for bucket in ("< 6", "6–8", "≥ 9", "all")] == [21, 21, 18, 60]
    assert rows["bad", "< 6"]["mean_length"] == 4.0 and rows["bad", "all"]["p"] is None


@pytest.mark.parametrize("kind, name", [("ar", "approximate randomisation"), ("bs", "paired bootstrap resampling")])
def test_tests_against_the_baseline(corpus, tmp_path, kind, name):
    more = ["--system", "same", corpus / "bad", "--paired", kind, "--samples", 300, "--baseline", "bad"]
    content, rows = scored(corpus, tmp_path, *more)
    assert rows["bad", "all"]["p"] is None and 0 < rows["good", "all"]["p"] < 0.05
    assert {rows["same", bucket]["p"] for bucket in ("< 6", "6–8", "≥ 9", "all")} == {1.0}
    assert rows["good", "all"]["confidence95"] > 0 and content["p"] == f"{name}, 300 trials, seed 12345"


@pytest.mark.parametrize("tokenize, line", [("13a", "D"), ("none", "H")])
def test_text_of_pieces_is_scored_as_by_hand(corpus, tmp_path, tokenize, line):
    pieces = ["▁The ▁c at , ▁is n ' t ▁here .", "▁It ' s ▁a ▁d og ."] * 30
    text = ["The cat, isn't here.", "It's a dog."] * 30
    references = write(tmp_path / "ref", ["The cat isn't here, sir.", "It's a big dog."] * 30)
    both = (f"H-{i}\t-1\t{pieces[i]}\nD-{i}\t-1\t{text[i]}" for i in reversed(range(60)))
    command = ["--source", str(corpus / "src"), "--reference", references, "--tokenize", tokenize, "--lines", line]
    output = tmp_path / "new" / "scores.json"
    by_length.main([*command, "--system", "bpe", write(tmp_path / "out", both), "--output", str(output)])
    content = json.loads(output.read_text(encoding="utf-8"))
    by_hand = write(tmp_path / "by_hand", pieces if line == "H" else text)
    theirs = sacrebleu(references, "-i", by_hand, "-m", "bleu", "-w", 2, tokenize=tokenize)
    assert content["rows"][-1]["bleu"] == theirs["score"] and content["lines"] == {"bpe": line}


NAMES = ["_lstm", "$a_1$", "a|b", "猫 *", "\\|", "&lt;", "`x`", "</b>", "long_name_"]


def test_names_are_what_they_are_in_table_and_legend(corpus, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    parser = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    more = [part for name in NAMES for part in ("--system", name, corpus / "bad")]
    by_length.main(options(corpus, *more, "--samples", 100, "--plot", tmp_path / "new" / "drawn.svg"))
    printed = capsys.readouterr().out
    head = next(token for token in parser.parse(printed) if token.type == "inline")
    cells = [token for token in parser.parse(printed) if token.type == "inline"][: len(NAMES) + 4]
    assert head.content == "source length"
    shown = ["".join(child.content for child in cell.children) for cell in cells[2:]]
    assert shown == ["good", "bad", *NAMES]
    assert (tmp_path / "new" / "drawn.svg").stat().st_size > 5000


def test_legend_has_all_names():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    by_length.add_legend(axes, [axes.errorbar([0], [number]) for number in range(len(NAMES))], NAMES)
    texts = axes.get_legend().get_texts()
    assert [text.get_text() for text in texts] == NAMES and not any(text.get_parse_math() for text in texts)


def test_seed_decides_and_is_left_as_it_was(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    first, again, other = (scored(corpus, tmp_path, "--samples", 100, "--seed", seed)[0]["rows"] for seed in (3, 3, 4))
    assert first == again and first != other
    assert by_length.os.environ["SACREBLEU_SEED"] == "7"


def test_table_and_plot(corpus, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    by_length.main(options(corpus, "--buckets", "2,6,9", "--plot", tmp_path / "drawn.svg"))
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "| source length | sentences | good | bad |"
    assert [line.split(" | ")[:2] for line in lines[2:6]] == [
        ["| 2–5", "21"],
        ["| 6–8", "21"],
        ["| ≥ 9", "18"],
        ["| all", "60"],
    ]
    assert "(p < 0.001)" in lines[5] or "(p = 0.0" in lines[5]
    assert "seed:12345" in lines[-3]
    test = "approximate randomisation, 10000 trials, seed 12345, against good"
    assert lines[-2] == f"p, of structattn-bleu-by-length: {test}"
    assert lines[-1] == "scored: good: plain text, bad: H- lines"
    assert "length < 2: that bucket is left out" in printed.err
    drawn = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<?xml") and not list(tmp_path.glob("*.tmp"))


def test_one_sentence_has_no_interval():
    references = ["one two three four", "x"]
    systems = {"a": references, "b": ["one two three four five", "x"]}
    measured = by_length.measure(systems, references, [4, 1], [2], by_length.Comparison("none"))
    row = next(row for row in measured.rows if row["bucket"] == "≥ 2" and row["system"] == "b")
    assert row["confidence95"] is None and row["p"] is None and 0 < row["bleu"] < 100
    assert row["length_ratio"] == 1.25
    assert "| ≥ 2 | 1 | 100.0 | " in by_length.table(measured.rows)


@pytest.mark.parametrize(
    "more, message",
    [
        (["--buckets", "10,5"], "--buckets 10,5: give positive whole numbers in ascending order"),
        (["--buckets", "0,5"], "--buckets 0,5"),
        (["--buckets", "ten"], "--buckets ten"),
        (["--quantiles", "1"], "--quantiles 1: give 2 or more"),
        (["--baseline", "best"], "--baseline best: no such system, choose from good, bad"),
        (["--seed", "0"], "--seed 0: give a positive number"),
        (["--samples", "-1"], "--samples -1"),
        (["--samples", "1"], "--samples 1: too few to tell anything; give 100 or more"),
        (["--system", "a\nb", "x"], "--system 'a.nb': give a name of one line"),
        (["--tokenize", "words"], "--tokenize words: unknown, choose from 13a"),
        (["--plot", "picture.gif"], "--plot picture.gif: the name must end in one of .eps"),
        (["--system", "good", "other"], "--system good: the name is given twice"),
        (["--system", "third", "missing.txt"], "missing.txt"),
    ],
)
def test_options_that_make_no_sense_are_refused(corpus, more, message):
    with pytest.raises(SystemExit, match=message) as ended:
        by_length.main(options(corpus, *more))
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "option, lines, message",
    [
        ("--system", [], r"spoiled: the file is empty"),
        ("--system", ["one"] * 3, r"spoiled: 3 lines, but the reference has 60"),
        ("--system", ["H-0\t-1\tone"], r"spoiled, line 1, its last: 59 of 60 sentences have no translation"),
        ("--source", ["one"] * 59, r"--source .*spoiled has 59 lines but --reference .*ref has 60"),
        ("--source", [], r"--source .*spoiled: the file is empty"),
        ("--reference", [], r"--reference .*spoiled: the file is empty"),
    ],
)
def test_files_that_do_not_fit_are_refused(corpus, tmp_path, option, lines, message):
    path = write(tmp_path / "spoiled", lines)
    more = ["--system", "third", path] if option == "--system" else [option, path]
    with pytest.raises(SystemExit, match=message):
        by_length.main(options(corpus, *more))


def test_text_that_is_not_utf8_is_refused(corpus, tmp_path):
    (tmp_path / "latin").write_bytes(b"caf\xe9\n" * SENTENCES)
    with pytest.raises(SystemExit, match=r"latin, line 1: not UTF-8"):
        by_length.main(options(corpus, "--system", "third", tmp_path / "latin"))
