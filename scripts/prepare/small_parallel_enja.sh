#!/usr/bin/env bash
# small_parallel_enja, 50,000 short Japanese-English sentence pairs of the Tanaka corpus: from raw files to data for fairseq-train.
#
#   bash scripts/prepare/small_parallel_enja.sh [--words|--characters] [--dest DIR]
#        [--source-threshold N] [--target-threshold N] [SOURCE_DIR]
#
# --characters            one Japanese character a token (default); --words keeps the words that KyTea found
# --dest DIR              default: data/small_parallel_enja.characters or .words; binarised into DIR/bin
# --source-threshold N    Japanese types seen fewer times become <unk> (default: 2); --target-threshold: English
# SOURCE_DIR              a folder with train, dev and test .ja and .en; without it they are downloaded
#
# The Python of the active environment runs it, or the one that PYTHON names; fairseq must be installed there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"
structattn_usage "$0" "--words --characters --dest= --source-threshold= --target-threshold=" 1 "$@"

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
# One state of the corpus, so that everybody trains on the same sentences.
commit=312408a11c5fbcbc09443bebb18121f7efdcd61e
location="https://github.com/odashi/small_parallel_enja/raw/$commit"
files="train.ja train.en dev.ja dev.en test.ja test.en"

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" "${VIRTUAL_ENV:-/nowhere}/bin/python" "$root/.venv/bin/python" python3; do
        if [[ -n "$candidate" ]] && command -v "$candidate" >/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "no Python found; name one that has fairseq: PYTHON=/path/to/python bash $0"
}

download() {
    local folder="$1" file
    mkdir -p "$folder"
    for file in $files; do
        if [[ ! -s "$folder/$file" ]]; then
            echo "downloading $file"
            curl --fail --location --retry 3 --progress-bar --output "$folder/$file.tmp" "$location/$file" ||
                die "could not download $location/$file; fetch the six files by other means and name their folder:" \
                    "bash $0 SOURCE_DIR"
            mv "$folder/$file.tmp" "$folder/$file"
        fi
    done
}

tokens=characters
dest=""
source_dir=""
thresholds=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        --words) tokens=words ;;
        --characters) tokens=characters ;;
        --dest | --source-threshold | --target-threshold)
            if [[ "$1" == --dest ]]; then dest="$2"; else thresholds+=("$1" "$2"); fi
            shift
            ;;
        *) source_dir="$1" ;;
    esac
    shift
done

dest="${dest:-$root/data/small_parallel_enja.$tokens}"
if [[ -z "$source_dir" ]]; then
    source_dir="$root/data/small_parallel_enja.download"
    download "$source_dir"
fi

# ${array[@]+...}: bash before 4.4 takes an empty array for an unset variable
exec "$(find_python)" "$root/scripts/prepare/parallel_corpus.py" --source-lang ja --target-lang en "--source-$tokens" \
    --train "$source_dir/train" --valid "$source_dir/dev" --test "$source_dir/test" --dest "$dest" \
    ${thresholds[@]+"${thresholds[@]}"}
