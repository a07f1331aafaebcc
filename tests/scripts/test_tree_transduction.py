"""scripts/prepare/tree_transduction.py: notation, depths, splits, the same files every time."""

import pytest
from helpers_scripts import load_script

script = load_script("prepare/tree_transduction.py")
SMALL = ["--train", "20", "--valid", "5", "--test", "6"]
EXAMPLE = ("*", ("+", ("+", "15", "7"), "1", "8"), ("+", "19", "0", "11"))


def test_the_example_of_the_paper():
    assert script.prefix(EXAMPLE) == "( * ( + ( + 15 7 ) 1 8 ) ( + 19 0 11 ) )"
    assert script.infix(EXAMPLE) == "( ( 15 + 7 ) + 1 + 8 ) * ( 19 + 0 + 11 )"
    assert script.depth_of(EXAMPLE) == 3


def evaluate(tokens):
    """The value of a formula in prefix notation, read without the script."""
    token = tokens.pop(0)
    if token != "(":
        return int(token)
    operator, values = tokens.pop(0), []
    while tokens[0] != ")":
        values.append(evaluate(tokens))
    tokens.pop(0)
    total = values[0]
    for value in values[1:]:
        total = total + value if operator == "+" else total * value
    return total


def nesting(line):
    depth = deepest = 0
    for token in line.split():
        depth += {"(": 1, ")": -1}.get(token, 0)
        deepest = max(deepest, depth)
    assert depth == 0
    return deepest


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("options", [[], ["--generator", "free"], ["--nested", "0"], ["--most-parts", "3"]])
def test_pairs_mean_the_same_and_have_their_depth(tmp_path, options):
    script.main(["--dest", str(tmp_path), *SMALL, *options])
    for path in sorted(tmp_path.glob("*.prefix")):
        sources, targets = lines(path), lines(path.with_suffix(".infix"))
        assert len(sources) == len(targets) > 0
        for source, target in zip(sources, targets):
            assert evaluate(source.split()) == eval(target)
            if "depth" in path.name:
                assert nesting(source) == int(path.name.split("depth")[1][0])
            numbers = [int(token) for token in source.split() if token.isdigit()]
            assert 0 <= min(numbers) <= max(numbers) <= 20


def test_splits_have_their_sizes_and_share_nothing(tmp_path):
    script.main(["--dest", str(tmp_path), *SMALL])
    found = {path.stem: lines(path) for path in tmp_path.glob("*.prefix")}
    assert {name: len(found[name]) for name in ("train", "valid", "test")} == {"train": 60, "valid": 15, "test": 30}
    assert {nesting(line) for line in found["train"]} == {nesting(line) for line in found["valid"]} == {2, 3, 4}
    assert {nesting(line) for line in found["test"]} == {2, 3, 4, 5, 6}
    distinct = found["train"] + [line for name in found if ".depth" in name for line in found[name]]
    assert len(set(distinct)) == len(distinct)


def test_the_seed_decides(tmp_path):
    for folder, seed in (("one", "1"), ("two", "1"), ("three", "2")):
        script.main(["--dest", str(tmp_path / folder), *SMALL, "--seed", seed])
    one, two, three = (lines(tmp_path / folder / "train.prefix") for folder in ("one", "two", "three"))
    assert one == two != three


@pytest.mark.parametrize(
    "options, message",
    [
        (["--train", "0"], "--train 0"),
        (["--most-train-depth", "1"], "--most-train-depth 1"),
        (["--least-parts", "5"], "--most-parts 4 is less than --least-parts 5"),
        (["--nested", "1"], "--nested 1"),
        (["--generator", "free", "--nested", "0"], "free above 0"),
        (["--least-depth", "1", "--largest", "0", "--most-parts", "2"], "distinct formulas of depth 1"),
    ],
)
def test_impossible_wishes_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(SystemExit, match=message):
        script.main(["--dest", str(tmp_path), *SMALL, *options])
