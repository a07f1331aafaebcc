#!/usr/bin/env bash
# Checks and times on a GPU, without network: the kernels against the reference, the kernels beside torch-struct and plain
# PyTorch, training steps in float32, float16 and bfloat16, and whether training in float16 holds. Minutes.
#
#   bash scripts/gpu_check.sh [WORK_DIR]              results: scripts/benchmark/results/<card>.json
#   bash scripts/gpu_check.sh --dry-run [WORK_DIR]    the same steps without a GPU, on tiny problems, the kernels in Triton's
#                                                     interpreter; results in WORK_DIR
#
# The package and its extras test, quickstart and benchmark must be installed for ${PYTHON:-python3}; a library that is not
# installed (SuPar, for instance) is left out of the comparison. Data are generated: German number words, and formulas for the trees.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
structattn_usage "$0" --dry-run 1 "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
dry=""
work=gpu_check
for argument in "$@"; do
    if [[ "$argument" == --dry-run ]]; then dry=1; else work="$argument"; fi
done
benchmark=scripts/benchmark

say() { printf '==> %s (%ss)\n' "$*" "$SECONDS"; }

if [[ -n "$dry" ]]; then
    export TRITON_INTERPRET=1 OMP_NUM_THREADS=1
    device=cpu
    jobs="--jobs tiny --rounds 1"
    speed="--sizes tiny --max-tokens 200 --batches 2 --rounds 1"
    trees="--source-length 12 --batch-size 2"
    training="--sizes tiny --max-tokens 200 --batches 5 --updates 20"
    card="$work/dry_run"
else
    device=cuda
    jobs=""
    speed="--rounds 5"
    trees="--source-length 40 --batch-size 32"
    training=""
    card="$benchmark/results/$("$python" -c 'import torch
print(torch.cuda.get_device_name().replace(" ", "_") if torch.cuda.is_available() else "")')"
    [[ "$card" != "$benchmark/results/" ]] || {
        echo "error: torch sees no GPU; to try the script out without one: bash scripts/gpu_check.sh --dry-run" >&2
        exit 1
    }
fi
mkdir -p "$work"
rm -f "$work"/*.json

binarise() { # SOURCE TARGET FOLDER
    rm -rf "$3/bin"
    "$python" -m fairseq_cli.preprocess --source-lang "$1" --target-lang "$2" --trainpref "$3/train" --destdir "$3/bin" \
        > "$3/preprocess.log" 2>&1 || { tail -n 20 "$3/preprocess.log"; return 1; }
}

say "data"
"$python" scripts/prepare/number_words.py --dest "$work/numbers" --train 24000 --valid 10 --test 10 > /dev/null
binarise de en "$work/numbers"
"$python" scripts/prepare/tree_transduction.py --dest "$work/formulas" > /dev/null
binarise prefix infix "$work/formulas"

say "kernels against the reference"
"$python" -m pytest -q -p no:cacheprovider tests/distributions/test_gpu_kernels.py tests/modules/test_recurrent.py \
    --junitxml "$work/tests.xml" || true

say "kernels beside other implementations"
# shellcheck disable=SC2086  # options are words
"$python" $benchmark/distributions.py --device $device $jobs --output "$work/distributions.json"

say "training steps"
for precision in fp32 fp16 bf16; do
    # shellcheck disable=SC2086
    "$python" $benchmark/training_speed.py "$work/numbers/bin" --systems lstm,luong_general,crf --device $device $speed \
        --precision $precision --output "$work/training_speed.json" 2> "$work/speed.log" || { tail "$work/speed.log"; exit 1; }
    # shellcheck disable=SC2086
    "$python" $benchmark/training_speed.py "$work/formulas/bin" --systems flat,tree --device $device $speed $trees \
        --precision $precision --output "$work/training_speed.json" 2> "$work/speed.log" || { tail "$work/speed.log"; exit 1; }
done

say "training in float16"
for part in "numbers lstm,luong_general,crf" "formulas flat,tree"; do
    read -r data systems <<< "$part"
    # shellcheck disable=SC2086
    "$python" $benchmark/half_precision.py "$work/$data/bin" --systems "$systems" --precisions fp16 --device $device $training \
        --output "$work/half_precision.json" 2> "$work/precision.log" || { tail "$work/precision.log"; exit 1; }
done

say "report"
"$python" $benchmark/gpu_report.py "$work" --output "$card.json"
