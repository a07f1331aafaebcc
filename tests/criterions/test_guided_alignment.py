"""Guided alignment: worked out by hand, in batches as fairseq makes them, and learning a known alignment."""

import math
import random
from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, SIZES, build
from fairseq.data.language_pair_dataset import collate

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy
from fairseq_structattn.criterions.guided_alignment import alignment_matrix, guided_alignment_loss
from fairseq_structattn.distributions import Categorical

PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()


def criterion(**weights):
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace(load_alignments=True))
    return StructuredLabelSmoothedCrossEntropy(task, False, 0.0, **weights)


def pairs(*links_of_sentences, lengths=((4, 3), (2, 3), (6, 1))):
    """A batch of sentences of so many words on either side, with their links, source first."""
    rng = random.Random(0)
    samples = []
    for number, ((source, target), links) in enumerate(zip(lengths, links_of_sentences)):
        sides = [
            torch.tensor([rng.randrange(DICTIONARY.nspecial, len(DICTIONARY)) for _ in range(count)] + [EOS])
            for count in (source, target)
        ]
        flat = torch.tensor([index for link in links for index in link], dtype=torch.int)
        samples.append({"id": number, "source": sides[0], "target": sides[1], "alignment": flat})
    return samples


def as_batch(samples, left_pad=True):
    return collate(samples, PAD, EOS, left_pad_source=left_pad)


LINKS = [(0, 2), (3, 0), (2, 0)], [], [(5, 0)]


def test_cross_entropy_by_hand():
    # p = 1/4, 3/4 and 1/2, 1/2. The first word has both positions by halves, the second the first one.
    posterior = Categorical(torch.tensor([[[1.0, 3.0], [1.0, 1.0]]]).log())
    loss = guided_alignment_loss(posterior, torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    assert loss.item() == pytest.approx(-(math.log(1 / 4) + math.log(3 / 4)) / 2 + math.log(2))


def test_certain_and_unaligned_words_cost_exactly_nothing():
    posterior = Categorical(torch.tensor([[[0.0, -math.inf], [1.0, 2.0]]]))
    assert guided_alignment_loss(posterior, torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])).item() == 0


def test_forbidden_links_are_left_out():
    logits = torch.tensor([[[0.0, -math.inf], [0.0, 0.0]]], requires_grad=True)
    loss = guided_alignment_loss(Categorical(logits), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(math.log(2)) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("left_pad", [True, False])
def test_links_of_fairseqs_batches_end_where_they_belong(left_pad):
    sample = as_batch(pairs(*LINKS), left_pad)
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    matrix = alignment_matrix(sample["alignments"], sample["align_weights"], source, target.size(1), PAD)
    # Batches have their longest source first: sentences 2, 0, 1.
    expected = torch.zeros(3, 4, 7)
    expected[0, 0, 5] = 1
    expected[1, 2, 0] = 1
    expected[1, 0, 3] = expected[1, 0, 2] = 0.5
    assert torch.equal(matrix, expected)


@pytest.mark.parametrize(
    "arch", ["structattn_rnn", "structattn_rnn_crf", "structattn_rnn_treedec", "transformer, chains"]
)
def test_loss_does_not_depend_on_padding_and_company(arch):
    model, samples = build(arch).double(), pairs(*LINKS)
    together = criterion(guided_alignment=1.0)(model, as_batch(samples))[2]
    right = criterion(guided_alignment=1.0)(model, as_batch(samples, left_pad=False))[2]
    alone = [criterion(guided_alignment=1.0)(model, as_batch([sample]))[2] for sample in samples]
    assert together["guided_alignment"].item() == pytest.approx(right["guided_alignment"].item())
    expected = sum(log["guided_alignment"].item() for log in alone)
    assert together["guided_alignment"].item() == pytest.approx(expected)
    assert together["guided_alignment_words"].item() == 3
    # The sentence without links.
    assert alone[1]["guided_alignment"].item() == alone[1]["guided_alignment_words"].item() == 0


def reversal(rng, count):
    """Sentences with their mirror images: word i comes from word n − 1 − i."""
    samples = []
    for number in range(count):
        words = [rng.randrange(DICTIONARY.nspecial, len(DICTIONARY)) for _ in range(rng.randint(1, 8))]
        links = [index for i in range(len(words)) for index in (len(words) - 1 - i, i)]
        source, target = torch.tensor(words + [EOS]), torch.tensor(words[::-1] + [EOS])
        samples.append({"id": number, "source": source, "target": target, "alignment": torch.tensor(links)})
    return as_batch(samples)


def share_of_known_links(model):
    sample = reversal(random.Random(7), 200)
    strongest = model(**sample["net_input"])[1]["attn"][0].flatten(0, 1).argmax(-1)
    columns, words = sample["alignments"].unbind(1)
    return (strongest[words] == columns).float().mean().item()


def train(arch, updates, **weights):
    sizes = {name: 32 for name in SIZES}
    model = build(
        arch,
        encoder_layers=1,
        decoder_layers=1,
        encoder_bidirectional=True,
        dropout=0.0,
        **{**sizes, "init_range": 0.1},
    ).train()
    optimizer, rng = torch.optim.Adam(model.parameters(), 0.01), random.Random(1)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 0.01 if update < 0.7 * updates else 0.003
        loss, sample_size, _ = criterion(**weights)(model, reversal(rng, 32))
        optimizer.zero_grad()
        (loss / sample_size).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("arch, updates, without", [("structattn_rnn", 50, 0.7), ("structattn_rnn_crf", 160, 0.85)])
def test_known_alignments_are_learned(arch, updates, without):
    assert share_of_known_links(train(arch, updates)) < without
    assert share_of_known_links(train(arch, updates, guided_alignment=1.0)) > 0.95
