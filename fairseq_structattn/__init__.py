"""Structured attention for fairseq: attention weights are marginals of a distribution over structures.

Give this directory to ``--user-dir`` (``python -m fairseq_structattn`` prints its path), or import it: either way it
registers its models, criterions and tasks with fairseq, once. Where fairseq is not installed, nothing is registered and
``fairseq_structattn.distributions`` and ``fairseq_structattn.modules`` work with torch alone.
"""

import importlib.util
import sys

_NAME = "fairseq_structattn"


def _register() -> None:
    # Of a user directory, fairseq itself imports only `models` and `tasks`.
    from fairseq_structattn import compat, criterions, models, tasks  # noqa: F401

    compat.apply()


def _alias(name: str) -> None:
    """Lets `name` stand for the one real package.

    ``--user-dir`` may be a link or a copy under any name, and fairseq imports it by that name. The package is loaded
    under its own name all the same, and every module of it under both, so that nothing is registered twice.
    """
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, __file__, submodule_search_locations=list(__path__))
        package = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = package
        spec.loader.exec_module(package)
    for module in [key for key in sys.modules if key == _NAME or key.startswith(_NAME + ".")]:
        sys.modules[name + module[len(_NAME) :]] = sys.modules[module]


if __name__ != _NAME:
    _alias(__name__)
elif importlib.util.find_spec("fairseq") is not None:
    _register()
