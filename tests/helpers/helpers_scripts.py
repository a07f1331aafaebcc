"""The scripts are no package: tests load them by path."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def load_script(path: str):
    spec = importlib.util.spec_from_file_location(f"scripts_{Path(path).stem}", SCRIPTS / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def run_experiment(name: str, *arguments, **environment):
    """Calls the run.sh of an experiment, and returns the ended process."""
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", **environment}
    command = ["bash", str(SCRIPTS / "experiments" / name / "run.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
