"""scripts/experiments/tree_transduction/report.py: what of a run is reported, and the lines of the table."""

import json

import pytest
from helpers_scripts import load_script

report = load_script("experiments/tree_transduction/report.py")
BEST_EPOCH = 2


def scores(first):
    return {f"length_to_failure@depth{depth}": first - depth for depth in report.DEPTHS}


def run(folder, name, score):
    (folder / name).mkdir()
    epochs = [{"epoch": 1, "train_loss": "3"}]
    for epoch, chosen in ((1, 10), (BEST_EPOCH, 30), (3, 20)):
        epochs += [
            {"epoch": epoch, f"{subset}_length_to_failure": str(chosen + 1000 * epoch * (depth != "chosen"))}
            for subset, depth in report.VALIDATION.items()
        ]
    log = "Namespace()\n" + "".join(json.dumps(record) + "\n" for record in epochs)
    (folder / name / "train.log").write_text(log)
    (folder / name / "test.json").write_text(json.dumps(scores(score)))
    trees = {
        f"{what}_{whose}@depth{depth}": 5.0
        for what in ("brackets", "previous")
        for whose in ("model", "uniform")
        for depth in report.DEPTHS
    }
    (folder / name / "induced_trees.json").write_text(json.dumps(trees))


@pytest.fixture
def rows(tmp_path):
    """Two seeds of a system, and both as an ensemble."""
    run(tmp_path, "tree.best-1", 80)
    run(tmp_path, "tree.best-2", 90)
    (tmp_path / "tree.best-1+2").mkdir()
    (tmp_path / "tree.best-1+2" / "test.json").write_text(json.dumps(scores(99)))
    return [row for folder in sorted(tmp_path.iterdir()) for row in report.rows_of(str(folder))]


def test_validation_is_that_of_the_checkpoint_that_was_taken(rows):
    found = {row["metric"]: row["value"] for row in rows if (row["seed"], row["split"]) == (1, "valid")}
    assert found["length_to_failure@depth4"] == 1000 * BEST_EPOCH + 30
    after = [found[f"length_to_failure@depth3_after_epoch{epoch}"] for epoch in (1, 2, 3)]
    assert after == [1010, 2030, 3020] and "length_to_failure@depthchosen" not in found


def test_table_has_means_over_seeds_and_ensembles_apart(rows):
    lines = report.table(rows).splitlines()
    assert lines[2].startswith("| none | Kim et al. 2017 |  | 7.6 | 4.1 |")
    means = "83.0 ± 7.1 | 82.0 ± 7.1 | 81.0 ± 7.1 | 80.0 ± 7.1 | 79.0 ± 7.1"
    assert any(line.startswith(f"| tree | best | 1, 2 | {means} | 5.0 ± 0.0 | ") for line in lines)
    assert "| tree | best, ensemble | 1+2 | 97.0 | 96.0 | 95.0 | 94.0 | 93.0 |  |  |  |  |" in lines
