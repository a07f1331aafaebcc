"""What users ask the package itself.

    python -m fairseq_structattn [path]            the folder to give to --user-dir
    python -m fairseq_structattn options [ARCH]    every option, with its default in that architecture
    python -m fairseq_structattn --version

What is in brackets may be left out.
"""

import argparse
import os
import sys

from fairseq_structattn import __version__
from fairseq_structattn.analysis.files import InputError, command
from fairseq_structattn.option_list import listing


def print_options(arch) -> None:
    import fairseq.models  # noqa: F401  (with which the package registers its own)

    try:
        lines = list(listing(arch))
    except ValueError as error:
        raise InputError(str(error)) from None
    print("\n".join(lines).rstrip())


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_structattn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    questions = parser.add_subparsers(dest="question", metavar="path|options")
    questions.add_parser("path", help="the folder for --user-dir (default)")
    options = questions.add_parser("options", help="every option of the package, with its default")
    options.add_argument("arch", nargs="?", metavar="ARCH", help="architecture whose defaults are shown")
    given = parser.parse_args(arguments)
    if given.question == "options":
        print_options(given.arch)
    else:
        print(os.path.dirname(os.path.abspath(__file__)))


if __name__ == "__main__":
    main(sys.argv[1:])
