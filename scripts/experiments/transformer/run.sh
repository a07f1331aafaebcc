#!/usr/bin/env bash
# Does structured attention pay in a Transformer? Chains, trees and entmax beside softmax, on two small corpora.
#
#     bash scripts/experiments/transformer/run.sh [--enja FOLDER] [--multi30k FOLDER] [--dry-run] [WORK_DIR] [NAME ...]
#
# --enja      train, dev and test .ja and .en of small_parallel_enja
# --multi30k  Multi30k: tok/train.lc.norm.tok.en …
#
# The folders are needed once. WORK_DIR (default: transformer) holds data, checkpoints and logs. Each finished run leaves one
# small file in results/ beside this script and is not repeated, so the experiment can be spread over days and machines.
# NAME is a run, CORPUS.SYSTEM, or CORPUS (enja, multi30k), trials.CORPUS, finals, report. Without names: all trials, then all
# runs, the first seed of all first. SEEDS (default: 1 2 3), JOBS (trainings at a time, default 1) and PYTHON may be set; each
# training uses one core. --dry-run runs all steps with tiny models, results in WORK_DIR.
set -euo pipefail
. "$(dirname "$0")/../queue.sh"
structattn_experiment "$0" "--enja= --multi30k= --dry-run" "1 2 3" "$@"
structattn_kept_runs

one() { # NAME SEED
    "$python" $here/one_run.py "$1" "$2" --work "$work" --results "$results" ${tiny[@]+"${tiny[@]}"}
}

need() { # OPTION FILE
    [ -e "${given[$1]:-}/$2" ] || structattn_refuse "$0" "no $2 in ${given[$1]:-any folder}: name that of the corpus by $1"
}

prepare() { # CORPUS
    if [ "$1" = enja ] && [ ! -e "$work/char/fingerprint" ]; then
        need --enja train.ja
        quietly "$work/enja.log" \
            "$python" $here/../enja/prepare.py "${given[--enja]}" "$work" char ${tiny[@]+--held-out 20}
    elif [ "$1" = multi30k ] && [ ! -e "$work/multi30k/fingerprint" ]; then
        need --multi30k tok/train.lc.norm.tok.en
        quietly "$work/multi30k.log" \
            "$python" $here/prepare.py "${given[--multi30k]}" "$work" ${tiny[@]+--held-out 20 --pieces 40}
    fi
}

[ ${#names[@]} -gt 0 ] || names=(trials.enja trials.multi30k finals)
if [ "${names[*]}" != report ]; then
    planned=$("$python" $here/transformer_settings.py "${names[@]}") # groups of names, a line each
    for corpus in $(tr ' ' '\n' <<< "$planned" | cut -d. -f1 | sort -u); do prepare "$corpus"; done
    queue_groups "$jobs" "$seeds" "$planned"
fi
"$python" $here/report.py "$results" ${tiny[@]+--dest "$work"}
