#!/usr/bin/env bash
# Finds or makes the Python environment to work in and installs the package there, with the versions of constraints.txt.
#
#   source scripts/install.sh                       then: structattn_install EXTRAS [INTERPRETER]; it sets STRUCTATTN_PYTHON
#   bash scripts/install.sh [EXTRAS [INTERPRETER]]  installs and says which interpreter to use
#
# EXTRAS       extras of setup.cfg, separated by commas, for example quickstart,plot
# INTERPRETER  a Python 3.8 to 3.12: the environment is then .venv-<version>, made from it, whatever is active.
# Without it the active virtual or conda environment is used, and where there is none .venv, made from ${PYTHON:-python3}.
# conda's base does not count as active: it is shared by everything else on the machine.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
STRUCTATTN_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

structattn_say() { printf '==> %s\n' "$*"; }

structattn_die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Prints <major>.<minor> of an interpreter, or stops with the reason why it cannot serve.
structattn_version() {
    local interpreter="$1" version
    version="$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" ||
        structattn_die "'$interpreter' is not a Python that runs here; name one that does: PYTHON=/path/to/python3.11 bash $0"
    case "$version" in
        3.8 | 3.9 | 3.10 | 3.11 | 3.12) printf '%s' "$version" ;;
        *) structattn_die "'$interpreter' is Python $version, but fairseq runs on 3.8 to 3.12 only; name another:" \
            "PYTHON=/path/to/python3.11 bash $0" ;;
    esac
}

# A venv holds its own path and so cannot be made beside its place and moved; a pip that answers is the mark that an
# earlier run was not interrupted while making it.
structattn_make_venv() {
    local interpreter="$1" folder="$2"
    if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    structattn_say "making $folder from $("$interpreter" --version 2>&1) ($interpreter)"
    "$interpreter" -m venv --clear "$folder" ||
        structattn_die "'$interpreter -m venv' failed; install the venv module (package python3-venv on Debian and Ubuntu)" \
            "or name another interpreter: PYTHON=/path/to/python3.11 bash $0"
}

# Sets STRUCTATTN_PYTHON, the interpreter of the environment.
structattn_environment() {
    local interpreter="${1:-}" version
    if [[ -n "$interpreter" ]]; then
        version="$(structattn_version "$interpreter")"
        structattn_make_venv "$interpreter" "$STRUCTATTN_ROOT/.venv-$version"
        STRUCTATTN_PYTHON="$STRUCTATTN_ROOT/.venv-$version/bin/python"
    elif [[ -n "${VIRTUAL_ENV:-}" ]]; then
        STRUCTATTN_PYTHON="$VIRTUAL_ENV/bin/python"
    elif [[ -n "${CONDA_PREFIX:-}" && "${CONDA_DEFAULT_ENV:-}" != base ]]; then
        STRUCTATTN_PYTHON="$CONDA_PREFIX/bin/python"
    else
        interpreter="${PYTHON:-python3}"
        structattn_version "$interpreter" >/dev/null
        structattn_make_venv "$interpreter" "$STRUCTATTN_ROOT/.venv"
        STRUCTATTN_PYTHON="$STRUCTATTN_ROOT/.venv/bin/python"
    fi
    structattn_version "$STRUCTATTN_PYTHON" >/dev/null
}

# What an installation depends on. A change of any of it installs again.
structattn_stamp() {
    (cd "$STRUCTATTN_ROOT" && pwd && cat setup.cfg pyproject.toml constraints.txt) | cksum
}

structattn_is_installed() {
    local stamp_file="$1"
    [[ -f "$stamp_file" && "$(cat "$stamp_file")" == "$(structattn_stamp)" ]] &&
        "$STRUCTATTN_PYTHON" -c 'from importlib.metadata import version; version("fairseq_structattn")' 2>/dev/null
}

# omegaconf 2.0.6, which the official fairseq needs, has metadata that pip 24.1 and later refuse.
structattn_old_pip() {
    "$STRUCTATTN_PYTHON" - <<'PYTHON'
import sys
import pip
pip_version = tuple(int(part) for part in pip.__version__.split(".")[:2])
sys.exit(0 if sys.version_info >= (3, 11) or pip_version < (24, 1) else 1)
PYTHON
}

structattn_install() {
    local extras="${1:-}" interpreter="${2:-}" prefix stamp_file
    structattn_environment "$interpreter"
    prefix="$("$STRUCTATTN_PYTHON" -c 'import sys; print(sys.prefix)')"
    stamp_file="$prefix/.fairseq_structattn-installed-${extras//,/+}"
    if structattn_is_installed "$stamp_file"; then
        structattn_say "installed already in $prefix"
        return
    fi
    structattn_say "installing fairseq_structattn[$extras] into $prefix"
    structattn_old_pip || "$STRUCTATTN_PYTHON" -m pip install 'pip<24.1'
    (cd "$STRUCTATTN_ROOT" && "$STRUCTATTN_PYTHON" -m pip install -e ".${extras:+[$extras]}" -c constraints.txt)
    structattn_stamp >"$stamp_file.tmp"
    mv "$stamp_file.tmp" "$stamp_file"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    structattn_usage "$0" "" 2 "$@"
    structattn_install "$@"
    structattn_say "ready: $STRUCTATTN_PYTHON"
fi
