"""Entropy of attention: worked out by hand, where it is zero, and training for and against it."""

import math
from argparse import Namespace

import pytest
import torch
from building import DICTIONARY, batch, build, sentences

from fairseq_structattn.criterions import StructuredLabelSmoothedCrossEntropy
from fairseq_structattn.criterions.attention_entropy import attention_entropy
from fairseq_structattn.distributions import Categorical, LinearChain

ALL = torch.ones(1, 2, dtype=torch.bool)


def test_by_hand():
    # Two positions alike; 1/4 and 3/4.
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3)]]])
    expected = math.log(2) + math.log(4) - 0.75 * math.log(3)
    assert attention_entropy(Categorical(logits), ALL).item() == pytest.approx(expected)
    only_first = torch.tensor([[True, False]])
    assert attention_entropy(Categorical(logits), only_first).item() == pytest.approx(math.log(2))


def test_of_a_chain_by_hand():
    # Neighbours that may not differ: of eight structures only 000 and 111 are left, alike.
    chain = LinearChain(torch.zeros(1, 1, 3), torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]))
    assert attention_entropy(chain, ALL[:, :1]).item() == pytest.approx(math.log(2))


def test_zero_where_attention_is_certain():
    logits = torch.tensor([[[0.0, -math.inf], [-math.inf, 3.0]]])
    assert attention_entropy(Categorical(logits), ALL).item() == 0


@pytest.mark.parametrize(
    "arch", ["structattn_rnn", "structattn_rnn_crf", "structattn_rnn_treedec", "transformer, chains"]
)
def test_training_lowers_or_raises_it(arch):
    sample = batch(sentences([6, 5]), sentences([5, 6], seed=1))
    task = Namespace(target_dictionary=DICTIONARY, cfg=Namespace())
    after = {}
    for weight in (-1.0, 0.0, 1.0):
        model = build(arch, dropout=0.0).train()
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(20):
            loss, sample_size, _ = StructuredLabelSmoothedCrossEntropy(task, False, 0.0, attention_entropy=weight)(
                model, sample
            )
            optimizer.zero_grad()
            (loss / sample_size).backward()
            optimizer.step()
        posterior = model(**sample["net_input"], return_posterior=True)[1]["posterior"]
        after[weight] = attention_entropy(posterior, sample["target"].ne(DICTIONARY.pad())).item()
    assert after[1.0] < 0.9 * after[0.0] and after[0.0] < after[-1.0]
