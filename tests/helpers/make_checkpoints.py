"""Small checkpoints, each with what its model says: tests/models/test_old_checkpoints.py reads them years later.

    PYTHONPATH=.:tests/helpers python tests/helpers/make_checkpoints.py FOLDER [NAME ...]

Those in tests/models/checkpoints are of version 0.1.0, or of the version that first had the model. They stay as they
are: what changes the names of parameters, their order, or what is computed of them, shows in them. Parameters are
random, and there is no state of an optimizer.
"""

import copy
import sys
from argparse import Namespace
from pathlib import Path

import building
import building_pairs
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_structattn.tasks.stories import Question, StoryDataset

SIZES = {name: 4 for name in building.SIZES if name != "init_range"}
TRANSFORMER_SIZES = {**{name: 4 for name in building.TRANSFORMER_SIZES}, "encoder_layers": 1, "decoder_layers": 1}
RNN = {
    "chain": dict(arch="structattn_rnn_crf", encoder_layers=1, decoder_layers=1, attention_score="concat"),
    "bahdanau": dict(arch="structattn_rnn_bahdanau"),
    "tree_source": dict(arch="structattn_rnn_tree", encoder_layers=1, input_feeding=True),
    "tree_decoder": dict(arch="structattn_rnn_treedec", encoder_layers=1, decoder_layers=1, source_attention="softmax"),
    "coverage": dict(arch="structattn_rnn_luong_general", encoder_layers=1, decoder_layers=1, attention_coverage="gru"),
}
TRANSFORMERS = {
    "transformer": dict(
        arch="structattn_transformer",
        cross_attention_heads="softmax:1,linear-chain:1,semi-markov:1,one-span:1",
        encoder_self_attention_heads="projective-tree:1,spanning-tree:1,linear-chain:1,softmax:1",
        attention_max_segment_length=2,
        share_all_embeddings=True,
    ),
}
OTHERS = {
    "pairs": dict(arch="structattn_decomposable_tree", embed_dim=4, hidden_size=4, parser_hidden_size=4, init_std=0.5),
    "parser": dict(arch="structattn_parser", embed_dim=4, parser_hidden_size=4),
    "stories": dict(arch="structattn_memn2n_chain", embed_dim=4, init_std=0.5),
}
NAMES = (*RNN, *TRANSFORMERS, *OTHERS)
SOURCES, TARGETS = building.sentences([6, 2, 4]), building.sentences([3, 5, 2], seed=1)


def task_of(name):
    if name in RNN or name in TRANSFORMERS:
        return building.TASK
    if name == "pairs":
        return building_pairs.TASK
    words = Dictionary()
    for word in "abcabab":
        words.add_symbol(word)
    return Namespace(source_dictionary=words, target_dictionary=words, cfg=Namespace(max_facts=3))


def build(name, args):
    """The model of a checkpoint whose options are `args`, with random parameters."""
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, task_of(name)).eval()


def options(name):
    if name in RNN:
        given = {**SIZES, "init_range": 1.5, "dropout": 0.0, **RNN[name]}
    else:
        given = {**TRANSFORMER_SIZES, **TRANSFORMERS[name]} if name in TRANSFORMERS else OTHERS[name]
    args = Namespace(**given)
    ARCH_CONFIG_REGISTRY.get(args.arch, lambda options: None)(args)
    return args


def says(name, model):
    """What the model says of fixed input, in double precision: tensors and numbers."""
    model = copy.deepcopy(model).double()
    if name == "pairs":
        return building_pairs.run(model, building_pairs.PREMISE, building_pairs.HYPOTHESIS)[0]
    if name == "parser":
        return model(torch.tensor([[4, 5, 6, 4], [5, 4, 1, 1]])).marginals
    if name == "stories":
        questions = [Question(["a b", "b c a", "c"], "a c", "b", [3, 1]), Question(["c c", "a"], "b", "c", [1, 2])]
        data = StoryDataset(questions, task_of(name).source_dictionary, 3)
        return model(**data.collater([0, 1])["net_input"])[0]
    sample = building.batch(SOURCES, TARGETS)
    best = [hypotheses[0] for hypotheses in building.generate([model], building.batch(SOURCES))]
    return {
        "log_probs": building.log_probs(model, sample),
        "attention": model(**sample["net_input"])[1]["attn"][0],
        "translations": [one["tokens"] for one in best],
        "scores": [one["score"] for one in best],
    }


def main(folder, *names):
    for name in names or NAMES:
        torch.manual_seed(1)
        args = options(name)
        model = build(name, args)
        with torch.no_grad():
            if name in TRANSFORMERS:
                # Tables, biases and gains would all have the values that they begin with.
                for parameter in model.parameters():
                    parameter.normal_()
            state = {
                "args": args,
                "optimizer_history": [{"optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
                "extra_state": {"train_iterator": None},
                "model": model.state_dict(),
                "parameters": [key for key, _ in model.named_parameters()],
                "says": says(name, model),
            }
        # The older format takes less room for small tensors.
        torch.save(state, Path(folder) / f"{name}.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
