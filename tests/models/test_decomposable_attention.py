"""Decomposable attention: its equations, what padding and order do to it, and what heads it is given."""

from argparse import Namespace

import pytest
import torch
from building_pairs import HEADS, HYPOTHESIS, PREMISE, SIZES, TASK, WORDS, build, padded, run
from fairseq import models
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_structattn.models.decomposable_attention import DecomposableOptions

ARCHITECTURES = sorted(name for name in ARCH_MODEL_REGISTRY if name.startswith("structattn_decomposable"))
GIVEN = "structattn_decomposable_given"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_padding_and_companions_change_nothing(arch):
    model = build(arch)
    scores, extra = run(model, PREMISE, HYPOTHESIS, HEADS, width=7)
    assert scores.shape == (3, 3) and torch.isfinite(scores).all()
    for item in range(3):
        heads = [[side[item]] for side in HEADS]
        alone, own = run(model, PREMISE[item : item + 1], HYPOTHESIS[item : item + 1], heads)
        torch.testing.assert_close(scores[item : item + 1], alone)
        rows, columns = 1 + len(PREMISE[item]), 1 + len(HYPOTHESIS[item])
        for weights, of_one, shape in zip(extra["attn"], own["attn"], ((rows, columns), (columns, rows))):
            torch.testing.assert_close(weights[item, : shape[0], : shape[1]], of_one[0])
            assert not weights[item, : shape[0], shape[1] :].any()


def test_without_a_parser_the_order_of_words_means_nothing():
    model = build("structattn_decomposable")
    scores, extra = run(model, PREMISE, HYPOTHESIS)
    premise = [[row[place] for place in order] for row, order in zip(PREMISE, ([2, 0, 3, 1], [0], []))]
    permuted, of_permuted = run(model, premise, HYPOTHESIS)
    torch.testing.assert_close(scores, permuted)
    torch.testing.assert_close(extra["attn"][0][0, [0, 3, 1, 4, 2]], of_permuted["attn"][0][0])


@pytest.mark.parametrize("arch", ["structattn_decomposable_flat", "structattn_decomposable_tree"])
def test_with_a_parser_it_does(arch):
    model = build(arch)
    scores, reversed_scores = (run(model, [row], HYPOTHESIS[:1])[0] for row in ([5, 9, 7, 12], [12, 7, 9, 5]))
    assert (scores - reversed_scores).abs().max() > 1e-6


def test_the_equations():
    """Parikh et al. 2016, sections 3.1 to 3.3, word by word."""
    model = build("structattn_decomposable", dropout=0.0)
    first, second = ([WORDS.bos(), *row] for row in (PREMISE[0], HYPOTHESIS[0]))
    a, b = ([model.projection(model.embed_tokens.weight[word]) for word in side] for side in (first, second))

    def aligned(word, others):
        scores = torch.stack([model.attend(word) @ model.attend(other) for other in others])
        return sum(weight * other for weight, other in zip(scores.softmax(0), others))

    of_first = sum(model.compare(torch.cat((word, aligned(word, b)))) for word in a)
    of_second = sum(model.compare(torch.cat((word, aligned(word, a)))) for word in b)
    expected = model.classify(torch.cat((of_first, of_second)))
    torch.testing.assert_close(run(model, PREMISE[:1], HYPOTHESIS[:1])[0][0], expected)


def test_expected_heads_stand_beside_the_words():
    model = build("structattn_decomposable_tree")
    read = model._read(padded(PREMISE[:1], WORDS.pad()), None)
    words, heads = read.words[0].chunk(2, -1)
    torch.testing.assert_close(heads[1:], read.heads.marginals[0].t() @ words)
    assert not heads[0].any()
    assert torch.equal(model.source_attention(padded(PREMISE[:1], WORDS.pad())).marginals, read.heads.marginals)


def test_given_heads_stand_beside_the_words():
    model = build(GIVEN)
    read = model._read(padded([HYPOTHESIS[2]], WORDS.pad()), torch.tensor([[-1, 3, 0]]))
    words, heads = read.words[0].chunk(2, -1)
    nothing = torch.zeros_like(words[0])
    torch.testing.assert_close(heads, torch.stack([nothing, nothing, words[3], words[0]]))
    with pytest.raises(ValueError, match="--source-attention given needs the heads .* --load-heads"):
        run(model, PREMISE, HYPOTHESIS)
    with pytest.raises(ValueError, match="--source-attention given: it has no trees"):
        model.source_attention(padded(PREMISE, WORDS.pad()))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_gradients_reach_every_parameter(arch):
    model = build(arch)
    scores, _ = run(model, PREMISE, HYPOTHESIS, HEADS)
    torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_one_parser_reads_both_sentences():
    model = build("structattn_decomposable_tree")
    _, extra = run(model, PREMISE[:1], PREMISE[:1])
    assert torch.equal(*(heads.marginals for heads in extra["source_attention"]))


def test_published_defaults():
    options = Namespace(arch="structattn_decomposable_tree")
    ARCH_CONFIG_REGISTRY[options.arch](options)
    made = DecomposableOptions.from_namespace(options)
    expected = (300, 300, 100, "projective-tree", "tanh", "multi", 0.2, 0.01)
    names = "embed_dim hidden_size parser_hidden_size source_attention arc_bound tree_roots dropout init_std".split()
    assert tuple(getattr(made, name) for name in names) == expected


@pytest.mark.parametrize(
    "options, message",
    [
        ({"source_attention": "trees"}, "--source-attention trees: not known, choose from none, given, softmax"),
        ({"arc_bound": "2"}, "--arc-bound 2: not known"),
        ({"hidden_size": 0}, "--hidden-size 0: must be at least 1"),
        ({"dropout": 1.0}, "--dropout 1.0: must be at least 0 and less than 1"),
        ({"init_std": -0.1}, "--init-std -0.1: must be at least 0"),
    ],
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        build("structattn_decomposable", **options)


def test_another_task_is_refused():
    with pytest.raises(ValueError, match="add --task structattn_sentence_pair"):
        build("structattn_decomposable", task=Namespace(source_dictionary=WORDS))


def test_word_vectors_of_a_file(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("w3 3 0 0 0 0 4\n. . of 1 1 1 1 1 1\nw5 0 2 0 0 0 0\nother 1 1 1 1 1 1\n")
    model, again = (build("structattn_decomposable", embed_path=str(path)) for _ in range(2))
    vectors = model.embed_tokens.weight
    assert not vectors.requires_grad and torch.equal(vectors, again.embed_tokens.weight)
    torch.testing.assert_close(vectors[WORDS.index("w3")], torch.tensor([0.6, 0, 0, 0, 0, 0.8]).double())
    norms = vectors.norm(dim=-1)
    assert not norms[WORDS.pad()]
    torch.testing.assert_close(norms.sum(), torch.tensor(len(WORDS) - 1.0).double())
    path.write_text("w3 3 0 0 0 4\n")
    with pytest.raises(
        ValueError, match=r"--embed-path: .*, line 1: a vector of 5 numbers, .* set --embed-dim to match"
    ):
        build("structattn_decomposable", embed_path=str(path))


def test_for_a_checkpoint_no_word_vectors_are_read(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("w3 3 0 0 0 0 4\n")
    trained = build("structattn_decomposable", embed_path=str(path))
    path.unlink()
    options = Namespace(arch="structattn_decomposable", embed_path=str(path), **SIZES)
    restored = models.build_model(options, TASK, from_checkpoint=True).double()
    restored.load_state_dict(trained.state_dict())
    assert torch.equal(restored.train().embed_tokens.weight, trained.embed_tokens.weight)
    with pytest.raises(FileNotFoundError, match="--embed-path .*: no such file, and no checkpoint"):
        models.build_model(options, TASK).train()
