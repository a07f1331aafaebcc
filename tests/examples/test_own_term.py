"""The example of a term of the loss: worked out by hand, part of the criterion, and on the command line."""

import re
import sys
from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, TASK, batch, build, sentences
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from loading import EXAMPLES, INSTALLED

from fairseq_structattn.criterions import label_smoothed_cross_entropy, terms

SAMPLE = batch(sentences([5, 3]), sentences([4, 2], seed=1))


@pytest.fixture
def own_term(monkeypatch):
    """The module, whose term is forgotten after the test."""
    monkeypatch.setattr(terms._TERMS, "_classes", dict(terms._TERMS._classes))
    monkeypatch.delitem(sys.modules, "own_term", raising=False)
    yield __import__("own_term")
    monkeypatch.undo()
    label_smoothed_cross_entropy._offer()


def criterion(**weights):
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace())
    name = label_smoothed_cross_entropy.NAME
    options = CRITERION_DATACLASS_REGISTRY[name](sentence_avg=False, **weights)
    return CRITERION_REGISTRY[name].build_criterion(options, task)


def test_by_hand(own_term):
    task = Namespace(target_dictionary=DICTIONARY)
    term = own_term.Monotony(task, {"monotony": 1.0, "monotony_slack": 0.5})
    # Mean positions 0, 2, 1 and, after the end of the sentence, 0; of the other sentence no weight at all.
    weights = torch.tensor([[[2.0, 0, 0], [0, 0, 1], [1, 0, 1], [3, 0, 0]], [[0, 0, 0]] * 4])
    target = torch.tensor([[4, 5, 2, DICTIONARY.pad()], [4, 5, 6, 2]])
    value, words = term.value(None, {"target": target}, {"attn": [weights]})
    assert value.item() == pytest.approx(0.5) and words.item() == 7


def test_it_is_added_times_its_weight_and_logged(own_term):
    model = build("structattn_rnn_crf")
    plain = criterion()(model, SAMPLE)[0]
    loss, _, log = criterion(monotony=0.3, monotony_slack=-1.0)(model, SAMPLE)
    assert log["monotony"] > 0 and log["monotony_words"] == 6
    torch.testing.assert_close(loss, plain + 0.3 * log["monotony"])
    with pytest.raises(ValueError, match="--monotony -1: must be 0 or greater"):
        criterion(monotony=-1)
    with pytest.raises(ValueError, match="--monotony: the model returns no attention"):
        criterion(monotony=1.0)(build("structattn_rnn_vanilla"), SAMPLE)


def test_without_it_there_is_no_such_option(own_term):
    assert "monotony" in terms.term_names()
    with pytest.raises(TypeError, match="no term of the loss has an option 'monotonous'; there are: attention_entropy"):
        terms.build_terms(TASK, False, {"monotonous": 1.0})


def test_names_belong_to_one_term():
    with pytest.raises(ValueError, match="the term of the loss name 'coverage_loss' belongs to"):
        terms.register_term(type("Other", (terms.Term,), {"name": "coverage_loss", "__module__": "other"}))
    with pytest.raises(TypeError, match="derive the class from Term"):
        terms.register_term(Namespace)


@pytest.mark.slow
def test_it_trains_from_the_command_line(run_fairseq, tiny_corpus, tmp_path):
    log = run_fairseq(
        "train", tiny_corpus.bin, "--user-dir", EXAMPLES / "own_term", "--arch", "structattn_rnn_crf",
        "--encoder-layers", 1, "--decoder-layers", 1, *(
            part for side in ("encoder-embed-dim", "encoder-hidden-size", "decoder-embed-dim", "decoder-hidden-size",
                              "decoder-out-embed-dim") for part in (f"--{side}", 8)
        ),
        "--criterion", label_smoothed_cross_entropy.NAME, "--monotony", 0.5, "--monotony-slack", -1,
        "--optimizer", "adam", "--lr", 0.003, "--batch-size", 40, "--max-epoch", 1, "--no-epoch-checkpoints",
        "--save-dir", tmp_path, "--log-format", "json", "--cpu", env=INSTALLED,
    )  # fmt: skip
    assert float(re.search(r'"train_monotony": "([\d.e-]+)"', log).group(1)) > 0
    assert re.search(r'"valid_monotony": ', log)
