# Sourced by the run.sh of an experiment: its trainings, some at a time, and how it answers --help and wrong calls.
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"

# queue JOBS SEEDS NAME ...; calls the function `one NAME SEED` for each seed and name, at most JOBS at a time. Fails at
# the end if a call failed. Stopped, it stops the trainings too: left alone they would go on, and the next run.sh would
# start them a second time in the same folders.
queue() {
    local jobs=$1 started=() failed=0 seed name job
    set -m # each job is a process group, which can be stopped with all that it has started
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'for job in $(jobs -p); do kill -- "-$job" 2> /dev/null || true; done' EXIT
    for seed in $2; do
        for name in "${@:3}"; do
            while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
            one "$name" "$seed" < /dev/null &
            started+=($!)
        done
    done
    for job in "${started[@]}"; do wait "$job" || failed=1; done
    trap - HUP INT TERM EXIT
    set +m
    [ "$failed" = 0 ] || { echo "a run failed, see above; run again to continue" >&2; return 1; }
}

# queue_groups JOBS SEEDS GROUPS: a queue for each line of GROUPS, one after the other. Trials, whose names have @, are made
# with seed 1 only.
queue_groups() {
    local group own
    while read -r group; do
        own=$2
        [[ "$group" != *@* ]] || own=1
        # shellcheck disable=SC2086  # names are words
        queue "$1" "$own" $group
    done <<< "$3"
}

# quietly LOG COMMAND ...: what the command prints goes into LOG, and its end is shown if it fails.
quietly() {
    local log=$1
    "${@:2}" > "$log" 2>&1 || {
        tail -n 20 "$log" >&2
        return 1
    }
}

# structattn_experiment FILE OPTIONS SEEDS [ARGUMENT ...]
#
# What every run.sh begins with: checks the arguments (see structattn_usage), goes to the root of the repository and sets
#   here     the folder of FILE
#   given    the options, by name; 1 for one without a value
#   work     the first argument, by default the name of the folder; it is made
#   names    the other arguments
#   seeds, jobs, python    the variables SEEDS (default: the argument), JOBS (1) and PYTHON (python)
structattn_experiment() {
    local file="$1" options=" $2 " positional=()
    seeds=${SEEDS:-$3} jobs=${JOBS:-1} python=${PYTHON:-python}
    shift 3
    structattn_usage "$file" "$options" - "$@"
    declare -gA given=()
    while [[ $# -gt 0 ]]; do
        if [[ "$options" == *" $1= "* ]]; then
            given[$1]="$2"
            shift
        elif [[ "$1" == -?* ]]; then
            given[$1]=1
        else
            positional+=("$1")
        fi
        shift
    done
    here=scripts/experiments/$(basename "$(cd "$(dirname "$file")" && pwd)")
    cd "$(dirname "${BASH_SOURCE[0]}")/../.."
    work=${positional[0]:-$(basename "$here")}
    names=("${positional[@]:1}")
    export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
    mkdir -p "$work"
}

# structattn_kept_runs: after structattn_experiment, for experiments whose finished runs leave a file each; sets
#   results    the folder of these files, which is made: that beside the script, or with --dry-run one in the folder of the work
#   tiny       an array, (--tiny) with --dry-run
structattn_kept_runs() {
    results=$here/results tiny=()
    if [[ -n "${given[--dry-run]:-}" ]]; then
        results=$work/results tiny=(--tiny)
    fi
    mkdir -p "$results"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    structattn_usage "$0" "" 0 "$@"
    structattn_refuse "$0" "it is there to be sourced"
fi
