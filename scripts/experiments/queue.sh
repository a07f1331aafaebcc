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

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    structattn_usage "$0" "" 0 "$@"
    structattn_refuse "$0" "it is there to be sourced"
fi
