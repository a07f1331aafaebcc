"""Any token that UTF-8 can say, in any file that the scripts write, is read back by a parser of that format."""

import json
import re
import warnings
from html.parser import HTMLParser
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_records import record, records, source_tree

from fairseq_structattn.analysis import attention_figures, attention_page, conllu, figure_fonts, results

# What has broken something once: marks of fairseq, of formulas, of markup, of lines, of nothing at all.
NASTY = [
    "</s>", "<pad>", "$x_1^$", "_", "|", "\\", "%", "a--b", "-->", "]]>", "&amp;", "<b>", "\ufeff", "\u202eab", "א",
    "\x00", "\x07", "\x1b[1m", "\x7f", "\x9f", "\ufffe", "\U0001ffff", "\ud7ff", "猫", "👩\u200d💻", "ﷺ", '"', "`", "#",
]  # fmt: skip
# fairseq parts tokens as str.split does: none has a space of any kind.
TOKEN = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1).filter(lambda token: len(token.split()) == 1)
TOKEN = TOKEN.map(lambda token: token.split()[0]) | st.sampled_from(NASTY)
TOKENS = st.lists(TOKEN, min_size=1, max_size=5)
ANY_TEXT = st.lists(st.text(st.characters(blacklist_categories=("Cs",))) | TOKEN, min_size=1, max_size=5)


def made(tokens):
    count = len(tokens)
    tree = source_tree(list(range(count)))
    segments = [[[0, 1]]] * (count + 1)
    return record(3, [*tokens, "</s>"], [*tokens, "</s>"], reference=tokens, segments=segments, tree=tree)


@given(ANY_TEXT)
@example(NASTY + ["\x85", "\u2028", "\u2029", "\r", "\n", "a b", ""])
def test_records(tmp_path_factory, tokens):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    records.write_records(str(path), [made(tokens)] * 2)
    (one, other) = records.read_records(str(path))
    assert one == other and one.source == [*tokens, "</s>"] and one.reference == tokens
    lines = path.read_bytes().decode("utf-8").splitlines()  # others may read it so
    assert [json.loads(line)["target"] for line in lines] == [one.target] * 2


class Scripts(HTMLParser):
    """What stands in the elements `script`."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.inside = False

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        if self.inside:
            self.texts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.texts[-1] += data


@settings(max_examples=50)
@given(ANY_TEXT)
@example(NASTY + ["</script>", "<!--<script>", "\r\n"])
def test_page(tokens):
    parser = Scripts()
    parser.feed(attention_page.page([made(tokens)]))
    assert len(parser.texts) == 2
    (sentence,) = json.loads(parser.texts[0])["sentences"]
    assert sentence["source"] == sentence["target"] == [*tokens, "</s>"] and sentence["reference"] == tokens


def read_conllu(text):
    """Forms and heads by sentence, after the format's description: lines end at line feeds, columns at tabs."""
    for block in text.split("\n\n")[:-1]:
        rows = [line.split("\t") for line in block.split("\n") if not re.match(r"# (sent_id|text) = ", line)]
        assert all(len(row) == 10 for row in rows)
        yield [row[1] for row in rows], [int(row[6]) for row in rows]


@given(TOKENS)
@example(NASTY)
def test_conllu(tmp_path_factory, tokens):
    path = tmp_path_factory.getbasetemp() / "any.conllu"
    list(conllu.with_conllu([made(tokens)], str(path)))
    assert list(read_conllu(path.read_bytes().decode("utf-8"))) == [(tokens, list(range(len(tokens))))]


@given(st.sampled_from(["a\tb", "a\nb", "a\r", ""]))
def test_conllu_refuses_what_it_cannot_say(token):
    with pytest.raises(conllu.RecordError, match="sentence 3: the token .*CoNLL-U cannot"):
        conllu.sentence(made(["a", token]))


def read_row(line):
    """Cells of a row of a table, after the description of GitHub's Markdown."""
    assert line.startswith("| ") and line.endswith(" |")
    return [re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell.strip()) for cell in _split(line[1:-1])]


def _split(text):
    cells, escaped = [""], False
    for character in text:
        if character == "|" and not escaped:
            cells.append("")
        else:
            cells[-1] += character
        escaped = character == "\\" and not escaped
    return cells


LABEL = TOKEN.filter(lambda token: token.isprintable())


@given(st.lists(LABEL, min_size=1, max_size=5))
@example([token for token in NASTY if token.isprintable()])
def test_markdown_rows(names):
    assert read_row(results.markdown_row(names)) == names
    markdown_it = pytest.importorskip("markdown_it")
    table = "\n".join([results.markdown_row(names), "| " + " | ".join("-" * 3 for _ in names) + " |", ""])
    parsed = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).parse(table)
    cells = ["".join(child.content for child in token.children) for token in parsed if token.type == "inline"]
    assert cells == names


def text_of(svg):
    found = ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in found]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TOKENS)
@example(NASTY[:15])
@example(NASTY[15:])
def test_pictures(tmp_path_factory, tokens):
    rc_context = pytest.importorskip("matplotlib").rc_context

    folder = tmp_path_factory.getbasetemp() / "pictures"
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none"}):
        warnings.simplefilter("ignore")  # of glyphs that no font here has
        figure = attention_figures.draw_figure([made(tokens)])
        for kind in ("svg", "png", "pdf", "eps"):
            attention_figures.save_figure(figure, str(folder / f"any.{kind}"))
    found = text_of(folder / "any.svg")
    if not any(figure_fonts.is_right_to_left(token) for token in tokens):  # which is put into the order of its glyphs
        assert set(map(figure_fonts.displayed, tokens)) <= set(found)
    assert (folder / "any.png").read_bytes().startswith(b"\x89PNG")
    pdf = (folder / "any.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and pdf.rstrip().endswith(b"%%EOF")


@given(TOKEN)
def test_what_is_drawn_can_be_seen_and_is_xml(token):
    drawn = figure_fonts.visible(token)
    assert drawn.strip() and ElementTree.fromstring(f"<a>{escape(drawn)}</a>").text == drawn
    assert drawn == token or "\\" in drawn
