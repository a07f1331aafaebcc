"""Pretrained embeddings: what is read of a file, what of it is refused, and that a checkpoint does without it."""

import logging
import math
from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, SIZES, TASK, WORDS, build
from fairseq import models
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_structattn.models import StructuredAttentionRNN


def line(word, value, size=8):
    return " ".join([word, *[str(value)] * size])


def write(path, *lines, encoding="utf-8"):
    path.write_bytes("\n".join([*lines, ""]).encode(encoding))
    return str(path)


@pytest.mark.parametrize("header", [["3 8"], []], ids=["word2vec", "GloVe"])
def test_vectors_of_known_words_are_read(header, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    lines = [line("w3", 0.5) + " ", line("un\u2028heard", 9), line("<pad>", 7), line("w7", -2) + "\r"]
    path = write(tmp_path / "vectors.txt", *header, *lines)
    model = build("structattn_rnn", encoder_embed_path=path, encoder_freeze_embed=True)
    untouched = build("structattn_rnn").encoder.embed_tokens.weight
    weight = model.encoder.embed_tokens.weight
    read = [DICTIONARY.index("w3"), DICTIONARY.index("w7")]
    assert (weight[read[0]] == 0.5).all() and (weight[read[1]] == -2).all()
    others = [index for index in range(len(DICTIONARY)) if index not in read]
    assert torch.equal(weight[others], untouched[others])
    assert not weight.requires_grad and model.decoder.embed_tokens.weight.requires_grad
    assert f"vectors for 2 of {len(DICTIONARY)} words" in caplog.text


@pytest.mark.parametrize(
    "lines, message",
    [
        (["2 12", line("w1", 1)], "line 1: a vector of 12 numbers, but the model's embeddings have 8: set --decoder"),
        ([line("w1", 1), line("w2", 1, 7)], "line 2: a vector of 7 numbers, but the model's"),
        ([line("w1", 1), line("unheard", 1, 9)], "line 2: a vector of 9 numbers"),
        ([line("w1", "0,5")], "line 1: the vector of 'w1' has something else than numbers: could not .* '0,5'"),
        ([line("w2", 1), line("w1", math.nan)], "line 2: the vector of 'w1' has a number that is not finite"),
        ([line("unheard", 1)], f"vectors.txt: no vector for any of the {WORDS + 4} words"),
        ([""], "no vector for any"),
    ],
)
def test_files_that_do_not_fit_are_refused(lines, message, tmp_path):
    path = write(tmp_path / "vectors.txt", *lines)
    with pytest.raises(ValueError, match=f"--decoder-embed-path.*{message}"):
        build("structattn_rnn", decoder_embed_path=path)


def test_other_encodings_are_refused(tmp_path):
    path = write(tmp_path / "vectors.txt", line("w1", 1), encoding="utf-16")
    with pytest.raises(ValueError, match="vectors.txt, line 1: no text in UTF-8"):
        build("structattn_rnn", encoder_embed_path=path)


def test_training_without_file_and_checkpoint_fails(caplog):
    model = build("structattn_rnn", decoder_embed_path="/no/such/file")
    assert "--decoder-embed-path /no/such/file: no such file; the embeddings have to come" in caplog.text
    with pytest.raises(FileNotFoundError, match="--decoder-embed-path /no/such/file: no such file, and no checkpoint"):
        model.train()
    model.load_state_dict(build("structattn_rnn", seed=2).state_dict())
    model.train()


class Own(StructuredAttentionRNN):
    @classmethod
    def build_model(cls, cfg, task):
        return super().build_model(cfg, task)


@pytest.mark.parametrize("arch", ["structattn_rnn", "own"])
def test_for_a_checkpoint_nothing_is_read(arch, monkeypatch, tmp_path):
    monkeypatch.setitem(ARCH_MODEL_REGISTRY, "own", Own)
    for path in ("/no/such/file", write(tmp_path / "vectors.txt", "of another size")):
        options = Namespace(arch=arch, encoder_embed_path=path, **SIZES)
        models.build_model(options, TASK, from_checkpoint=True).train()
        with pytest.raises((FileNotFoundError, ValueError), match="--encoder-embed-path"):
            models.build_model(options, TASK).train()
