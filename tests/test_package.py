"""The package as a whole: what may import what, and that the distributions need torch alone."""

import ast
import configparser
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fairseq_structattn"
# Each may import itself and those before it.
LAYERS = ["distributions", "modules", "models"]
# These also what is below models; criterions look at the data sets of tasks.
ABOVE = ["tasks", "criterions"]
# These stand by themselves.
APART = ["optimizers"]
# Tools for models: they may import everything, and nothing here imports them.
TOOLS = "analysis"


def imported(path):
    """Names of what the file imports, relative ones made absolute."""
    folder = ("fairseq_structattn", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(folder[: len(folder) + 1 - node.level]) + "." if node.level else ""
            yield from (f"{base}{node.module or ''}.{alias.name}".replace("..", ".") for alias in node.names)


def files(folder):
    return sorted((PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("layer", [*LAYERS, *ABOVE, *APART, TOOLS])
def test_nothing_points_back(layer):
    if layer == TOOLS:
        allowed = [*LAYERS, *ABOVE, "compat", TOOLS]
    elif layer in APART:
        allowed = [layer]
    elif layer in ABOVE:
        allowed = LAYERS[:2] + ABOVE[: ABOVE.index(layer) + 1]
    else:
        allowed = LAYERS[: LAYERS.index(layer) + 1]
    for path in files(layer):
        for name in imported(path):
            if name.startswith("fairseq_structattn."):
                assert name.split(".")[1] in allowed, f"{path} imports {name}"


def module_of(name, modules):
    """The module that `name` is, or is in."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def test_no_module_imports_itself_by_way_of_others():
    """Imports within functions count, too. The package itself, which registers everything, is what all are in."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).replace(".__init__", ""): path
        for path in PACKAGE.rglob("*.py")
    }
    imports = {name: {module_of(other, modules) for other in imported(path)} for name, path in modules.items()}
    waiting = {name: found - {"", "fairseq_structattn", name} for name, found in imports.items()}
    assert len(waiting) > 80
    while True:
        free = {name for name, found in waiting.items() if not found & waiting.keys()}
        if not free:
            break
        waiting = {name: found for name, found in waiting.items() if name not in free}
    assert not waiting, f"in a cycle, or waiting for one: {waiting}"


def run_without(missing, program, *arguments):
    """What `program` prints where the modules `missing` are not installed."""
    hidden = (
        "import importlib.util, sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {missing}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "find_spec = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name in {missing} else find_spec(name, *rest)\n"
    )
    call = [sys.executable, "-c", hidden + program, *arguments]
    return subprocess.run(call, cwd=str(PACKAGE.parent), stdout=subprocess.PIPE, text=True, check=True).stdout


def test_tools_are_imported_without_what_only_some_need():
    """Pictures, scores and fairseq itself are for those who ask for them."""
    tools = [f"fairseq_structattn.analysis.{path.stem}" for path in files(TOOLS) if path.stem != "__init__"]
    program = "import importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    run_without(("matplotlib", "sacrebleu", "fairseq", "arabic_reshaper", "bidi"), program, *tools)


def test_nobody_edits_the_search_path():
    """Scripts import the package, which is installed, and what lies beside them, which Python finds by itself."""
    scripts = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "scripts").rglob("*.py")]
    assert len(scripts) > 120
    assert [path for path in scripts if "sys.path" in path.read_text(encoding="utf-8")] == []


def test_console_commands_are_the_tools():
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg", encoding="utf-8")
    commands = dict(line.split(" = ") for line in setup["options.entry_points"]["console_scripts"].split("\n") if line)
    assert len(commands) == 10
    for name, place in commands.items():
        module, function = place.split(":")
        assert module.startswith("fairseq_structattn.analysis.") and name.startswith("structattn-")
        assert f"    {name} " in importlib.import_module(module).__doc__, "its docstring shows it"
        assert callable(getattr(importlib.import_module(module), function))


def test_data_files_are_in_the_wheel():
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg", encoding="utf-8")
    packed = {}
    for package, patterns in setup["options.package_data"].items():
        packed[PACKAGE.parent.joinpath(*package.split("."))] = patterns.split()
    made = (".py", ".pyc", ".md", ".nbi", ".nbc")
    data = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in made]
    assert data
    for path in data:
        assert any(path.match(pattern) for pattern in packed.get(path.parent, ())), path


@pytest.mark.parametrize(
    "folder", ("binary_tree", "kernels", "linear_chain", "projective_tree", "semi_markov", "spanning_tree")
)
def test_folders_of_distributions_are_apart(folder):
    """Kernels know no model, models do not know each other, and their classes none of their implementations."""
    assert files(f"distributions/{folder}")
    folders = {path.name for path in (PACKAGE / "distributions").iterdir() if path.is_dir()}
    for path in files(f"distributions/{folder}"):
        for name in imported(path):
            above, _, inside = name.partition("fairseq_structattn.distributions.")
            part, _, module = inside.partition(".")
            if not above and part in folders - {folder, "kernels"} or folder == "kernels" and inside and part != folder:
                raise AssertionError(f"{path} imports {name}")
            if path.name in ("chain.py", "segmentation.py", "tree.py") and part == folder:
                assert module.split(".")[0] in ("potentials", "parts", "spans"), f"{path} imports {name}"


@pytest.mark.parametrize("layer", LAYERS[:2])
def test_distributions_and_modules_do_not_need_fairseq(layer):
    assert files(layer)
    for path in files(layer):
        assert not [name for name in imported(path) if name.split(".")[0] == "fairseq"], path


def test_distributions_work_where_fairseq_is_not_installed():
    program = (
        "import torch\n"
        "from fairseq_structattn.distributions import LinearChain\n"
        "print(LinearChain(torch.zeros(3), torch.zeros(2, 2)).marginals.tolist())\n"
    )
    assert run_without(("fairseq", "omegaconf", "hydra", "numba"), program).strip() == "[0.5, 0.5, 0.5]"
