"""Vectors of sentences: the published encodings, and what padding must not change."""

import pytest
import torch

from fairseq_structattn.modules.sentence_vectors import SentenceVectors

PAD = 1


@pytest.fixture
def vectors():
    torch.manual_seed(1)
    return SentenceVectors(num_words=9, dim=4, num_tables=3, max_facts=5, padding=PAD).double()


def published(vectors, table, words):
    """Position encoding, term by term."""
    total = torch.zeros(vectors.dim, dtype=torch.float64)
    for j, word in enumerate(words, 1):
        for k in range(1, vectors.dim + 1):
            weight = (1 - j / len(words)) - (k / vectors.dim) * (1 - 2 * j / len(words))
            total[k - 1] += weight * vectors.words[word, table * vectors.dim + k - 1].item()
    return total


def ages(vectors, table):
    return vectors.ages.detach()[:, table * vectors.dim : (table + 1) * vectors.dim]


STORIES = torch.tensor([[[4, 5, 6], [7, PAD, PAD], [5, 8, PAD]], [[6, 4, PAD], [PAD] * 3, [PAD] * 3]])
LENGTHS = torch.tensor([3, 1])


def test_facts_are_words_by_position_and_age(vectors):
    found = vectors.facts(STORIES, LENGTHS)
    assert found.shape == (3, 2, 3, 4)
    for table in range(3):
        for story, facts in ((0, [[4, 5, 6], [7], [5, 8]]), (1, [[6, 4]])):
            for place, words in enumerate(facts):
                expected = published(vectors, table, words) + ages(vectors, table)[len(facts) - 1 - place]
                torch.testing.assert_close(found[table, story, place].detach(), expected)
    assert not found[:, 1, 1:].any()


def test_questions_are_words_of_the_first_table_without_an_age(vectors):
    found = vectors.question(torch.tensor([[4, 5, PAD], [6, 7, 8]]))
    torch.testing.assert_close(found[0].detach(), published(vectors, 0, [4, 5]))
    torch.testing.assert_close(found[1].detach(), published(vectors, 0, [6, 7, 8]))


def test_the_scale_multiplies_words_but_not_ages(vectors):
    scaled = SentenceVectors(9, 4, 3, max_facts=5, padding=PAD, position_scale=2.0).double()
    scaled.load_state_dict(vectors.state_dict())
    question = torch.tensor([[4, 5, PAD]])
    torch.testing.assert_close(scaled.question(question), 2 * vectors.question(question))
    expected = 2 * published(vectors, 1, [6, 4]) + ages(vectors, 1)[0]
    torch.testing.assert_close(scaled.facts(STORIES, LENGTHS)[1, 1, 0].detach(), expected)


def test_padding_changes_nothing_and_is_not_trained(vectors):
    wider = torch.full((2, 5, 6), PAD)
    wider[:, :3, :3] = STORIES
    found = vectors.facts(wider, LENGTHS)
    torch.testing.assert_close(found[:, :, :3], vectors.facts(STORIES, LENGTHS))
    found.pow(2).sum().backward()
    assert not vectors.words.grad[PAD].any() and vectors.words.grad[4].all()


def test_ages_are_skipped_in_training_only():
    torch.manual_seed(1)
    vectors = SentenceVectors(9, 4, 1, max_facts=4, padding=PAD, age_noise=0.999999)
    plain = vectors.eval().facts(STORIES, LENGTHS)
    noisy = vectors.train().facts(STORIES, LENGTHS)
    words = plain[0, 0] - vectors.ages[[2, 1, 0]]
    # Before each fact one age is skipped: 0 becomes 1, 1 becomes 3, and 2 would be 5, which is more than there are.
    torch.testing.assert_close(noisy[0, 0], words + vectors.ages[[3, 3, 1]])
    assert not noisy[0, 1, 1:].any()
