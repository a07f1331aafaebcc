"""The package as a whole: what may import what, and that the distributions need torch alone."""

import ast
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


@pytest.mark.parametrize("layer", [*LAYERS, *ABOVE, *APART])
def test_nothing_points_back(layer):
    if layer in APART:
        allowed = [layer]
    elif layer in ABOVE:
        allowed = LAYERS[:2] + ABOVE[: ABOVE.index(layer) + 1]
    else:
        allowed = LAYERS[: LAYERS.index(layer) + 1]
    for path in files(layer):
        for name in imported(path):
            if name.startswith("fairseq_structattn."):
                assert name.split(".")[1] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("layer", LAYERS[:2])
def test_distributions_and_modules_do_not_need_fairseq(layer):
    assert files(layer)
    for path in files(layer):
        assert not [name for name in imported(path) if name.split(".")[0] == "fairseq"], path


def test_distributions_work_where_fairseq_is_not_installed():
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('fairseq', 'omegaconf', 'hydra', 'numba'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import importlib.util\n"
        "find_spec = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'fairseq' else find_spec(name, *rest)\n"
        "import torch\n"
        "from fairseq_structattn.distributions import LinearChain\n"
        "print(LinearChain(torch.zeros(3), torch.zeros(2, 2)).marginals.tolist())\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=str(PACKAGE.parent), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert output.strip() == "[0.5, 0.5, 0.5]"
