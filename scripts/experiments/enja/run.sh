#!/usr/bin/env bash
# Japanese to English: does structured attention pay? Six kinds of attention, two models, characters, words and pieces.
#
#     bash scripts/experiments/enja/run.sh [--corpus FOLDER] [--dry-run] [WORK_DIR] [NAME ...]
#
# FOLDER (or the variable DATA) has train, dev and test .ja and .en of small_parallel_enja. It is needed once.
# WORK_DIR (default: enja) holds data, checkpoints and logs. Each finished run leaves one small file in results/ beside this
# script and is not repeated, so the experiment can be spread over days and machines.
# NAME is a run, SIDE.MODEL.SYSTEM, or SIDE.MODEL, trials.paper, trials.modern, finals, explored, report. Without names: all trials,
# then all runs, the most informative first, without explored, further systems on validation data. SEEDS (default: 1 2 3),
# JOBS (trainings at a time, default 1) and PYTHON may be set; each training uses one core. --dry-run runs all steps with tiny
# models, results in WORK_DIR.
set -euo pipefail
. "$(dirname "$0")/../queue.sh"
structattn_experiment "$0" "--corpus= --dry-run" "1 2 3" "$@"
corpus=${given[--corpus]:-${DATA:-}}
structattn_kept_runs

one() { # NAME SEED
    "$python" $here/one_run.py "$1" "$2" --work "$work" --results "$results" ${tiny[@]+"${tiny[@]}"}
}

prepare() { # SIDE ...
    local side missing=()
    for side in "$@"; do [ -e "$work/$side/fingerprint" ] || missing+=("$side"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ -e "$corpus/train.ja" ] || {
        echo "error: no train.ja in ${corpus:-any folder}: name the folder of small_parallel_enja by DATA or --corpus;" \
            "https://github.com/odashi/small_parallel_enja has it" >&2
        return 1
    }
    quietly "$work/prepare.log" "$python" $here/prepare.py "$corpus" "$work" "${missing[@]}" ${tiny[@]+--held-out 20}
}

report() {
    "$python" $here/report.py "$results" ${tiny[@]+--dest "$work"}
}

[ ${#names[@]} -gt 0 ] || names=(trials.paper trials.modern finals)
if [ "${names[*]}" != report ]; then
    planned=$("$python" $here/settings.py "${names[@]}") # groups of names, a line each
    # shellcheck disable=SC2046  # sides are words
    prepare $(tr ' ' '\n' <<< "$planned" | cut -d. -f1 | sort -u)
    queue_groups "$jobs" "$seeds" "$planned"
fi
report
