"""Options of `fairseq-generate` on our models, beside stock `lstm`: each does what it says."""

import itertools
from argparse import Namespace
from collections import Counter

import pytest
import torch
from building import STOCK, batch, build, dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.token_generation_constraints import pack_constraints

WORDS = dictionary(3)
END, UNKNOWN = WORDS.eos(), WORDS.unk()
TASK = TranslationTask(TranslationConfig(), WORDS, WORDS)
MODELS = ["structattn_rnn_crf", "structattn_rnn_bahdanau", "structattn_rnn_tree", "transformer, all heads", "lstm"]
SOURCE = [torch.tensor([4, 5, 6, 4, END]), torch.tensor([6, 6, END]), torch.tensor([5, END])]
# Everything that can be said in two words; whatever is no padding is a word.
SPOKEN = [[*words, END] for n in (1, 2) for words in itertools.product([0, UNKNOWN, 4, 5, 6], repeat=n)]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    if request.param == "lstm":
        torch.manual_seed(1)
        return ARCH_MODEL_REGISTRY["lstm"].build_model(STOCK, TASK).eval()
    return build(request.param, task=TASK)


class Unigrams(torch.nn.Module):
    """A language model that knows how frequent words are."""

    log_probs = torch.tensor([0.1, 0.0, 0.2, 0.05, 0.4, 0.05, 0.2]).log().clamp(min=-20)

    def forward(self, tokens):
        return self.log_probs.expand(*tokens.shape, -1)

    def get_normalized_probs(self, output, log_probs, sample=None):
        return output


def search(model, source=SOURCE, prefix_tokens=None, phrases=None, lm_model=None, lm_weight=0.0, seed=0, **options):
    """Hypotheses of each sentence, as `fairseq-generate` and `fairseq-interactive` get them."""
    torch.manual_seed(seed)
    extra = {} if lm_model is None else {"lm_model": lm_model, "lm_weight": lm_weight}
    options = {"beam": 6, "max_len_b": 2, **options}
    generator = TASK.build_generator([model], Namespace(**options), extra_gen_cls_kwargs=extra)
    sample = {**batch(source), "id": torch.arange(len(source)) + 40}
    constraints = None if phrases is None else pack_constraints(phrases)
    return TASK.inference_step(generator, [model], sample, prefix_tokens=prefix_tokens, constraints=constraints)


def words_of(hypothesis):
    return hypothesis["tokens"].tolist()[:-1]


@torch.no_grad()
def scores_of_all(model, source, temperature=1.0, unkpen=0.0, lm_weight=0.0, lenpen=1.0, unnormalized=False):
    """What the options say that each of SPOKEN scores."""
    sample = batch([source] * len(SPOKEN), [torch.tensor(words) for words in SPOKEN])
    scores = (model(**sample["net_input"])[0] / temperature).log_softmax(-1)
    scores = scores + lm_weight * Unigrams.log_probs
    scores[..., UNKNOWN] -= unkpen
    target = sample["target"]
    scores = scores.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(target == WORDS.pad(), 0).sum(1)
    lengths = torch.tensor([len(words) for words in SPOKEN])
    return scores if unnormalized else scores / lengths**lenpen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lenpen": 2.5},
        {"unnormalized": True},
        {"unkpen": 3.0},
        {"unkpen": -3.0},
        {"temperature": 0.4},
        {"temperature": 3.0},
        {"lm_weight": 0.7},
        {"lm_weight": 0.3, "lenpen": 0.5, "unkpen": -1.0, "temperature": 0.8},
    ],
    ids=str,
)
def test_scores_are_what_the_options_say(model, options):
    lm = Unigrams() if "lm_weight" in options else None
    for length in (1, 2):
        for source, hypotheses in zip(SOURCE, search(model, lm_model=lm, max_len_b=length, **options)):
            expected = scores_of_all(model, source, **options)
            places = [SPOKEN.index(hypothesis["tokens"].tolist()) for hypothesis in hypotheses]
            scores = torch.stack([hypothesis["score"] for hypothesis in hypotheses])
            torch.testing.assert_close(scores, expected[places], atol=1e-5, rtol=0)
            assert torch.equal(scores, scores.sort(descending=True)[0])
            # In the beam is room for all sentences of one word.
            assert length > 1 or sorted(places) == [0, 1, 2, 3, 4]


def test_the_least_and_the_most_words(model):
    assert all(2 <= len(words_of(best)) <= 4 for best, *_ in search(model, min_len=2, max_len_b=4))
    for source, (best, *_) in zip(SOURCE, search(model, match_source_len=True)):
        assert len(words_of(best)) == len(source) - 1


def repeats(hypotheses, size):
    """Whether a translation has an n-gram twice."""
    grams = ([tuple(words[k : k + size]) for k in range(len(words) - size + 1)] for words in map(words_of, hypotheses))
    return any(len(set(each)) < len(each) for each in grams)


@pytest.mark.parametrize("size", [1, 2])
def test_no_ngram_repeats(model, size):
    assert any(repeats(hypotheses, size) for hypotheses in search(model, max_len_b=12))
    assert not any(repeats(hypotheses, size) for hypotheses in search(model, max_len_b=12, no_repeat_ngram_size=size))


@pytest.mark.parametrize("options", [{}, {"sampling": True}, {"no_repeat_ngram_size": 1}, {"diverse_beam_groups": 2}])
def test_prefixes_are_kept(model, options):
    # The second sentence ends within its prefix; the padding of the third leaves its second word open.
    prefix = torch.tensor([[5, 5, 3], [4, END, WORDS.pad()], [6, WORDS.pad(), WORDS.pad()]])
    found = search(model, max_len_b=6, prefix_tokens=prefix, **options)
    for (best, *_), kept in zip(found, ([5, 5, 3], [4, END], [6])):
        assert best["tokens"][: len(kept)].tolist() == kept
    assert len(found[1][0]["tokens"]) == 2


@pytest.mark.parametrize("kind", ["ordered", "unordered"])
def test_phrases_are_translated_to(model, kind):
    phrases = [[torch.tensor([6, 5]), torch.tensor([4])], [torch.tensor([3])], []]
    for wanted, (best, *_) in zip(phrases, search(model, beam=3, max_len_b=6, phrases=phrases, constraints=kind)):
        words = words_of(best)
        places = [[k for k in range(6) if words[k : k + len(phrase)] == phrase.tolist()] for phrase in wanted]
        assert all(places) and (kind == "unordered" or places == sorted(places))


@pytest.mark.parametrize("options", [{"sampling_topk": 1}, {"sampling_topp": 1e-6}, {"temperature": 1e-4}], ids=str)
def test_samples_of_the_best_words_are_greedy(model, options):
    greedy = [words_of(best) for best, *_ in search(model, beam=1, max_len_b=4)]
    assert [words_of(best) for best, *_ in search(model, beam=2, max_len_b=4, sampling=True, **options)] == greedy


@pytest.mark.parametrize(
    "options, words", [({}, 5), ({"sampling_topk": 2}, 2), ({"sampling_topp": 0.5}, None)], ids=str
)
def test_samples_are_as_frequent_as_probable(model, options, words):
    draws = 2000
    samples = search(model, SOURCE[2:] * draws, beam=1, sampling=True, **options)
    drawn = Counter(best["tokens"][0].item() for best, *_ in samples)
    sample = batch(SOURCE[2:], [torch.tensor([END])])
    with torch.no_grad():
        scores = model(**sample["net_input"])[0][0, 0].log_softmax(-1)
    # The share of --sampling-topp is one of all words, allowed or not.
    scores[[END, WORDS.pad()]] = -float("inf")
    probable, ranking = scores.exp().sort(descending=True)
    if words is None:
        words = int((probable.cumsum(0) < options["sampling_topp"]).sum()) + 1
    expected = probable[:words] / probable[:words].sum()
    frequent = torch.tensor([drawn[word] / draws for word in ranking[:words].tolist()])
    torch.testing.assert_close(frequent, expected, atol=0.05, rtol=0)
    assert sum(drawn[word] for word in ranking[:words].tolist()) == draws


def test_beams_that_are_to_differ(model):
    groups = {"diverse_beam_groups": 2, "diverse_beam_strength": 100.0}
    greedy = search(model, beam=1, max_len_b=1)
    for (best,), pair in zip(greedy, search(model, beam=2, max_len_b=1, **groups)):
        assert words_of(best) in map(words_of, pair) and words_of(pair[0]) != words_of(pair[1])
    plain, penalised = search(model, beam=3, max_len_b=1), search(model, beam=3, max_len_b=1, diversity_rate=0.5)
    for hypotheses, others in zip(plain, penalised):
        # What follows the first word, the end, costs the rate, which like all else is divided by the length.
        scores = [torch.stack([hypothesis["score"] for hypothesis in each]) for each in (hypotheses, others)]
        torch.testing.assert_close(scores[1], scores[0] - 0.5 / 2, atol=1e-5, rtol=0)


@pytest.mark.parametrize("named, differs", [(None, True), (["RNNEncoder"], True), (["RNNDecoder"], True), ([], False)])
@pytest.mark.parametrize("retained", [True, False])
def test_dropout_is_retained_where_it_is_asked_for(named, differs, retained):
    model = build("structattn_rnn_crf", task=TASK, dropout=0.5, encoder_layers=2)
    options = Namespace(retain_dropout=retained, retain_dropout_modules=named)
    model.prepare_for_inference_(Namespace(generation=options))
    first, second = (search(model, seed=seed)[0][0]["score"] for seed in (0, 1))
    assert (first != second) == (differs and retained)
