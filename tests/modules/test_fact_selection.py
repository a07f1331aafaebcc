"""Selection of facts: step by step, and as one chain, which is compared with the enumeration of all sequences."""

import itertools

import pytest
import torch

from fairseq_structattn.modules.fact_selection import NO_FACT, ChainSelection, SuccessiveSelection

DIM = 4
KINDS = {
    "successive": lambda steps: SuccessiveSelection(DIM, steps),
    "chain": lambda steps: ChainSelection(DIM, steps),
    "read-chain": lambda steps: ChainSelection(DIM, steps, edges_from_read=True),
    "unary-chain": lambda steps: ChainSelection(DIM, steps, edges=False),
}
LENGTHS = torch.tensor([3, 2])


def story(steps, facts=3, seed=1):
    """A query, and facts of two stories as they are looked for and read, in float64."""
    torch.manual_seed(seed)
    query, vectors = torch.randn(2, DIM).double(), torch.randn(2, steps, 2, facts, DIM).double()
    return (query, *vectors.masked_fill((torch.arange(facts) >= LENGTHS[:, None])[..., None], 0))


def build(kind, steps):
    torch.manual_seed(2)
    selection = KINDS[kind](steps).double()
    if isinstance(selection, ChainSelection) and steps > 1:
        torch.nn.init.normal_(selection.next_query.weight)
    return selection


@pytest.mark.parametrize("kind", ["chain", "read-chain", "unary-chain"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_chain_is_the_published_distribution_over_sequences(kind, steps):
    selection, (query, keys, values) = build(kind, steps), story(steps)
    found = selection(query, keys, values, LENGTHS)
    for item, length in enumerate(LENGTHS.tolist()):
        queries = [query[item]]
        for _ in range(steps - 1):
            queries.append(selection.next_query.weight @ queries[-1])
        sequences = list(itertools.product(range(length), repeat=steps))
        if kind != "unary-chain":
            sequences = [one for one in sequences if all(a != b for a, b in zip(one, one[1:]))]
        scores = []
        for one in sequences:
            x = [keys[step, item, fact] for step, fact in enumerate(one)]
            score = sum(vector @ q for vector, q in zip(x, queries))
            if kind != "unary-chain":
                earlier = x if kind == "chain" else [values[step, item, fact] for step, fact in enumerate(one)]
                score = score + sum(a @ b for a, b in zip(earlier, x[1:]))
            scores.append(score)
        probabilities = torch.stack(scores).softmax(0)
        read = torch.stack([sum(values[step, item, fact] for step, fact in enumerate(one)) for one in sequences])
        torch.testing.assert_close(found.answer[item], queries[-1] + probabilities @ read)
        assert found.facts[item].tolist() == list(sequences[int(probabilities.argmax())])
        torch.testing.assert_close(found.weights[item].sum(-1), torch.ones(steps).double())
        assert not found.weights[item, :, length:].any()


def test_successive_selection_is_the_published_one():
    query, keys, values = story(2)
    found = build("successive", 2)(query, keys, values, LENGTHS)
    q, x, o = query[1], keys[:, 1, :2], values[:, 1, :2]
    for step in range(2):
        p = (x[step] @ q).softmax(0)
        torch.testing.assert_close(found.weights[1, step, :2], p)
        assert found.facts[1, step] == p.argmax()
        q = q + p @ o[step]
    torch.testing.assert_close(found.answer[1], q)


@pytest.mark.parametrize("kind", KINDS)
def test_a_story_of_one_fact_has_it_at_every_step(kind):
    found = build(kind, 3)(*story(3, facts=1), torch.tensor([1, 1]))
    assert found.facts.tolist() == [[0, 0, 0]] * 2
    torch.testing.assert_close(found.weights, torch.ones(2, 3, 1).double())


def test_more_steps_than_facts_alternate():
    selected = build("chain", 4)(*story(4), LENGTHS).facts[1].tolist()
    assert selected in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    selection, (query, *facts) = build(kind, 2), story(2)
    wider = [torch.cat((vectors, torch.zeros(2, 2, 2, DIM).double()), 2) for vectors in facts]
    for linear in (False, True):
        narrow, wide = (selection(query, *given, LENGTHS, linear) for given in (facts, wider))
        torch.testing.assert_close(wide.answer, narrow.answer)
        torch.testing.assert_close(wide.weights[..., :3], narrow.weights)
        assert not wide.weights[..., 3:].any() and wide.facts.tolist() == narrow.facts.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linear", [False, True])
def test_each_question_takes_its_own_steps(kind, linear):
    selection, (query, keys, values) = build(kind, 3), story(3)
    found = selection(query, keys, values, LENGTHS, linear, torch.tensor([2, 1]))
    whole = selection(query, keys, values, LENGTHS, linear)
    assert torch.equal(whole.answer, selection(query, keys, values, LENGTHS, linear, torch.tensor([3, 3])).answer)
    for item, steps in enumerate((2, 1)):
        selection.steps = steps
        alone = [part[:, item : item + 1] for part in (keys[:steps], values[:steps])]
        expected = selection(query[item : item + 1], *alone, LENGTHS[item : item + 1], linear)
        torch.testing.assert_close(found.answer[item], expected.answer[0])
        torch.testing.assert_close(found.weights[item, :steps], expected.weights[0])
        torch.testing.assert_close(found.distribution.marginals[item, :steps], expected.distribution.marginals[0])
        assert not found.weights[item, steps:].any()
        assert found.facts[item].tolist() == expected.facts[0].tolist() + [NO_FACT] * (3 - steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linear", [False, True])
def test_gradients(kind, linear):
    selection = build(kind, 2)
    leaves = [tensor.detach().requires_grad_() for tensor in story(2)]
    assert torch.autograd.gradcheck(lambda *given: selection(*given, LENGTHS, linear).answer, leaves)


def test_a_linear_step_weighs_by_scores():
    query, keys, values = story(1)
    found = build("successive", 1)(query, keys, values, LENGTHS, linear=True)
    torch.testing.assert_close(found.weights[:, 0], torch.einsum("bd,bid->bi", query, keys[0]))
    # The most likely fact is one of the story, whatever the sign of the scores.
    found = build("successive", 1)(query, -keys.abs(), values, LENGTHS, linear=True)
    assert (found.facts < LENGTHS[:, None]).all()


@pytest.mark.parametrize("kind", ["chain", "read-chain", "unary-chain"])
def test_a_linear_chain_passes_scores_on(kind):
    selection, (query, keys, values) = build(kind, 3), story(3)
    found = selection(query, keys, values, LENGTHS, linear=True)
    x, q, expected = keys[:, 0], query[0], []
    earlier = values[:, 0] if kind == "read-chain" else x
    for step in range(3):
        weights = x[step] @ q
        if step and kind != "unary-chain":
            edges = (earlier[step - 1] @ x[step].t()).fill_diagonal_(0)
            weights = weights + edges.t() @ expected[-1]
        expected.append(weights)
        q = selection.next_query(q) if step < 2 else q
    torch.testing.assert_close(found.weights[0], torch.stack(expected))
    torch.testing.assert_close(found.answer[0], q + sum(w @ o for w, o in zip(expected, values[:, 0])))
