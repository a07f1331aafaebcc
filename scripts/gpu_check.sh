#!/usr/bin/env bash
# Checks and times on a GPU, without network: the kernels beside torch-struct and plain PyTorch, training steps in float32,
# float16 and bfloat16, whether training in float16 holds, and the kernels against the reference. About 8 minutes.
#
#   bash scripts/gpu_check.sh [WORK_DIR]              results: scripts/benchmark/results/<card>.json
#   bash scripts/gpu_check.sh --dry-run [WORK_DIR]    the same commands without a GPU, reduced 16 times, the kernels in Triton's
#                                                     interpreter; results in WORK_DIR
#
# The file of results is written anew after each part, so that a run that is cut off leaves what it has measured. A part
# that fails does not keep the others from running; the exit status is 1 then.
#
# The package and its extras test and benchmark must be installed for ${PYTHON:-python3}; a library that is not installed
# (SuPar, for instance) is left out of the comparison. Data are generated: formulas, whose translations are as long as they are.
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
    reduce=16
    only="test_scores_of_any_size and spanning"
    card="$work/dry_run"
else
    device=cuda
    reduce=1
    only=""
    card="$benchmark/results/$("$python" -c 'import torch
print(torch.cuda.get_device_name().replace(" ", "_") if torch.cuda.is_available() else "")')"
    [[ "$card" != "$benchmark/results/" ]] || {
        echo "error: torch sees no GPU; to try the script out without one: bash scripts/gpu_check.sh --dry-run" >&2
        exit 1
    }
fi
mkdir -p "$work"
rm -f "$work"/*.json "$work"/*.xml "$work"/*.log

report() { "$python" $benchmark/gpu_report.py "$work" --output "$card.json" > "$work/report.log"; }

failed=()
part() { # NAME COMMAND ...: its output goes to a log, whose end is shown if it fails
    local log
    log="$work/$(tr -c 'a-z0-9\n' _ <<< "$1").log"
    say "$1"
    if ! "$python" "${@:2}" > "$log" 2>&1; then
        tail -n 20 "$log"
        failed+=("$1: $log")
    fi
    report
}

say "data"
"$python" scripts/prepare/tree_transduction.py --dest "$work/formulas" > /dev/null
rm -rf "$work/formulas/bin"
"$python" -m fairseq_cli.preprocess --source-lang prefix --target-lang infix --trainpref "$work/formulas/train" \
    --destdir "$work/formulas/bin" > "$work/preprocess.log" 2>&1 || { tail -n 20 "$work/preprocess.log"; exit 1; }

systems="lstm,luong_general,luong_general_input_feeding,luong_general_input_feeding_graphs,crf,flat,tree,tree_nonprojective"
steps=("$work/formulas/bin" --systems "$systems" --source-length 40 --batch-size 32 --batches 3 --rounds 5 --device $device
    --reduce $reduce --output "$work/training_speed.json")
held=("$work/formulas/bin" --systems "$systems" --precisions fp16 --batches 5 --device $device --reduce $reduce
    --output "$work/half_precision.json")

part "kernels beside other implementations" $benchmark/distributions.py --jobs cuda --device $device --reduce $reduce \
    --output "$work/distributions.json"
part "training steps in float32" $benchmark/training_speed.py "${steps[@]}" --precision fp32
part "training in float16" $benchmark/half_precision.py "${held[@]}"
part "training steps in float16" $benchmark/training_speed.py "${steps[@]}" --precision fp16
part "training steps in bfloat16" $benchmark/training_speed.py "${steps[@]}" --precision bf16
# Most of their time the tests compile, which several processes do side by side.
side_by_side=()
if [[ -z "$dry" ]] && "$python" -c "import xdist" 2> /dev/null; then side_by_side=(-n 8 --dist load); fi
part "kernels against the reference" -m pytest -q -p no:cacheprovider tests/distributions/test_gpu_kernels.py \
    tests/modules/test_recurrent.py tests/modules/test_captured.py tests/models/test_decoder_graphs.py -k "$only" "${side_by_side[@]}" --junitxml "$work/tests.xml"

say "report"
cat "$work/report.log"
if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'error: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
