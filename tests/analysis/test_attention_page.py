"""analysis/attention_page.py: what the page holds; test_attention_page_browser.py tells how it behaves."""

import json
import math
import re

import pytest
from made_records import record, source_tree, words

from fairseq_structattn.analysis import attention_page

HOSTILE = [
    "</script>",
    "<!--",
    "<script>",
    "]]>",
    "<img",
    "onerror=alert(1)>",
    "&lt;",
    "\u2028",
    '"',
    "'",
    "\\",
    "</s>",
]


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL).group(1))


def data(*records):
    return data_of(attention_page.page(list(records)))


def test_tokens_cannot_leave_the_data():
    page = attention_page.page([record(0, HOSTILE, HOSTILE)])
    assert data_of(page)["sentences"][0]["source"] == HOSTILE
    empty = attention_page.page([record(0, ["a"], ["b"])])
    for mark in ("<", ">", "&"):
        assert page.count(mark) == empty.count(mark)


def test_weights_are_thousandths():
    one = record(0, ["a", "b"], ["x"], [[1.99949, 0.0004]], marginals=[[0.7, math.nan]])
    (sentence,) = data(one)["sentences"]
    assert sentence["weights"] == [[1999, 0]] and sentence["marginals"] == [[700, None]]
    assert data(one)["unit"] == 0.001


def test_colours_mean_the_same_in_all_sentences():
    softmax, chain = record(0, ["a"], ["x"], [[1.0]], marginals=[[1.0]]), record(1, ["a"], ["x"], [[2.0]])
    assert data(softmax, chain)["largest"] == {"weights": 2.0, "marginals": 1.0}
    assert data(record(0, ["a"], ["x"], [[0.0]]))["largest"]["weights"] == 1.0


def test_marginals_that_are_the_weights_are_not_repeated():
    (sentence,) = data(record(0, ["a"], ["x"], [[1.0]], marginals=[[1.0]]))["sentences"]
    assert sentence["marginals"] is True
    assert data(record(0, ["a"], ["x"], [[1.0]]))["sentences"][0]["marginals"] is None


def test_pairs_have_two_trees_and_labels():
    tree = source_tree([2, 0])
    (sentence,) = data(record(0, ["a"], words("x y"), target_tree=tree, label="yes", predicted="no"))["sentences"]
    assert sentence["arcs"] is None and sentence["target_arcs"] == [[1, 0, 1000, 1], [-1, 1, 1000, 1]]
    assert (sentence["label"], sentence["predicted"]) == ("yes", "no")


def test_trees_are_the_arcs_that_pictures_show():
    (sentence,) = data(record(0, words("a b"), ["x"], tree=source_tree([2, 0], others=0.2)))["sentences"]
    assert sentence["arcs"] == [[-1, 0, 200, 0], [0, 1, 200, 0], [1, 0, 800, 1], [-1, 1, 800, 1]]


def bleu(one, **options):
    metric = attention_page.bleu_metric("none", effective_order=True)
    return attention_page.sentence_bleu(one, metric, **options)


def test_sentence_bleu():
    source, right = ["a"], "the cat sat on the mat".split()
    assert bleu(record(0, source, [*right, "</s>"], reference=right)) == 100
    # precisions 5/6, 3/5, 1/4 and, smoothed by 1/2 (the first zero count), (1/2)/3
    wrong = "the cat sat at the mat".split()
    expected = 100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25
    assert bleu(record(0, source, [*wrong, "</s>"], reference=right)) == pytest.approx(expected, abs=0.005)


def test_no_bleu_without_reference_nor_for_the_reference():
    assert bleu(record(0, ["a"], words("b"))) is None
    assert bleu(record(0, ["a"], words("b"), reference=["b"], forced=True)) is None


def test_bleu_of_words_from_pieces():
    pytest.importorskip("fairseq")
    one = record(0, ["a"], "▁th e ▁cat ▁s at ▁on </s>".split(), reference="▁the ▁c at ▁sa t ▁on".split())
    assert bleu(one) < 100 == bleu(one, remove_bpe="sentencepiece")


def test_hundreds_of_sentences_stay_small(tmp_path):
    rows = [[0.001 * ((7 * r + 13 * c) % 300) for c in range(30)] for r in range(30)]
    marginals = [[value / 2 for value in row] for row in rows]
    records = [record(i, ["word"] * 30, ["word"] * 30, rows, marginals=marginals) for i in range(500)]
    attention_page.write_page(records, str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size < 4e6
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_page_stands_on_its_own():
    page = attention_page.page([record(0, ["a"], ["x"])])
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[^\"' ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address to fetch
    assert not re.findall(r"(?:src|href)=|@import|url\(", page)
