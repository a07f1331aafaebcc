#!/usr/bin/env bash
# Question answering on bAbI (Kim et al. 2017, section 4.3): twelve tasks, three models, random starts chosen on held-out
# questions.
#
#     bash scripts/experiments/babi/run.sh [--corpus FOLDER] [WORK_DIR] [SYSTEM.SETTING ...]
#
# FOLDER is the folder `en` of bAbI tasks v1.2. It is needed once. WORK_DIR (default: babi) holds data, checkpoints and logs.
# Systems are memn2n, chain and unary_chain, settings those of trainings.py; without names all systems are trained in all
# settings. Each finished start is a line of results.jsonl beside this script and is not repeated, so the experiment can
# be spread over days and machines. SEEDS (default: 1 2 3 4 5), JOBS (trainings at a time, default 1) and PYTHON may be
# set; each training uses one core.
set -euo pipefail
. "$(dirname "$0")/../queue.sh"
structattn_usage "$0" "--corpus=" - "$@"
cd "$(dirname "$0")/../../.."
here=scripts/experiments/babi
corpus=""
positional=()
while [ $# -gt 0 ]; do
    case "$1" in
        --corpus)
            corpus=$2
            shift
            ;;
        *) positional+=("$1") ;;
    esac
    shift
done
work=${positional[0]:-babi}
names=()
[ ${#positional[@]} -lt 2 ] || names=("${positional[@]:1}")
[ ${#names[@]} -gt 0 ] ||
    names=({memn2n,chain,unary_chain}.{published,tuned,joint})
seeds=${SEEDS:-1 2 3 4 5}
python=${PYTHON:-python}
results=${RESULTS:-$here/results.jsonl}
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
mkdir -p "$work/logs"

tasks=(2 3 7 8 11 13 14 15 16 17 18 19)

prepare() { # FOLDER TASK ... [OPTION ...]
    local dest="$work/data/$1"
    [ ! -e "$dest/dict.txt" ] || return 0
    [ -n "$corpus" ] || {
        echo "error: no data in $work: name the folder en of bAbI tasks v1.2 by --corpus" >&2
        exit 2
    }
    "$python" scripts/prepare/babi.py --corpus "$corpus" --dest "$dest" --task "${@:2}"
}

for task in "${tasks[@]}"; do
    prepare "qa$task" "$task"
done
prepare together {1..20} --steps 1 2 3 1 1 1 3 3 1 1 2 1 2 2 2 3 2 2 2 1 # of tasks with one supporting fact: 1

one() { # SYSTEM.SETTING SEED
    "$python" $here/trainings.py "$1" --seeds "$2" --data "$work/data" --work "$work/runs" --results "$results" \
        --command "bash $here/run.sh" 2> "$work/logs/$1-$2" || { tail -n 20 "$work/logs/$1-$2" >&2; return 1; }
}

queue "${JOBS:-1}" "$seeds" "${names[@]}"
"$python" $here/report.py --results "$results"
