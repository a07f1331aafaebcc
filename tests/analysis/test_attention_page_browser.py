"""The page of analysis/attention_page.py in a real browser: search, order, pointer, keyboard, trees, safety."""

import json
import shutil

import pytest
from made_records import ARABIC, JAPANESE, record, source_tree, words

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.select import Select  # noqa: E402

from fairseq_structattn.analysis import attention_page  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's packages chromium and chromium-driver"),
]
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
CELL = 20
HOSTILE = ["</script>", "<img", "src=x", 'onerror="document.title=1">', "<b>bold</b>", '"', "'", "&lt;", "</s>"]


def sentences():
    """Five, of which sorting by number, length, BLEU and score gives five different orders."""
    return [
        record(0, JAPANESE, words("who comes first"), [[0.1] * 15] * 4, score=-0.4, reference=["who", "came", "first"]),
        record(1, words("eins zwei"), words("one two"), CHAIN, score=-0.1, marginals=MARGINALS, segments=SEGMENTS),
        record(2, ARABIC, words("the boy went"), score=-0.3, reference="the boy went to school".split()),
        record(3, words("the old boy went"), words("he went"), score=-0.5, tree=TREE, trees=TREES, reference=["x"]),
        record(9, HOSTILE, HOSTILE, score=-0.2, reference=HOSTILE[:-1]),
    ]


CHAIN = [[1.5, 0.4, 0.1], [0.2, 1.3, 0.5], [0.0, 0.0, 2.0]]
MARGINALS = [[0.9, 0.24, 0.06], [0.1, 0.65, 0.25], [0.0, 0.0, 0.8]]
SEGMENTS = [[(0, 1)], [(1, 3)], []]
TREE = source_tree([3, 3, 4, 0], others=0.3)
TREES = [[0, 1, 2, 3], [2, 3, 4, 0], [0, 0, 0, 0]]


PAIR = record(
    7,
    "the old boy went <s>".split(),
    "he went home <s>".split(),
    tree=TREE,
    target_tree=source_tree([2, 0, 2], others=0.4),
    label="neutral",
    predicted="entailment",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in [*ARGUMENTS.split(), f"--user-data-dir={folder / 'profile'}", "--window-size=1200,900"]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    attention_page.write_page(sentences(), str(folder / "page.html"))
    attention_page.write_page([PAIR], str(folder / "pair.html"))
    driver.address = (folder / "page.html").as_uri()
    yield driver
    driver.quit()


@pytest.fixture
def page(browser):
    """A function that opens the page afresh, at a sentence."""

    def opened(sentence=""):
        browser.get("about:blank")
        browser.get(f"{browser.address}#{sentence}")
        return browser

    return opened


def by_id(page, name):
    return page.find_element(By.ID, name)


def listed(page):
    """The numbers of the sentences in the list."""
    return [int(option.get_attribute("id").split("-")[1]) for option in page.find_elements(By.CSS_SELECTOR, "#list li")]


def name(page):
    return by_id(page, "name").text


def point_at(page, row, column):
    canvas = by_id(page, "canvas")
    right = (column + 0.5) * CELL - canvas.size["width"] / 2
    down = (row + 0.5) * CELL - canvas.size["height"] / 2
    ActionChains(page).move_to_element_with_offset(canvas, right, down).perform()


def tip(page):
    return by_id(page, "tip").text.replace("\u2068", "").replace("\u2069", "")


def press(page, *keys):
    ActionChains(page).send_keys(*keys).perform()


def test_search_finds_words_in_either_side(page):
    page = page()
    assert listed(page) == [0, 1, 2, 3, 9] and by_id(page, "count").text == "5 of 5 sentences"
    by_id(page, "search").send_keys("BOY")
    assert listed(page) == [2, 3] and name(page) == "Sentence 2"
    Select(by_id(page, "side")).select_by_value("source")
    assert listed(page) == [3] and by_id(page, "count").text == "1 of 5 sentences"
    Select(by_id(page, "side")).select_by_value("target")
    assert listed(page) == [2]


@pytest.mark.parametrize(
    "wanted, found", [("分かり", [0]), ("か 分", [0]), ("المدرسة", [2]), ("<b>", [9]), ("none", [])]
)
def test_search_in_any_script(page, wanted, found):
    page = page()
    by_id(page, "search").send_keys(wanted)
    assert listed(page) == found


@pytest.mark.parametrize(
    "order, ascending, descending",
    [
        ("id", [0, 1, 2, 3, 9], [9, 3, 2, 1, 0]),
        ("length", [1, 2, 3, 9, 0], [0, 9, 2, 3, 1]),
        ("bleu", [3, 0, 2, 9, 1], [9, 2, 0, 3, 1]),  # without reference: last in either direction
        ("score", [3, 0, 2, 9, 1], [1, 9, 2, 0, 3]),
    ],
)
def test_order(page, order, ascending, descending):
    page = page()
    Select(by_id(page, "order")).select_by_value(order)
    assert listed(page) == ascending
    by_id(page, "descending").click()
    assert listed(page) == descending and by_id(page, "descending").get_attribute("aria-pressed") == "true"


def test_facts_of_a_sentence(page):
    assert "BLEU 100.0" in by_id(page("9"), "facts").text
    page = page("1")
    assert by_id(page, "facts").text == "source 3 tokens, target 3 tokens · no BLEU · model score -0.1000"
    assert by_id(page, "texts").text.split("\n")[-2:] == ["reference", "none"]
    assert page.execute_script("return [-0.00001, -0.0001].map((score) => number(score, 4))") == ["0.0000", "-0.0001"]


def test_pointing_at_a_cell_tells_tokens_and_values(page):
    page = page("1")
    point_at(page, 0, 0)
    assert tip(page) == "“one” ← “eins”\nweight 1.500\nmarginal 0.900\nin the most likely selection"
    point_at(page, 1, 0)
    assert tip(page) == "“two” ← “eins”\nweight 0.200\nmarginal 0.100"
    marked = [token.text for token in page.find_elements(By.CSS_SELECTOR, "#matrix .active")]
    assert sorted(marked) == ["eins", "two"]


def opacity(page, row, column):
    """Of the colour in a cell, 0 to 1, beside the lines between cells and round segments."""
    pixel = "const r = canvas.width / parseFloat(canvas.style.width), at = (x) => Math.round((x + 0.25) * 20 * r);"
    pixel += "return canvas.getContext('2d').getImageData(at(arguments[1]), at(arguments[0]), 1, 1).data[3] / 255"
    return page.execute_script("const canvas = document.getElementById('canvas');" + pixel, row, column)


def test_colours_are_the_values(page):
    page = page("1")
    for row, weights in enumerate(CHAIN):
        assert [opacity(page, row, column) for column in range(3)] == pytest.approx([w / 2 for w in weights], abs=0.01)
    Select(by_id(page, "shown")).select_by_value("marginals")
    assert [opacity(page, 1, column) for column in range(3)] == pytest.approx(
        [0.1 / 0.9, 0.65 / 0.9, 0.25 / 0.9], abs=0.01
    )
    assert by_id(page, "largest").text == "0.90"
    by_id(page, "list").send_keys(Keys.ARROW_DOWN)  # to a sentence without marginals
    assert by_id(page, "shown").get_attribute("value") == "weights" and not by_id(page, "shown").is_enabled()


def test_a_sentence_can_have_its_own_scale(page):
    page = page("0")
    assert opacity(page, 0, 0) == pytest.approx(0.1 / 2, abs=0.01)
    by_id(page, "own").click()
    assert opacity(page, 0, 0) == 1 and by_id(page, "largest").text == "0.10"


def test_keys_go_from_sentence_to_sentence(page):
    page = page()
    by_id(page, "list").send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert name(page) == "Sentence 2" and page.current_url.endswith("#2")
    assert by_id(page, "list").get_attribute("aria-activedescendant") == "option-2"
    assert by_id(page, "option-2").get_attribute("aria-selected") == "true"
    press(page, Keys.ARROW_UP)
    assert name(page) == "Sentence 1"
    press(page, Keys.END, Keys.ARROW_DOWN)
    assert name(page) == "Sentence 9"
    press(page, Keys.HOME, Keys.ARROW_UP)
    assert name(page) == "Sentence 0"
    by_id(page, "search").send_keys("w", Keys.ARROW_DOWN)
    assert listed(page) == [0, 1, 2, 3] and name(page) == "Sentence 1"


def test_keys_go_from_cell_to_cell(page):
    page = page("1")
    by_id(page, "view").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert tip(page).startswith("“two” ← “zwei”\nweight 1.300")
    press(page, Keys.END, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert tip(page).startswith("“</s>” ← “</s>”\nweight 2.000")
    press(page, Keys.ESCAPE)
    assert not by_id(page, "tip").is_displayed()


def test_focus_is_seen_and_reaches_all_controls(page):
    page = page("1")
    reached = []
    for _ in range(8):
        press(page, Keys.TAB)
        focused = page.switch_to.active_element
        reached.append(focused.get_attribute("id"))
        assert focused.value_of_css_property("outline-style") == "solid"
    assert reached == ["search", "side", "order", "descending", "list", "shown", "own", "view"]


def test_a_pair_is_called_so_and_found_by_what_it_is_taken_for(page):
    page = page()
    page.get(page.address.replace("page.html", "pair.html"))
    assert name(page) == "Pair 7" and "neutral, taken for entailment" in by_id(page, "facts").text
    assert by_id(page, "texts").text.split("\n") == ["premise", "the old boy went", "hypothesis", "he went home"]
    assert "7 · neutral, taken for entailment" in by_id(page, "list").text
    by_id(page, "search").send_keys("taken for entail")
    assert listed(page) == [7]


def test_the_tree_of_a_hypothesis_stands_beside_its_rows(page):
    page = page()
    page.get(page.address.replace("page.html", "pair.html"))
    canvas, (tree,) = by_id(page, "canvas"), page.find_elements(By.CSS_SELECTOR, "svg.tree.beside")
    assert tree.rect["x"] == pytest.approx(canvas.rect["x"] + canvas.rect["width"], abs=1)
    assert tree.rect["y"] == pytest.approx(canvas.rect["y"], abs=1) and tree.rect["height"] == 3 * CELL + CELL
    best = tree.find_elements(By.CSS_SELECTOR, "g.best")
    ActionChains(page).move_to_element(best[0].find_element(By.CSS_SELECTOR, ".head")).perform()
    assert tip(page) == "“went” → “he”, probability 0.600, in the most likely tree"
    rows = [arc.find_element(By.CSS_SELECTOR, ".head").rect["y"] - canvas.rect["y"] for arc in best]
    assert [int(row // CELL) for row in rows] == [0, 1, 2]


def test_arcs_tell_heads_and_probabilities(page):
    page = page("3")
    trees = page.find_elements(By.CSS_SELECTOR, "svg.tree")
    assert len(trees) == 2
    source_arcs = trees[1].find_elements(By.CSS_SELECTOR, "g.best")
    ActionChains(page).move_to_element(source_arcs[3].find_element(By.CSS_SELECTOR, ".head")).perform()
    assert tip(page) == "root → “went”, probability 0.700, in the most likely tree"
    assert float(source_arcs[3].get_attribute("opacity")) == pytest.approx(0.7)
    assert "“old” → “the”" not in trees[1].get_attribute("aria-label")
    assert "boy" in trees[1].get_attribute("aria-label")


def test_the_tree_of_the_target_token_follows_the_cell(page):
    page = page("3")

    def roots():
        return len(
            [arc for arc in page.find_elements(By.CSS_SELECTOR, "#row-tree .arc") if "C" not in arc.get_attribute("d")]
        )

    assert "he" in by_id(page, "row-tree-name").text and roots() == 1
    point_at(page, 2, 0)
    assert "</s>" in by_id(page, "row-tree-name").text and roots() == 4


def test_right_to_left_script_is_set_from_the_right(page):
    page = page("2")
    source, target = page.find_elements(By.CSS_SELECTOR, "#texts dd")[:2]
    assert [text.value_of_css_property("direction") for text in (source, target)] == ["rtl", "ltr"]
    columns = [token.location["x"] for token in page.find_elements(By.CSS_SELECTOR, ".sources span")]
    assert columns == sorted(columns)  # columns stay in the order in which they are read


def test_tokens_are_shown_and_never_run(page):
    page = page("9")
    shown = [token.get_attribute("textContent") for token in page.find_elements(By.CSS_SELECTOR, ".sources span")]
    assert shown == HOSTILE
    assert page.title == "Attention"
    assert not page.find_elements(By.CSS_SELECTOR, "img, b")


def test_long_sentences_scroll_within_their_frame(page, tmp_path):
    page = page()
    long = record(0, words("w " * 149), words("v " * 99))
    attention_page.write_page([long], str(tmp_path / "long.html"))
    page.get((tmp_path / "long.html").as_uri())
    by_id(page, "view").send_keys(Keys.END, *[Keys.ARROW_DOWN] * 99)
    assert tip(page).startswith("“</s>” ← “</s>”")
    frame, cursor = by_id(page, "view").rect, by_id(page, "cursor").rect
    assert frame["x"] < cursor["x"] < frame["x"] + frame["width"] < 1200
    assert frame["y"] < cursor["y"] < frame["y"] + frame["height"]


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out_of_the_window(page, width):
    page = page("0")
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": False}
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def luminance(colour):
    """Relative luminance as WCAG 2 defines it, of "rgb(…)" or "rgba(…)"."""
    channels = [int(part) / 255 for part in colour.split("(")[1].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_either_scheme(page, scheme):
    page = page("1")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    ground = luminance(page.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))
    assert (ground > 0.5) == (scheme == "light")
    for selector in ("body", ".quiet", "#texts dt", ".targets"):
        text = luminance(page.find_element(By.CSS_SELECTOR, selector).value_of_css_property("color"))
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) > 4.5, selector
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_fetched_and_nothing_is_complained_about(page):
    page = page("9")
    page.get_log("performance"), page.get_log("browser")
    page.get("about:blank")
    page.get(page.address)
    for place in range(5):
        by_id(page, "list").send_keys(Keys.ARROW_DOWN)
        point_at(page, place % 2, 1)
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    requests = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert {address.split("#")[0] for address in requests} - {"about:blank"} == {page.address}
    assert page.get_log("browser") == []
