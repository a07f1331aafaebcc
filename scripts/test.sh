#!/usr/bin/env bash
# Installs the package with what its tests need, then runs ruff, mypy and the tests.
#
#   bash scripts/test.sh                            in the active environment, or in .venv (made where there is none)
#   bash scripts/test.sh python3.10                 with that interpreter, in .venv-3.10
#   bash scripts/test.sh -- -m 'not slow' tests/cli further arguments go to pytest
#
# Tests of the page of attention need a browser, Debian's packages chromium and chromium-driver; without it they are skipped.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
structattn_usage "$0" "--" 1 "$@"

interpreter=""
if [[ $# -gt 0 && "$1" != -- ]]; then
    interpreter="$1"
    shift
fi
if [[ $# -gt 0 ]]; then
    shift # --
fi

structattn_install test,fast,quickstart,plot "$interpreter"
cd "$STRUCTATTN_ROOT"
structattn_say "ruff"
"$STRUCTATTN_PYTHON" -m ruff check .
"$STRUCTATTN_PYTHON" -m ruff format --check .
# What torch and numpy say of their types differs from release to release; the newest ones are agreed with.
if "$STRUCTATTN_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    structattn_say "mypy"
    "$STRUCTATTN_PYTHON" -m mypy
fi
structattn_say "pytest, $("$STRUCTATTN_PYTHON" --version)"
"$STRUCTATTN_PYTHON" -m pytest --durations=25 "$@"
