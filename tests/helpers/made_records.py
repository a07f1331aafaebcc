"""Attention records made up for the tests of what shows them."""

from fairseq_structattn.analysis import attention_records as records

JAPANESE = "誰 が 一 番 に 着 く か 分 か り ま せ ん 。 </s>".split()
ARABIC = "ذهب الولد إلى المدرسة </s>".split()


def record(sentence_id, source, target, weights=None, **others):
    """Weights sum to 1 in each row and are all different."""
    if weights is None:
        total = len(source) * (len(source) + 1) / 2
        weights = [[(1 + (i + t) % len(source)) / total for i in range(len(source))] for t in range(len(target))]
    given = {"rank": 0, "score": -0.5, "forced": False, **others}
    return records.AttentionRecord(sentence_id, source=source, target=target, weights=weights, **given)


def words(text):
    """Tokens with the end of the sentence."""
    return text.split() + ["</s>"]


def source_tree(heads, others=0.0):
    """Marginals in which an arc of the best tree has 1 − `others`; the other heads of a word share the rest."""
    count = len(heads)
    marginals = [
        [others / max(1, count - 1) * (head != word + 1) for word in range(count)] for head in range(count + 1)
    ]
    for word, head in enumerate(heads):
        marginals[head][word] = 1 - others
    return records.SourceTree(heads, marginals)
