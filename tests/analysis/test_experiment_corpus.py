"""The second test set of an experiment, and the fingerprint of its data."""

import pytest

from fairseq_structattn.analysis.experiment_corpus import AS_PREPARED, split, write_fingerprint, write_splits
from fairseq_structattn.analysis.files import InputError


def test_test_sentences_have_no_translation_that_is_trained_on():
    targets = ["a", "b", "a", "c", "d", "e", "b", "f"]
    train, held_out = split(list(targets), targets, 3)
    assert held_out == [4, 5, 7] and train == [0, 1, 2, 3, 6]


def test_splits_keep_their_pairs(tmp_path):
    for name, count in {"a": 5, "b": 2, "c": 1}.items():
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{language} {i}\n" for i in range(count)))
    prefixes = {split: str(tmp_path / name) for split, name in zip(("train", "valid", "test"), "abc")}
    write_splits(prefixes, ("en", "de"), str(tmp_path / "raw"), held_out=2)
    made = {path.name: path.read_text().splitlines() for path in (tmp_path / "raw").iterdir()}
    assert made["test2.en"] == ["en 3", "en 4"] and made["test2.de"] == ["de 3", "de 4"]
    assert made["train.de"] == ["de 0", "de 1", "de 2"] and len(made["valid.en"]) == 2 and len(made["test.de"]) == 1
    (tmp_path / "b.de").write_text("one line\n")
    with pytest.raises(InputError, match="b.en has 2 lines but .*b.de has 1 lines"):
        write_splits(prefixes, ("en", "de"), str(tmp_path / "raw"), held_out=2)


def test_fingerprints_are_of_all_text(tmp_path):
    found = set()
    for changed in (None, *AS_PREPARED):
        for name in AS_PREPARED:
            for language in ("en", "de"):
                (tmp_path / f"{name}.{language}").write_text(f"{name == changed and language == 'de'}\n")
        write_fingerprint(str(tmp_path), ("en", "de"))
        found.add((tmp_path / "fingerprint").read_text())
    assert len(found) == 5
