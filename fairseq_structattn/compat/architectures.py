"""Architectures: their defaults under hydra."""

import functools

from fairseq.dataclass import initialize
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY
from omegaconf import DictConfig, OmegaConf

from .deciding import AtFirstUse
from .rebinding import replace_everywhere


def repair_hydra_architectures():
    """Architectures that `fairseq-hydra-train` overlooks.

    Symptom: with `_name: structattn_rnn_crf` it trains a `structattn_rnn`: options that the user does not set get the
    defaults of the model before the defaults of the architecture are applied.
    Detection, at the first use: the defaults of `structattn_rnn_vanilla`, which has no attention, include attention.
    Repair: the defaults of the architecture are applied first. This holds for architectures of our models only; users
    of others, fairseq's own among them, have trained with the defaults that they got.
    """
    stock = initialize.add_defaults
    if not hasattr(stock, "is_repair"):
        decision = AtFirstUse("architectures under hydra", lambda: _overlooks_architectures(stock))
        replace_everywhere("add_defaults", stock, _asking_the_architecture(stock, decision))


def _overlooks_architectures(add_defaults):
    config = OmegaConf.create({"model": {"_name": "structattn_rnn_vanilla"}})
    add_defaults(config)
    return config.model.get("attention_distribution", "none") != "none"


def _asking_the_architecture(add_defaults, decision):
    @functools.wraps(add_defaults)
    def with_architecture(config):
        model = config.get("model")
        name = model.get("_name") if isinstance(model, DictConfig) else None
        if ARCH_MODEL_NAME_REGISTRY.get(name) == "structattn_rnn" and decision.is_needed():
            ARCH_CONFIG_REGISTRY[name](model)
        add_defaults(config)

    with_architecture.is_repair = True  # type: ignore[attr-defined]
    return with_architecture
