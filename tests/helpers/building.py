"""Small models without a data set: every architecture, at sizes for a test."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator

import fairseq_structattn  # noqa: F401  (registers the architectures)

PRESETS = sorted(name for name in ARCH_MODEL_REGISTRY if name.startswith("structattn_rnn"))
WORDS = 20
SIZES = {
    "encoder_embed_dim": 8,
    "encoder_hidden_size": 12,
    "decoder_embed_dim": 8,
    "decoder_hidden_size": 12,
    "decoder_out_embed_dim": 8,
    "init_range": 0.7,
}
TRANSFORMER_SIZES = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 16,
    "encoder_attention_heads": 4,
    "encoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_layers": 2,
    "dropout": 0.0,
}
# Options of structattn_transformer.
TRANSFORMERS = {
    "transformer, softmax": {},
    "transformer, chains": {"cross_attention_heads": "softmax,linear-chain:2"},
    "transformer, trees": {
        "encoder_self_attention_heads": "projective-tree:2,softmax,spanning-tree:1",
        "encoder_self_attention_layers": "0",
    },
    "transformer, all heads": {
        "cross_attention_heads": "sigmoid:1,linear-chain:1,softmax",
        "encoder_self_attention_heads": "linear-chain:2,projective-tree:1,softmax",
    },
}


def dictionary(words=WORDS):
    made = Dictionary()
    for number in range(words):
        made.add_symbol(f"w{number}")
    return made


DICTIONARY = dictionary()
STOCK = Namespace(arch="lstm", criterion="", encoder_embed_dim=8, decoder_embed_dim=8, decoder_out_embed_dim=8)
TASK = Namespace(source_dictionary=DICTIONARY, target_dictionary=DICTIONARY)


def build(arch, task=TASK, seed=1, **options):
    """The model of `arch`, an architecture or one of TRANSFORMERS, with small sizes, in evaluation mode."""
    torch.manual_seed(seed)
    if arch in TRANSFORMERS:
        arch, options = "structattn_transformer", {**TRANSFORMERS[arch], **options}
    namespace = Namespace(arch=arch, **{**(TRANSFORMER_SIZES if "transformer" in arch else SIZES), **options})
    ARCH_CONFIG_REGISTRY.get(arch, lambda options: None)(namespace)
    model = ARCH_MODEL_REGISTRY[arch].build_model(namespace, task).eval()
    projection = model.decoder.output_projection
    # Of random words one in twenty would end a sentence; shorter ones test more.
    if projection is not None and projection.bias is not None:
        projection.bias.data[DICTIONARY.eos()] += 1.0
    elif projection is not None and projection.weight is not model.decoder.embed_tokens.weight:
        torch.nn.init.normal_(projection.weight[DICTIONARY.eos()], std=0.6)
    for table in (table for name, table in model.named_parameters() if ".groups." in name):
        torch.nn.init.normal_(table)  # structures of their own, from the beginning
    return model


def sentences(lengths, seed=0):
    """Token sequences with </s>; a length counts it."""
    generator = torch.Generator().manual_seed(seed)
    first = DICTIONARY.nspecial
    return [
        torch.cat((torch.randint(first, len(DICTIONARY), (length - 1,), generator=generator), eos()))
        for length in lengths
    ]


def eos():
    return torch.tensor([DICTIONARY.eos()])


def batch(source, target=None, left_pad=True, width=None):
    """A batch as fairseq's translation task makes it."""
    net_input = {
        "src_tokens": collate_tokens(source, DICTIONARY.pad(), left_pad=left_pad, pad_to_length=width),
        "src_lengths": torch.tensor([len(sentence) for sentence in source]),
    }
    sample = {"id": torch.arange(len(source)), "nsentences": len(source), "net_input": net_input}
    if target is not None:
        shifted = [torch.cat((sentence[-1:], sentence[:-1])) for sentence in target]
        net_input["prev_output_tokens"] = collate_tokens(shifted, DICTIONARY.pad())
        sample["target"] = collate_tokens(target, DICTIONARY.pad())
        sample["ntokens"] = sum(map(len, target))
    return sample


def generate(models, sample, beam=4, prefix_tokens=None, **options):
    """The hypotheses of every sentence, best first."""
    generator = SequenceGenerator(models, DICTIONARY, beam_size=beam, max_len_b=12, **options)
    return generator.generate(models, sample, prefix_tokens=prefix_tokens)


def log_probs(model, sample):
    """Log-probability of each target token, ``[batch, tgt_len]``, 0 on padding."""
    output = model(**sample["net_input"])
    scores = model.get_normalized_probs(output, log_probs=True)
    target = sample["target"]
    return scores.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(target.eq(DICTIONARY.pad()), 0.0)
