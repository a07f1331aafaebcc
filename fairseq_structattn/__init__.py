"""Structured attention for fairseq: attention weights are marginals of a distribution over structures.

Give this directory to ``--user-dir`` (``python -m fairseq_structattn`` prints its path), or import it: either way it
registers its models, criterions, optimizers and tasks with fairseq, once, as soon as fairseq is imported. Until then,
and where it is not installed, ``fairseq_structattn.distributions`` and ``fairseq_structattn.modules`` work with torch
alone, and cost no more than that.
"""

import importlib.util
import sys

__version__ = "0.1.0"

_NAME = "fairseq_structattn"


def _register() -> None:
    # Of a user directory, fairseq itself imports only `models` and `tasks`.
    from fairseq_structattn import compat, criterions, models, optimizers, tasks  # noqa: F401

    compat.apply()


def _stand_for_the_real_package(name: str) -> None:
    """``--user-dir`` may be a link or a copy under any name, and fairseq imports it by that name. The package is loaded
    under its own name all the same, so that nothing is registered twice."""
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, __file__, submodule_search_locations=list(__path__))
        if spec is None or spec.loader is None:
            raise ImportError(f"--user-dir: {__file__} is not a file that Python can import")
        package = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = package
        spec.loader.exec_module(package)
    from fairseq_structattn.importing import alias

    alias(name, _NAME)


if __name__ == _NAME:
    from fairseq_structattn.importing import after_import

    after_import("fairseq", _register)
else:
    _stand_for_the_real_package(__name__)
