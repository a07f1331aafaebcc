"""python -m fairseq_structattn: the folder, the version, and every option with its default in an architecture."""

import re

import pytest

pytest.importorskip("fairseq")

from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY

import fairseq_structattn
from fairseq_structattn.__main__ import main
from fairseq_structattn.models.rnn_options import RNNOptions
from fairseq_structattn.models.transformer_options import TransformerOptions
from fairseq_structattn.option_list import architectures, listing


def printed(capsys, *arguments):
    main(list(arguments))
    return capsys.readouterr().out


def sections(lines):
    """Title -> flag -> its default as written, whether it is marked, and its help."""
    found, title = {}, None
    for line in lines:
        option = re.match(r"  ([* ]) (--[\w-]+|DATA) (.*)$", line)
        if option:
            mark, flag, value = option.groups()
            found[title][flag] = [value, mark == "*", ""]
        elif line.startswith("--"):
            title = line
            found[title] = {}
        elif line.startswith(" " * 6):
            found[title][flag][2] = f"{found[title][flag][2]} {line.strip()}".strip()
    return found


@pytest.mark.parametrize("arguments", [[], ["path"]])
def test_folder(capsys, arguments):
    assert printed(capsys, *arguments) == fairseq_structattn.__path__[0] + "\n"


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == fairseq_structattn.__version__ + "\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", fairseq_structattn.__version__)


def test_options_of_an_architecture(capsys):
    found = sections(printed(capsys, "options", "structattn_rnn_crf").splitlines())
    model = found["--arch structattn_rnn_crf"]
    assert [title for title in found if title.startswith("--arch")] == ["--arch structattn_rnn_crf"]
    assert set(model) == {"--" + name.replace("_", "-") for name in RNNOptions.__dataclass_fields__ if name != "_name"}
    assert model["--attention-distribution"][:2] == ["linear-chain", True] and model["--cell"][:2] == ["lstm", False]
    assert model["--encoder-bidirectional"][0] == "(off)" and model["--attention-hidden-size"][0] == "(none)"
    for flag, (_, _, text) in model.items():
        assert text == RNNOptions.__dataclass_fields__[flag[2:].replace("-", "_")].metadata["help"]


def test_presets_are_what_fairseq_gets(capsys):
    """An option is marked where the function of the architecture, as fairseq calls it, changes it."""
    for arch in architectures():
        assert arch in ARCH_CONFIG_REGISTRY
        options = sections(listing(arch))[f"--arch {arch}"]
        marked = {flag for flag, (_, is_marked, _) in options.items() if is_marked}
        # Transformers differ in sizes, which are options of fairseq.
        is_transformer = arch.startswith("structattn_transformer")
        assert bool(marked) == (arch not in MODEL_DATACLASS_REGISTRY and not is_transformer), arch


def test_options_beside_those_of_fairseq(capsys):
    found = sections(printed(capsys, "options", "structattn_transformer_wmt_en_de").splitlines())
    assert set(found["--arch structattn_transformer_wmt_en_de"]) == {
        "--" + name.replace("_", "-") for name in TransformerOptions.__dataclass_fields__ if name != "_name"
    }


def test_all_options(capsys):
    found = sections(printed(capsys, "options").splitlines())
    kinds = {title.split()[0] for title in found}
    assert kinds == {"--arch", "--criterion", "--task", "--optimizer"}
    assert {
        "--arch structattn_rnn",
        "--arch structattn_transformer",
        "--arch structattn_decomposable",
        "--arch structattn_memn2n",
    } <= set(found)
    criterion = found["--criterion structattn_label_smoothed_cross_entropy"]
    assert "--pairwise-l2" in criterion and "--label-smoothing" not in criterion, "fairseq tells its own"
    assert not any(is_marked for options in found.values() for _, is_marked, _ in options.values())


def test_unknown_architectures_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["options", "lstm"])
    assert ended.value.code == 2
    assert "error: lstm: no architecture of this package; choose from structattn_rnn, " in capsys.readouterr().err
