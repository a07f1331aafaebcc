"""user_dir_examples/one_span: the distribution against a list of all spans, and a training with it."""

import re

import pytest
import torch
from loading import EXAMPLES, INSTALLED, load_example

pytest.importorskip("fairseq")
one_span = load_example("one_span")
OneSpan = one_span.OneSpan
TINY = [
    "--encoder-embed-dim", 32, "--encoder-hidden-size", 32, "--decoder-embed-dim", 32, "--decoder-hidden-size", 32,
    "--decoder-out-embed-dim", 32, "--dropout", 0,
]  # fmt: skip


class EnumeratedSpans:
    """One item of n positions, by listing its spans."""

    def __init__(self, scores, stay):
        n = len(scores)
        spans = [(first, last) for first in range(n) for last in range(first, n)]
        self.members = torch.stack([(torch.arange(n) >= i) & (torch.arange(n) <= j) for i, j in spans]).double()
        lengths = self.members.sum(-1)
        finite = scores.masked_fill(scores == one_span.NEVER, 0)
        self.scores = self.members @ finite + stay * (lengths - 1)
        self.scores[(self.members * (scores == one_span.NEVER)).any(-1)] = one_span.NEVER
        self.log_partition = self.scores.logsumexp(0)
        self.probabilities = (self.scores - self.log_partition).exp()
        self.marginals = self.probabilities @ self.members
        self.entropy = -torch.special.xlogy(self.probabilities, self.probabilities).sum()


def problem(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, generator=generator).double(), torch.randn(1, generator=generator).double()


def as_states(spans):
    """``[…, n]`` marks of spans as what ``log_prob`` takes: one of before, inside, after at each position."""
    before = (spans.cumsum(-1) == 0).double()
    return torch.stack((before, spans, 1 - before - spans), -1)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_agrees_with_a_list_of_all_spans(n):
    scores, stay = problem(n, seed=n)
    expected, found = EnumeratedSpans(scores, stay), OneSpan(scores, stay)
    torch.testing.assert_close(found.log_partition, expected.log_partition)
    torch.testing.assert_close(found.position_marginals, expected.marginals)
    torch.testing.assert_close(found.entropy(), expected.entropy)
    assert found.argmax[..., one_span.INSIDE].tolist() == expected.members[expected.scores.argmax()].tolist()
    assert found.support_size == len(expected.members)
    torch.testing.assert_close(found.log_prob(as_states(expected.members)).exp(), expected.probabilities)


def test_two_spans_going_back_and_no_span_are_outside_the_support():
    distribution = OneSpan(*problem(3))
    two, none = as_states(torch.tensor([[1.0, 0, 1], [0, 0, 0]]).double())
    assert distribution.log_prob(torch.stack((two, none))).tolist() == [one_span.NEVER, one_span.NEVER]


def test_gradients_agree_with_a_list_of_all_spans():
    direction = torch.tensor([0.3, -1.0, 2.0, 0.5]).double()

    def gradients(kind):
        scores, stay = (tensor.requires_grad_() for tensor in problem(4))
        distribution = kind(scores, stay)
        marginals = distribution.position_marginals if kind is OneSpan else distribution.marginals
        return torch.autograd.grad(distribution.log_partition + marginals @ direction, (scores, stay))

    for found, expected in zip(gradients(OneSpan), gradients(EnumeratedSpans)):
        torch.testing.assert_close(found, expected)


def test_samples_are_spans_as_often_as_they_are_probable():
    torch.manual_seed(1)
    scores, stay = problem(4)
    spans = OneSpan(scores, stay).sample((4000,))[..., one_span.INSIDE]
    starts = (spans.diff(dim=-1, prepend=torch.zeros(4000, 1)) == 1).sum(-1)
    assert (starts == 1).all()
    torch.testing.assert_close(spans.mean(0), EnumeratedSpans(scores, stay).marginals, atol=0.04, rtol=0)


def test_padding_forbidden_positions_and_nothing_at_all():
    scores, stay = problem(5)
    batch = torch.stack((scores, scores, scores))
    batch[0, 3:], batch[1, 1] = float("nan"), one_span.NEVER
    distribution = OneSpan(batch, stay, lengths=torch.tensor([3, 5, 0]))
    for item, alone in enumerate((scores[:3], batch[1])):
        expected = EnumeratedSpans(alone, stay)
        torch.testing.assert_close(distribution.log_partition[item], expected.log_partition)
        torch.testing.assert_close(distribution.position_marginals[item, : len(alone)], expected.marginals)
    assert distribution.position_marginals[0, 3:].tolist() == [0, 0]
    assert distribution.log_partition[2] == one_span.NEVER and distribution.entropy()[2] == 0
    assert not distribution.position_marginals[2].any() and distribution.support_size.tolist() == [6, 15, 0]
    assert distribution.log_prob(distribution.argmax)[2] == one_span.NEVER


def test_all_of_it_takes_less_than_eighty_lines():
    assert len((EXAMPLES / "one_span" / "__init__.py").read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.slow
def test_trains_and_translates(run_fairseq, tiny_corpus, tmp_path):
    plugin = ["--user-dir", EXAMPLES / "one_span", "--cpu"]
    log = run_fairseq(
        "train", tiny_corpus.bin, *plugin, "--arch", "one_span_rnn", *TINY, "--optimizer", "adam", "--lr", 0.02,
        "--criterion", "structattn_label_smoothed_cross_entropy", "--batch-size", 16, "--max-epoch", 8,
        "--no-epoch-checkpoints", "--save-dir", tmp_path, "--log-format", "json", env=INSTALLED,
    )  # fmt: skip
    losses = [float(value) for value in re.findall(r'"valid_loss": "([\d.]+)"', log)]
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.3
    output = run_fairseq(
        "generate", tiny_corpus.bin, *plugin, "--path", tmp_path / "checkpoint_best.pt", "--beam", 3, env=INSTALLED,
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", output, re.M)) == 100
