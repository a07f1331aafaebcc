"""Multi-head attention: with softmax that of fairseq; every other head against its distribution, alone and unpadded."""

import doctest

import pytest
import torch
from contract import OWN_NAMES
from torch.testing import assert_close

pytest.importorskip("fairseq")
from fairseq.modules import MultiheadAttention  # noqa: E402

from fairseq_structattn.distributions import Bernoulli, LinearChain, ProjectiveTree, SpanningTree
from fairseq_structattn.modules import multihead_attention, right_padding
from fairseq_structattn.modules.head_groups import HeadShare, parse_heads
from fairseq_structattn.modules.multihead_attention import StructuredMultiheadAttention, structured

LENGTH, BATCH, DIM, HEADS = 5, 3, 12, 6
REAL = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
MASKS = {
    "none": None,
    "left": torch.arange(LENGTH).flip(0) >= torch.tensor([[3], [5], [2]]),
    "right": torch.arange(LENGTH) >= torch.tensor([[3], [5], [2]]),
    "anywhere": ~REAL,
}


def made(cls=StructuredMultiheadAttention, seed=1, cross=False, **options):
    torch.manual_seed(seed)
    sizes = {"kdim": 8, "vdim": 8, "encoder_decoder_attention": True} if cross else {"self_attention": True}
    module = cls(DIM, HEADS, **sizes, **options).double().eval()
    for parameter in module.parameters():  # fairseq's biases are 0 at first
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def states(dim=DIM, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LENGTH, BATCH, dim, dtype=torch.double, generator=generator)


def pair(cross=False, **options):
    """fairseq's module, and ours with its parameters."""
    theirs = made(MultiheadAttention, cross=cross, **options)
    ours = made(seed=2, cross=cross, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def results(module, query, source, **call):
    """Results and the gradients of parameters and inputs."""
    query = query.clone().requires_grad_()
    source = query if source is None else source.clone().requires_grad_()
    attended, weights = module(query, source, source, **call)
    return (attended, weights, *torch.autograd.grad(attended.square().sum(), [query, source, *module.parameters()]))


# With softmax


def assert_like(found, expected):
    """To the precision of fairseq's softmax, which is in float32 whatever the dtype."""
    assert len(found) == len(expected)
    largest = max(1.0, *(other.abs().max().item() for other in expected))
    for one, other in zip(found, expected):
        assert_close(one, other, atol=1e-6 * largest, rtol=0, check_dtype=False)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("static_kv", [True, False])
def test_softmax_between_encoder_and_decoder_is_that_of_fairseq(mask, static_kv):
    call = {"key_padding_mask": mask, "static_kv": static_kv}
    theirs, ours = pair(cross=True)
    assert_like(*(results(each, states(), states(8, 1), **call) for each in (ours, theirs)))
    call = {**call, "static_kv": True, "need_head_weights": True}
    assert_like(
        ours(states(), states(8, 1), states(8, 1), **call), theirs(states(), states(8, 1), states(8, 1), **call)
    )


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("mask", ["none", "left"])
def test_softmax_over_earlier_positions_is_that_of_fairseq(mask):
    theirs, ours = pair()
    future = torch.full((LENGTH, LENGTH), -float("inf"), dtype=torch.double).triu(1)
    call = {"key_padding_mask": MASKS[mask], "attn_mask": future}
    if mask == "none":
        assert_like(*(results(each, states(), None, **call) for each in (ours, theirs)))
        booleans, _ = ours(states(), states(), states(), attn_mask=future.isinf())
        assert_like(booleans, theirs(states(), states(), states(), attn_mask=future)[0])
        return
    # Queries in the padding may attend to nothing: fairseq's are NaN, ours 0.
    real = ~MASKS[mask].t()
    (found, _), (expected, _) = (each(states(), states(), states(), **call) for each in (ours, theirs))
    assert_like(found[real], expected[real])


def test_scores_before_the_softmax_are_those_of_fairseq():
    theirs, ours = pair(cross=True)
    call = {"key_padding_mask": MASKS["left"], "before_softmax": True, "static_kv": True}
    assert_like(
        ours(states(), states(8, 1), states(8, 1), **call), theirs(states(), states(8, 1), states(8, 1), **call)
    )


@pytest.mark.parametrize("cross", [True, False])
def test_steps_and_beams_are_those_of_fairseq(cross):
    modules, caches = pair(cross=cross), ({}, {})
    mask = MASKS["left"] if cross else None
    for step in range(3):
        query, source = states(seed=step)[:1, : BATCH - step], states(8, 7)[:, : BATCH - step] if cross else None
        found, expected = (
            module(query, source if cross else query, source if cross else query, mask, cache, static_kv=cross)
            for module, cache in zip(modules, caches)
        )
        assert_like(found, expected)
        for module, cache in zip(modules, caches):
            module.reorder_incremental_state(cache, torch.tensor([[2, 0], [1], [0]][step]))
    ours, theirs = (module._get_input_buffer(cache) for module, cache in zip(modules, caches))
    assert ours.keys() == theirs.keys() and ours["prev_key"].shape == theirs["prev_key"].shape


def test_padding_of_later_steps_is_masked():
    theirs, ours = pair()
    outputs = []
    for module in (theirs, ours):
        cache = {}
        module(states(), states(), states(), MASKS["left"], cache)
        query = states(seed=1)[:1]
        outputs.append(module(query, query, query, None, cache, need_head_weights=True))
    assert_like(outputs[1], outputs[0])


def test_dropout_is_that_of_fairseq():
    outputs = []
    for module in pair(cross=True, dropout=0.4):
        torch.manual_seed(5)
        outputs.append(module.train()(states(), states(8, 1), states(8, 1), MASKS["left"], static_kv=True))
    assert_like(*outputs)
    assert not torch.equal(outputs[1][0], pair(cross=True)[1](states(), states(8, 1), states(8, 1))[0])


@pytest.mark.parametrize("cross", [True, False])
def test_initial_values_are_those_of_fairseq(cross):
    sizes = {"kdim": 8, "vdim": 8, "encoder_decoder_attention": True} if cross else {"self_attention": True}
    found = []
    for cls in (MultiheadAttention, StructuredMultiheadAttention):
        torch.manual_seed(3)
        found.append(cls(DIM, HEADS, **sizes).state_dict())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


# Structured heads

CROSS = "linear-chain:3,softmax:1,sigmoid"
WITHIN = "projective-tree:2,linear-chain:1,spanning-tree:2,softmax:1"


def projected(module, query, source, item, mask):
    """Scaled queries, keys and values of one sentence without its padding, ``[heads, length, head_dim]``."""
    real = slice(None) if mask is None else ~mask[item]
    rows = query[:, item] if module.encoder_decoder_attention else query[real, item]
    parts = (
        module.q_proj(rows) * module.head_dim**-0.5,
        module.k_proj(source[real, item]),
        module.v_proj(source[real, item]),
    )
    return [part.unflatten(-1, (HEADS, -1)).transpose(0, 1) for part in parts]


def by_hand(group, head, queries, keys, values):
    """The distribution of a head in one sentence, its weights and contexts."""
    scores = queries @ keys.t()
    if group.name.endswith("tree"):
        with_root = torch.cat((group.root_key[head] @ queries.t(), scores.t().flatten())).view(-1, len(queries))
        kind = {"projective-tree": ProjectiveTree, "spanning-tree": SpanningTree}[group.name]
        trees = kind(with_root[:-1, :-1])
        weights = trees.marginals.t()
        contexts = weights @ torch.cat((group.root_value[head : head + 1], values[:-1]))
        pad = torch.nn.functional.pad
        return trees, pad(weights[:, 1:], (0, 1, 0, 1)), pad(contexts, (0, 0, 0, 1))
    if group.name == "linear-chain":
        posterior = LinearChain(scores, group.tables["pairwise"][head])
    else:
        posterior = Bernoulli(scores) if group.name == "sigmoid" else None
    weights = scores.softmax(-1) if posterior is None else posterior.marginals
    weights = weights / weights.sum(-1, keepdim=True)
    return posterior, weights, weights @ values


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("cross, heads", [(True, CROSS), (False, WITHIN)], ids=["cross", "self"])
def test_heads_are_their_distributions(cross, heads, mask):
    module = made(cross=cross, heads=heads)
    query, source = states(), states(8, 1) if cross else states()
    attended, weights = module(query, source, source, mask, need_head_weights=True)
    for item in range(BATCH):
        real = torch.ones(LENGTH, dtype=torch.bool) if mask is None else ~mask[item]
        rows = torch.ones(LENGTH, dtype=torch.bool) if cross else real
        queries, keys, values = projected(module, query, source, item, mask)
        contexts, number = [], 0
        for group in module.groups:
            for head in range(group.heads):
                _, expected, context = by_hand(group, head, queries[number], keys[number], values[number])
                found = weights[number, item][rows]
                assert_close(found[:, real], expected)
                assert not found[:, ~real].any(), "padding has no weight"
                contexts.append(context)
                number += 1
        assert_close(attended[rows, item], module.out_proj(torch.cat(contexts, -1)))


@pytest.mark.parametrize("cross, heads", [(True, CROSS), (False, WITHIN)], ids=["cross", "self"])
def test_observed_heads(cross, heads):
    module, mask = made(cross=cross, heads=heads), MASKS["left"]
    query, source = states(), states(8, 1) if cross else states()
    _, weights = module(query, source, source, mask, need_head_weights=True)
    number = 0
    for group in module.groups:
        for head in range(group.heads):
            with module.observe(number) as seen:
                module(query, source, source, mask)
            ((found, posterior, contexts),) = seen
            assert_close(found, weights[number])
            item = 0
            parts = [part[number] for part in projected(module, query, source, item, mask)]
            expected, _, context = by_hand(group, head, *parts)
            real = slice(None) if cross else ~mask[item]
            assert_close(contexts[item][real], context)
            if expected is not None:
                is_tree = group.name.endswith("tree")
                corner = tuple(map(slice, expected.marginals.shape)) if is_tree else (real, slice(len(parts[1])))
                assert_close(posterior.marginals[item][corner], expected.marginals)
            number += 1
    module(query, source, source, mask)
    assert len(seen) == 1, "nothing is observed outside the context"
    with pytest.raises(ValueError, match="there is no head 6; the heads are numbered from 0 to 5"):
        with module.observe(6):
            pass


@pytest.mark.parametrize("name", [name for name in OWN_NAMES if name != "softmax"])
def test_heads_of_every_distribution(name):
    """Sentences padded on the left have what they have alone, and every parameter has a gradient."""
    if "max" in name:
        pytest.importorskip("entmax")
    module, mask = made(heads=f"{name}:2,softmax"), MASKS["left"]
    attended, weights = module(states(), states(), states(), mask, need_head_weights=True)
    for item in range(BATCH):
        sentence = states()[~mask[item], item : item + 1]
        alone, own = module(sentence, sentence, sentence, need_head_weights=True)
        assert_close(attended[~mask[item], item], alone[:, 0])
        assert_close(weights[:, item][:, ~mask[item]][:, :, ~mask[item]], own[:, 0])
    attended[~mask.t()].square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.groups.parameters())


@pytest.mark.parametrize("kind, heads", [(LinearChain, "linear-chain:4,softmax"), (ProjectiveTree, "projective-tree")])
def test_a_layer_calls_a_kernel_once(monkeypatch, kind, heads):
    runs, inference = [], kind._inference
    monkeypatch.setattr(kind, "_inference", lambda own, dtype: runs.append(own) or inference(own, dtype))
    made(heads=heads)(states(), states(), states(), MASKS["left"])
    assert len(runs) == 1


def test_gradients_of_structured_heads():
    module = made(heads=WITHIN)
    inputs = states()[:4, :2].requires_grad_()
    mask = MASKS["left"][:2, 1:]
    assert torch.autograd.gradcheck(lambda given: module(given, given, given, mask)[0][1:], inputs)
    module(inputs, inputs, inputs, mask)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_scale_and_roots():
    plain, scaled = (made(heads="linear-chain", scale=scale, cross=True) for scale in (1.0, 2.0))
    assert_close(scaled(states(), states(8, 1), states(8, 1))[1], 2 * plain(states(), states(8, 1), states(8, 1))[1])
    raw = made(heads="sigmoid", normalize="none", cross=True)
    _, weights = raw(states(), states(8, 1), states(8, 1), need_head_weights=True)
    queries, keys, _ = projected(raw, states(), states(8, 1), 0, None)
    assert_close(weights[:, 0], (queries @ keys.transpose(1, 2)).sigmoid())
    single = made(heads="spanning-tree", roots="single")
    with single.observe(0) as seen:
        single(states(), states(), states())
    assert_close(seen[0].posterior.marginals[:, 0].sum(-1), torch.ones(BATCH, dtype=torch.double))


@pytest.mark.parametrize("dtype, atol", [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_half_precision(dtype, atol):
    module, exact = made(heads=WITHIN).to(dtype), made(heads=WITHIN)
    attended, weights = module(*[states().to(dtype)] * 3, MASKS["right"])
    assert attended.dtype == dtype and weights.dtype == torch.float32
    assert_close(weights.double(), exact(*[states()] * 3, MASKS["right"])[1], atol=10 * atol, rtol=0)
    assert_close(attended.double(), exact(*[states()] * 3, MASKS["right"])[0], atol=10 * atol, rtol=0.1)


# In place of fairseq's module


def test_structured_form_of_a_module():
    theirs = made(MultiheadAttention, cross=True, dropout=0.25)
    before = torch.get_rng_state()
    ours = structured(theirs, heads="softmax:4,linear-chain:2")
    assert torch.equal(torch.get_rng_state(), before)
    own = dict(ours.named_parameters())
    assert all(own.pop(name) is parameter for name, parameter in theirs.named_parameters())
    assert [(name, tuple(each.shape)) for name, each in own.items()] == [("groups.1.tables.pairwise", (2, 2, 2))]
    assert ours.dropout_module is theirs.dropout_module
    assert_like(
        structured(theirs, heads="softmax")(states(), states(8, 1), states(8, 1)),
        theirs(states(), states(8, 1), states(8, 1), static_kv=True),
    )


@pytest.mark.parametrize("name", ["", "encoder.layers.0.self_attn"])
def test_checkpoints_without_structured_heads_load(name):
    theirs, ours = made(MultiheadAttention), made(heads=WITHIN)
    prefix = f"{name}." if name else ""
    state = {prefix + key: value for key, value in theirs.state_dict().items()}
    kept = {key: value.clone() for key, value in ours.state_dict().items() if key.startswith("groups.")}
    ours.upgrade_state_dict_named(state, name)
    ours.load_state_dict({key[len(prefix) :]: value for key, value in state.items()})
    assert len(kept) == 5 and all(torch.equal(ours.state_dict()[key], value) for key, value in kept.items())
    assert torch.equal(ours.k_proj.weight, theirs.k_proj.weight)


# What is refused


@pytest.mark.parametrize(
    "text, expected",
    [
        ("softmax", [("softmax", 6)]),
        ("softmax:6", [("softmax", 6)]),
        (" linear-chain:1 , softmax", [("linear-chain", 1), ("softmax", 5)]),
        ("softmax:4,linear-chain:1,sigmoid:1", [("softmax", 4), ("linear-chain", 1), ("sigmoid", 1)]),
    ],
)
def test_specifications(text, expected):
    assert parse_heads(text, 6) == [HeadShare(*share) for share in expected]


@pytest.mark.parametrize(
    "text, message",
    [
        ("softmx", "'softmx': unknown distribution 'softmx'; choose from .*linear-chain"),
        ("", "unknown distribution ''"),
        ("softmax:2,linear-chain:2", "'softmax:2,linear-chain:2': the numbers of heads add up to 4; the layer has 6"),
        ("softmax:7", "add up to 7; the layer has 6"),
        ("softmax:6,linear-chain", "add up to 6 and leave none; the layer has 6"),
        ("softmax,linear-chain", "only one distribution may stand without its number of heads"),
        ("softmax:2,linear-chain:2,softmax:2", "names softmax twice"),
        ("softmax:0", "'0' is no number of heads"),
        ("softmax:two", "'two' is no number of heads"),
    ],
)
def test_wrong_specifications(text, message):
    with pytest.raises(ValueError, match=message):
        parse_heads(text, 6)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"add_bias_kv": True}, "add_bias_kv is True: structured attention does not have it"),
        ({"add_zero_attn": True}, "add_zero_attn is True"),
        ({"q_noise": 0.1}, "q_noise is 0.1"),
        ({"xformers_att_config": "{}"}, "xformers_att_config is '{}'"),
        ({"heads": "softmax:5,projective-tree:1", "cross": True}, "projective-tree is a distribution over arcs"),
        ({"normalize": "mean"}, "normalize is 'mean'"),
        ({"roots": "two"}, "roots is 'two'"),
        ({"heads": "softmax:1"}, "add up to 1; the layer has 6"),
    ],
)
def test_what_cannot_be_built(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_what_cannot_be_called():
    chain, tree = made(heads="softmax:5,linear-chain:1"), made(heads="projective-tree")
    future = torch.zeros(LENGTH, LENGTH)
    for call in ({"attn_mask": future}, {"incremental_state": {}}):
        with pytest.raises(ValueError, match="linear-chain heads select among all positions at once"):
            chain(states(), states(), states(), **call)
    with pytest.raises(ValueError, match="before_softmax needs softmax in all heads; there are projective-tree"):
        tree(states(), states(), states(), before_softmax=True)
    cross = made(cross=True, heads="linear-chain")
    with pytest.raises(ValueError, match="linear-chain heads select among all positions at once"):
        cross(states(), states(8, 1), states(8, 1), incremental_state={}, static_kv=False)
    with pytest.raises(ValueError, match="query has 8 dimensions; embed_dim is 12"):
        cross(states(8), states(8, 1), states(8, 1))
    with pytest.raises(ValueError, match="key has 3 sentences and query 2"):
        cross(states()[:, :2], states(8, 1), states(8, 1))
    with pytest.raises(ValueError, match="key and value are None"):
        cross(states(), None, None)
    with pytest.raises(ValueError, match="embed_dim is 12; it must be a multiple of num_heads, 5"):
        StructuredMultiheadAttention(12, 5)


@pytest.mark.parametrize("module", [multihead_attention, right_padding], ids=lambda module: module.__name__)
def test_examples(module):
    failures, tries = doctest.testmod(module)
    assert tries and not failures
