"""The example projects as fairseq sees them: modules in a folder that is given to ``--user-dir``."""

import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "user_dir_examples"
INSTALLED = {"PYTHONPATH": str(ROOT)}


def load_example(name):
    return importlib.import_module(name)
