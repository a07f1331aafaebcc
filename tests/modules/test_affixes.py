"""How words are written: the features of a word, and their embeddings."""

import torch

from fairseq_structattn.modules.affixes import AffixEmbedding, features


def test_features_of_a_word():
    assert list(features("Runs")) == ["2<ru", "3<run", "1>s", "2>ns", "3>uns", "4>runs", "=Xxx"]
    assert list(features("a")) == ["2<a", "3<a", "1>a", "2>a", "3>a", "4>a", "=x"]
    assert [list(features(word))[-1] for word in ("1,234.50", "U.S.", "McDonald")] == ["=d,dd.dd", "=X.X.", "=XxXxx"]


def test_embeddings_are_sums_and_padding_is_nothing():
    module = AffixEmbedding(["<pad>", "running", "jogging", "x"], 3, padding_idx=0)
    embedded = module(torch.tensor([[1, 2], [3, 0]]))
    assert embedded.shape == (2, 2, 3) and not embedded[1, 1].any()
    shared = set(module.features[1].tolist()) & set(module.features[2].tolist())
    assert len(shared) >= 4  # g, ng, ing and the shape
    torch.testing.assert_close(embedded[1, 0], module.table.weight[module.features[3].long()].sum(0))
    assert list(module.state_dict()) == ["table.weight"]
