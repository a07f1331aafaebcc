"""The example projects as fairseq sees them: modules in a folder that is given to ``--user-dir``."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "user_dir_examples"
INSTALLED = {"PYTHONPATH": str(ROOT)}


def load_example(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)
