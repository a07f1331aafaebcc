"""Memory networks: tying, linear start, options, half precision, and what the criterion counts."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_structattn.criterions import QuestionAnswering
from fairseq_structattn.modules.fact_selection import NO_FACT, ChainSelection, SuccessiveSelection
from fairseq_structattn.tasks.stories import Question, StoryDataset

ARCHITECTURES = ["structattn_memn2n", "structattn_memn2n_chain", "structattn_memn2n_unary_chain"]
QUESTIONS = [
    Question(["a b", "b c a", "c"], "a c", "b", [3, 1]),
    Question(["c c", "a"], "b", "c", [1, 2]),
    Question(["b"], "a b c", "never seen", [1]),
]


@pytest.fixture
def dictionary():
    made = Dictionary()
    for word in "abc":
        made.add_symbol(word)
    return made


@pytest.fixture
def task(dictionary):
    cfg = Namespace(max_facts=3)
    return Namespace(source_dictionary=dictionary, target_dictionary=dictionary, cfg=cfg)


@pytest.fixture
def sample(dictionary):
    return StoryDataset(QUESTIONS, dictionary, 3).collater([0, 1, 2])


def build(task, arch, **options):
    torch.manual_seed(1)
    namespace = Namespace(arch=arch, init_std=0.5, **options)
    ARCH_CONFIG_REGISTRY.get(arch, lambda options: None)(namespace)
    return ARCH_MODEL_REGISTRY[arch].build_model(namespace, task)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_tables_are_tied(task, sample, arch, steps):
    model = build(task, arch, steps=steps, embed_dim=6)
    words, dim = len(task.source_dictionary), 6
    own = 0 if arch == ARCHITECTURES[0] or steps == 1 else dim * dim
    assert sum(parameter.numel() for parameter in model.parameters()) == (steps + 1) * (words + 3) * dim + own
    untied = build(task, arch, steps=steps, embed_dim=6, tying="none")
    assert sum(parameter.numel() for parameter in untied.parameters()) == (2 * steps + 1) * (words + 3) * dim + own
    logits, selection = model(**sample["net_input"])
    torch.testing.assert_close(logits, selection.answer @ model.sentences.words[:, -dim:].t())
    assert selection.facts.shape == (3, steps)
    assert (selection.facts < sample["net_input"]["lengths"][:, None]).all()
    torch.nn.functional.cross_entropy(logits, sample["target"]).backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all() and parameter.grad.any(), name


def test_architectures(task):
    selections = [build(task, arch).selection for arch in ARCHITECTURES]
    assert [type(selection) for selection in selections] == [SuccessiveSelection, ChainSelection, ChainSelection]
    assert [selection.edges for selection in selections[1:]] == [True, False]


def test_linear_start_ends_by_epoch_and_is_part_of_the_checkpoint(task, sample):
    model = build(task, "structattn_memn2n", linear_start_epochs=2)
    sums = {}
    for epoch in (1, 2, 3):
        model.set_epoch(epoch)
        sums[epoch] = model(**sample["net_input"])[1].weights.sum(-1)
    torch.testing.assert_close(sums[1], sums[2])
    torch.testing.assert_close(sums[3], torch.ones(3, 2))
    assert not torch.allclose(sums[2], sums[3], atol=0.1)
    model.set_epoch(1)
    other = build(task, "structattn_memn2n", linear_start_epochs=0)
    torch.testing.assert_close(other(**sample["net_input"])[1].weights.sum(-1), sums[3])
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(**sample["net_input"])[1].weights.sum(-1), sums[1])
    assert not build(task, "structattn_memn2n_chain").linear


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_without_tying_each_step_has_two_tables_and_answers_have_one(task, sample, arch):
    model = build(task, arch, steps=2, tying="none", linear_start_epochs=0)
    logits, selection = model(**sample["net_input"])
    given = sample["net_input"]
    vectors = model.sentences.facts(given["facts"], given["lengths"])
    query = model.sentences.question(given["question"])
    expected = model.selection(query, vectors[[0, 2]], vectors[[1, 3]], given["lengths"])
    torch.testing.assert_close(selection.answer, expected.answer)
    torch.testing.assert_close(logits, expected.answer @ model.sentences.table(4).t())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_hidden_layer_is_added_to_what_scores_answers(task, sample, arch):
    model = build(task, arch, answer_hidden_dim=5, linear_start_epochs=0)
    logits, selection = model(**sample["net_input"])
    first, second = model.hidden[0].weight, model.hidden[2].weight
    answer = selection.answer + (selection.answer @ first.t()).clamp(min=0) @ second.t()
    assert first.shape == (5, 20) and not torch.allclose(answer, selection.answer)
    torch.testing.assert_close(logits, answer @ model.sentences.table(-1).t())


def test_edges_and_scale_are_passed_on(task):
    model = build(task, "structattn_memn2n_chain", chain_edges="read", position_scale=2.0)
    assert model.selection.edges_from_read and model.sentences.position_scale == 2.0
    assert not build(task, "structattn_memn2n_chain").selection.edges_from_read


WRONG = {
    "tying": ("layers", "--tying layers: not known, choose from adjacent, none"),
    "fact_selection": ("best", "--fact-selection best: not known, choose from successive, chain, unary-chain"),
    "steps": (0, "--steps 0: must be at least 1"),
    "embed_dim": (0, "--embed-dim 0"),
    "linear_start_epochs": (-1, "--linear-start-epochs -1: must be at least 0"),
    "age_noise": (1.0, "--age-noise 1.0"),
    "init_std": (0.0, "--init-std 0.0"),
    "position_scale": (-1.0, "--position-scale -1.0: must be greater than 0"),
    "chain_edges": ("both", "--chain-edges both: not known, choose from looked-for, read"),
    "answer_hidden_dim": (-1, "--answer-hidden-dim -1: must be at least 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_named(task, name):
    options = {"init_std": 0.1, name: WRONG[name][0]}
    with pytest.raises(ValueError, match=WRONG[name][1]):
        ARCH_MODEL_REGISTRY["structattn_memn2n"].build_model(Namespace(**options), task)


@pytest.mark.precision
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_half_precision_and_autocast(task, sample, arch):
    model = build(task, arch).eval()
    model.set_epoch(99)

    def log_probs(given):
        return given.get_normalized_probs(given(**sample["net_input"]), log_probs=True)

    expected = log_probs(model)
    for dtype, tolerance in ((torch.bfloat16, 0.1), (torch.float16, 0.02)):
        with torch.autocast("cpu", dtype):
            torch.testing.assert_close(log_probs(model), expected, atol=tolerance, rtol=0)
    for dtype, tolerance in ((torch.float16, 0.03), (torch.bfloat16, 0.1)):
        lowered = log_probs(model.to(dtype))
        assert lowered.dtype == torch.float32
        torch.testing.assert_close(lowered, expected, atol=tolerance, rtol=0)
        lowered.sum().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def logged(task, model, sample):
    criterion = QuestionAnswering(task)
    loss, size, output = criterion(model, sample)
    with metrics.aggregate(new_root=True) as found:
        criterion.reduce_metrics([output, output])
    return loss, size, found.get_smoothed_values()


class Answers(torch.nn.Module):
    """Answers and selects what it is told to."""

    def __init__(self, answers, facts, symbols):
        super().__init__()
        self.logits = torch.full((3, symbols), -1.0).scatter(1, answers[:, None], 1.0)
        self.facts = facts

    def forward(self, facts, lengths, question, steps=None):
        return self.logits, Namespace(facts=self.facts)

    def get_normalized_probs(self, net_output, log_probs):
        return net_output[0].log_softmax(-1)


def test_criterion_counts_answers_and_sequences_of_facts(task, sample, dictionary):
    answers = torch.tensor([dictionary.index("b"), dictionary.index("a"), dictionary.unk()])
    model = Answers(answers, torch.tensor([[2, 0], [1, 0], [0, 0]]), len(dictionary)).eval()
    loss, size, found = logged(task, model, sample)
    expected = torch.nn.functional.cross_entropy(model.logits, sample["target"], reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert size == 3 and found["loss"] == pytest.approx(float(expected) / 3 / 0.6931, abs=2e-3)
    # An answer that no training question has is never right; the third question has but one supporting fact.
    assert found["accuracy"] == pytest.approx(33.33) and found["fact_accuracy"] == 50.0
    assert "fact_accuracy" not in logged(task, model.train(), sample)[2]
    assert "fact_accuracy" not in logged(task, Answers(answers, torch.zeros(3, 5).long(), 7).eval(), sample)[2]


def test_questions_with_steps_of_their_own(task, dictionary):
    questions = [question._replace(steps=steps) for question, steps in zip(QUESTIONS, (2, 2, 1))]
    sample = StoryDataset(questions, dictionary, 3).collater([0, 1, 2])
    model = build(task, "structattn_memn2n_chain", steps=2).eval()
    assert (model(**sample["net_input"])[1].facts == NO_FACT).tolist() == [[False] * 2, [False] * 2, [False, True]]
    # The third question takes one step and has one supporting fact, so that it counts, too.
    answers = Answers(sample["target"], torch.tensor([[2, 0], [1, 0], [0, NO_FACT]]), len(dictionary)).eval()
    assert logged(task, answers, sample)[2]["fact_accuracy"] == pytest.approx(66.67)
    # Its answer is that of a model of one step, which has the last tables.
    for tying, last in (("adjacent", slice(1, None)), ("none", slice(2, None))):
        model = build(task, "structattn_memn2n", steps=2, tying=tying, linear_start_epochs=0)
        short = build(task, "structattn_memn2n", steps=1, tying=tying, linear_start_epochs=0)
        for name in ("words", "ages"):
            whole = getattr(model.sentences, name).unflatten(-1, (-1, 20))
            getattr(short.sentences, name).data = whole[:, last].flatten(1)
        alone = {name: part[2:] for name, part in sample["net_input"].items() if name != "steps"}
        torch.testing.assert_close(model(**sample["net_input"])[0][2:], short(**alone)[0])
    with pytest.raises(ValueError, match="takes 2 steps, and the model has 1: set --steps 2"):
        build(task, "structattn_memn2n", steps=1)(**sample["net_input"])
