"""Repair of architectures under hydra: ours are asked for their defaults, others get what they got."""

import pytest

pytest.importorskip("fairseq")

from fairseq.dataclass import initialize  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from fairseq_structattn.compat.architectures import repair_hydra_architectures  # noqa: E402


def _defaults_of(name, **options):
    config = OmegaConf.create({"model": {"_name": name, **options}})
    initialize.add_defaults(config)
    return config.model


def test_hydra_asks_the_architecture():
    crf = _defaults_of("structattn_rnn_crf", encoder_layers=7)
    assert (crf.attention_distribution, crf.attention_scale, crf.decoder_layers) == ("linear-chain", 2.0, 2)
    assert crf.encoder_layers == 7
    assert _defaults_of("structattn_rnn").attention_distribution == "softmax"


def test_other_models_get_what_they_got(monkeypatch):
    ours = _defaults_of("transformer_lm_gpt2_small")
    stock = initialize.add_defaults.__wrapped__
    monkeypatch.setattr(initialize, "add_defaults", stock)
    assert _defaults_of("transformer_lm_gpt2_small") == ours
    assert _defaults_of("structattn_rnn_crf").attention_distribution == "softmax", "the defect is gone: drop the repair"


def test_defaults_that_heed_the_architecture_are_not_touched():
    healthy = initialize.add_defaults
    repair_hydra_architectures()
    assert initialize.add_defaults is healthy
