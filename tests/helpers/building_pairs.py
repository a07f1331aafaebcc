"""Small models of pairs of sentences without a data set, and pairs for them."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_structattn  # noqa: F401  (registers the architectures)

SIZES = {"embed_dim": 6, "hidden_size": 5, "parser_hidden_size": 4, "init_std": 0.5}


def dictionary(names):
    made = Dictionary()
    for name in names:
        made.add_symbol(name)
    return made


WORDS = dictionary([f"w{number}" for number in range(20)])
TASK = Namespace(source_dictionary=WORDS, label_dictionary=dictionary("abc"))
PREMISE = [[5, 9, 7, 12], [6], []]
HYPOTHESIS = [[8, 5], [], [11, 5, 6]]
HEADS = ([[2, 0, 2, 3], [0], []], [[0, 1], [], [-1, 3, 1]])


def build(arch, task=TASK, **options):
    torch.manual_seed(1)
    namespace = Namespace(arch=arch, **{**SIZES, **options})
    ARCH_CONFIG_REGISTRY.get(arch, lambda options: None)(namespace)
    return ARCH_MODEL_REGISTRY[arch].build_model(namespace, task).double().eval()


def padded(rows, value, width=None):
    width = max(map(len, rows)) if width is None else width
    return torch.tensor([row + [value] * (width - len(row)) for row in rows], dtype=torch.long).view(len(rows), width)


def run(model, premise, hypothesis, heads=None, width=None):
    batch = [padded(rows, WORDS.pad(), width) for rows in (premise, hypothesis)]
    heads = [padded(rows, -1, width) for rows in heads] if heads else [None, None]
    return model(*batch, *heads)
