"""user_dir_examples/prefix: the distribution against a list of all prefixes, and a training with it."""

import re

import pytest
import torch
from loading import EXAMPLES, INSTALLED, load_example

pytest.importorskip("fairseq")
prefix = load_example("prefix")
Prefix = prefix.Prefix
TINY = [
    "--encoder-embed-dim", 32, "--encoder-hidden-size", 32, "--decoder-embed-dim", 32, "--decoder-hidden-size", 32,
    "--decoder-out-embed-dim", 32, "--dropout", 0,
]  # fmt: skip


class EnumeratedPrefixes:
    """One item of n positions, by listing its prefixes."""

    def __init__(self, scores, stay):
        n = len(scores)
        self.members = torch.tril(torch.ones(n + 1, n), -1).double()
        self.scores = self.members @ scores + stay * (self.members.sum(-1) - 1).clamp(min=0)
        self.log_partition = self.scores.logsumexp(0)
        self.probabilities = (self.scores - self.log_partition).exp()
        self.marginals = self.probabilities @ self.members
        self.entropy = -torch.special.xlogy(self.probabilities, self.probabilities).sum()


def problem(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, generator=generator).double(), torch.randn(1, generator=generator).double()


@pytest.mark.parametrize("n", [1, 2, 6])
def test_agrees_with_a_list_of_all_prefixes(n):
    scores, stay = problem(n, seed=n)
    expected, found = EnumeratedPrefixes(scores, stay), Prefix(scores, stay)
    torch.testing.assert_close(found.log_partition, expected.log_partition)
    torch.testing.assert_close(found.position_marginals, expected.marginals)
    torch.testing.assert_close(found.entropy(), expected.entropy)
    assert found.argmax.tolist() == expected.members[expected.scores.argmax()].tolist()
    assert found.support_size == len(expected.members)
    torch.testing.assert_close(found.log_prob(expected.members).exp(), expected.probabilities)


def test_what_is_no_prefix_is_outside_the_support():
    distribution = Prefix(*problem(3))
    wrong = torch.tensor([[1.0, 0, 1], [0, 1, 1]]).double()
    assert not distribution.support.check(wrong).any()
    assert distribution._log_prob(wrong).tolist() == [prefix.NEVER, prefix.NEVER]


def test_gradients_agree_with_a_list_of_all_prefixes():
    direction = torch.tensor([0.3, -1.0, 2.0, 0.5]).double()

    def gradients(kind):
        scores, stay = (tensor.requires_grad_() for tensor in problem(4))
        distribution = kind(scores, stay)
        return torch.autograd.grad(distribution.log_partition + distribution.marginals @ direction, (scores, stay))

    for found, expected in zip(gradients(Prefix), gradients(EnumeratedPrefixes)):
        torch.testing.assert_close(found, expected)


def test_samples_are_prefixes_and_padding_is_ignored():
    torch.manual_seed(1)
    scores, stay = problem(5)
    batch = torch.stack((scores, scores))
    batch[0, 3:] = float("nan")
    distribution = Prefix(batch, stay, lengths=torch.tensor([3, 5]))
    samples = distribution.sample((4000,))
    assert (samples.diff(dim=-1) <= 0).all() and not samples[:, 0, 3:].any()
    for item, alone in enumerate((scores[:3], scores)):
        expected = EnumeratedPrefixes(alone, stay)
        torch.testing.assert_close(distribution.log_partition[item], expected.log_partition)
        torch.testing.assert_close(distribution.marginals[item, : len(alone)], expected.marginals)
        means = samples[:, item, : len(alone)].mean(0)
        torch.testing.assert_close(means, expected.marginals, atol=0.04, rtol=0)


def test_all_of_it_takes_less_than_sixty_lines():
    assert len((EXAMPLES / "prefix" / "__init__.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.slow
def test_trains_and_translates(run_fairseq, tiny_corpus, tmp_path):
    plugin = ["--user-dir", EXAMPLES / "prefix", "--cpu"]
    log = run_fairseq(
        "train", tiny_corpus.bin, *plugin, "--arch", "prefix_rnn", *TINY, "--optimizer", "adam", "--lr", 0.02,
        "--criterion", "structattn_label_smoothed_cross_entropy", "--batch-size", 16, "--max-epoch", 8,
        "--no-epoch-checkpoints", "--save-dir", tmp_path, "--log-format", "json", env=INSTALLED,
    )  # fmt: skip
    losses = [float(value) for value in re.findall(r'"valid_loss": "([\d.]+)"', log)]
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.3
    output = run_fairseq(
        "generate", tiny_corpus.bin, *plugin, "--path", tmp_path / "checkpoint_best.pt", "--beam", 3, env=INSTALLED,
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", output, re.M)) == 100
