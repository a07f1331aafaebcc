"""README.md and docs/: Python runs as it stands, commands have the options that are named, links lead somewhere."""

import configparser
import importlib
import json
import os
import re
import sys

import pytest
from documents import PAGES, ROOT, commands, snippets
from helpers_scripts import load_script

pytest.importorskip("fairseq")

from fairseq import options as fairseq_options
from fairseq.dataclass.configs import FairseqConfig

import fairseq_structattn.__main__
from fairseq_structattn.models.rnn_options import RNNOptions
from fairseq_structattn.models.transformer_options import TransformerOptions
from fairseq_structattn.option_list import listing

PACKAGE = ROOT / "fairseq_structattn"
IDS = [page.name for page in PAGES]
# Programs that are neither of this package nor of fairseq.
OTHERS = "atools cat cp cut fast_align grep mkdir paste pip sed sort torchrun".split()
PARSERS = {
    "fairseq-train": fairseq_options.get_training_parser,
    "fairseq-generate": fairseq_options.get_generation_parser,
    "fairseq-interactive": lambda: fairseq_options.get_interactive_generation_parser("translation"),
    "fairseq-validate": fairseq_options.get_validation_parser,
}


@pytest.fixture
def run(run_fairseq):
    """A function that runs a program in a folder, the package's if not told, and returns the last line it printed."""

    def last_line(program, cwd=ROOT):
        return run_fairseq.program(program, cwd=cwd, env={"PYTHONPATH": str(ROOT)}).strip().splitlines()[-1]

    return last_line


def python_of(page):
    return "\n".join(snippets(ROOT / "docs" / page, "python"))


# Python


def test_every_page_with_python_is_run_here():
    tested = {"distributions.md", "extending.md", "inside.md", "training.md"}
    assert {page.name for page in PAGES if snippets(page, "python")} == tested


def test_distributions(run):
    checks = "\nprint(chain.marginals.shape, chain.marginals[:, 40:].any(), tree.sample((10,)).shape)"
    printed = run(python_of("distributions.md") + checks)
    assert printed == "torch.Size([32, 50]) tensor(False) torch.Size([10, 32, 21, 20])"


@pytest.mark.slow
def test_extending(run):
    checks = """
from argparse import Namespace
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
options = Namespace(arch="cautious_rnn")
ARCH_CONFIG_REGISTRY["cautious_rnn"](options)
task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
attention = ARCH_MODEL_REGISTRY["cautious_rnn"].build_model(options, task).decoder.attention
print(attention.distribution.__name__, attention.normalize, [tuple(table.shape) for table in attention.tables.values()])
"""
    assert run(python_of("extending.md") + checks) == "CautiousSigmoid sum [(1,)]"


@pytest.fixture(scope="module")
def trained(run_fairseq, tiny_corpus, tmp_path_factory):
    """A folder with the models and data that the pages name: one update of a chain over words that know their heads."""
    folder = tmp_path_factory.mktemp("documents")
    sizes = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in ("embed-dim", "hidden-size")]
    run_fairseq(
        "train", tiny_corpus.bin, "--user-dir", PACKAGE, "--arch", "structattn_rnn_crf", "--cpu", "--max-update", 1,
        "--source-attention", "projective-tree", "--criterion", "structattn_label_smoothed_cross_entropy",
        *[word for option in (*sizes, "--decoder-out-embed-dim") for word in (option, 8)], "--optimizer", "sgd",
        "--lr", 0.1, "--batch-size", 8, "--no-epoch-checkpoints", "--save-dir", folder / "quickstart" / "checkpoints",
    )  # fmt: skip
    (folder / "tree_transduction").mkdir()
    (folder / "enja").mkdir()
    for link in ("tree_transduction/tree.sgd-1", "enja/crf"):
        (folder / link).symlink_to(folder / "quickstart" / "checkpoints")
    for link in ("quickstart/bin", "tree_transduction/bin", "enja/bin"):
        (folder / link).symlink_to(tiny_corpus.bin)
    return folder


@pytest.mark.slow
def test_looking_inside(run, trained):
    checks = """
steps = len(target)
print(extra["attn"][0].shape == (1, steps, len(source)), posterior.marginals.shape == (1, steps, len(source)),
    posterior.sample((10,)).shape, heads.distribution.marginals.shape, heads.vectors.shape)
"""
    # 16 characters, of which the dictionary knows none, and the end
    printed = run(python_of("inside.md") + checks, trained)
    assert printed.startswith("True True torch.Size([10, 1, ")
    assert printed.endswith(", 17]) torch.Size([1, 17, 16]) torch.Size([1, 17, 8])")


@pytest.mark.slow
def test_translating_from_python(run, trained):
    assert run(python_of("training.md") + "\nprint(type(model.translate('w01 w02')))", trained) == "<class 'str'>"


# Commands


def with_paths(words):
    """The options of a command as they would be given: the plugin where it lies, a number for a variable."""
    named = {"fairseq_structattn": str(PACKAGE), "$rates": "0.1"}
    return [named.get(word, word) for word in words]


def help_of(main, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    return capsys.readouterr().out


def console_commands():
    setup = configparser.ConfigParser()
    setup.read(str(ROOT / "setup.cfg"), encoding="utf-8")
    lines = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    return {name: place.split(":")[0] for name, place in (line.split(" = ") for line in lines)}


def assert_options_are_known(words, text):
    known = set(re.findall(r"--[\w-]+", text))
    assert [word for word in words if word.startswith("--") and word not in known] == [], words


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands(page, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a command"])  # fairseq's parsers look there
    for program, *words in commands(page):
        if program in PARSERS:
            given = fairseq_options.parse_args_and_arch(PARSERS[program](), with_paths(words))
            assert given.user_dir == str(PACKAGE), words
        elif program == "fairseq-preprocess":
            fairseq_options.get_preprocessing_parser().parse_args(words)
        elif program.startswith("structattn-"):
            tool = importlib.import_module(console_commands()[program])
            assert_options_are_known(words, help_of(tool.main, capsys))
        elif program == "bash":
            assert_options_are_known(words[1:], (ROOT / words[0]).read_text(encoding="utf-8"))
        elif program == "python" and words[0] == "-c":
            compile(words[1], page.name, "exec")
        elif program == "python" and words[0] == "-m":
            assert words[1] == "fairseq_structattn"
            fairseq_structattn.__main__.main(words[2:])
        elif program == "python":
            script = load_script(os.path.relpath(words[0], "scripts"))
            assert_options_are_known(words[1:], help_of(script.main, capsys))
        else:
            assert program in OTHERS, program


def test_the_published_score_is_that_of_the_command():
    """README's training has the options of the runs whose score stands below it, but for those that are defaults."""
    runs = sorted((ROOT / "scripts" / "experiments" / "enja" / "results").glob("char.paper.chain-*.json"))
    if not runs:
        pytest.skip("the experiment has not been run")
    (command,) = [words for program, *words in commands(ROOT / "README.md") if program == "fairseq-train"]
    (measured,) = {json.loads(run.read_text(encoding="utf-8"))["options"] for run in runs}
    # two layers are this architecture's default, and no smoothing is the criterion's
    defaults = {"--encoder-layers": "2", "--decoder-layers": "2", "--label-smoothing": "0"}
    for option, value in _pairs(measured.split()):
        if option in command:
            assert value is None or command[command.index(option) + 1] == value, option
        else:
            assert defaults[option] == value, option


def _pairs(words):
    for word, after in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            yield word, None if after.startswith("--") else after


def test_hydra():
    yaml = pytest.importorskip("yaml")
    (snippet,) = snippets(ROOT / "docs" / "training.md", "yaml")
    given = yaml.safe_load(snippet)
    assert set(given) <= set(FairseqConfig.__dataclass_fields__)
    owners = {"model": RNNOptions}
    for group, values in given.items():
        if "_name" not in values:
            owners[group] = FairseqConfig.__dataclass_fields__[group].type
    for group, owner in owners.items():
        assert set(given[group]) - {"_name"} <= set(owner.__dataclass_fields__), group


# What is told


def test_the_version_of_torch_is_one_of_the_tested():
    (version,) = re.findall(r"pip install (torch==[\d.]+) ", (ROOT / "README.md").read_text(encoding="utf-8"))
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert version in re.findall(r"^torch==[\d.]+", tested, re.MULTILINE)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_every_option_is_documented_and_every_documented_one_is_there():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--[a-z][\w-]*", text))
    options = {"--" + name.replace("_", "-") for name in RNNOptions.__dataclass_fields__ if name != "_name"}
    assert options - named == set()
    ours = set(re.findall(r"--[\w-]+", "\n".join(listing())))
    assert (
        named - ours - {"--help", "--sentence-avg", "--attention", "--criterion", "--ddp-backend", "--model-overrides"}
        == set()
    )


def test_every_option_of_the_transformer_is_documented():
    named = set(re.findall(r"--[a-z][\w-]*", (ROOT / "docs" / "transformer.md").read_text(encoding="utf-8")))
    fields = TransformerOptions.__dataclass_fields__
    assert {"--" + name.replace("_", "-") for name in fields if name != "_name"} - named == set()


def anchors(path):
    """GitHub's names of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKED = [*PAGES, *PACKAGE.rglob("*.md"), *(ROOT / "scripts").rglob("*.md")]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        place, _, anchor = "".join(link).partition("#")
        if "://" not in place:
            path = page.parent / place if place else page
            assert path.exists(), link
            assert not anchor or anchor in anchors(path), link
