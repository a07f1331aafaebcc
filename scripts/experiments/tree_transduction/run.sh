#!/usr/bin/env bash
# Tree transduction (Kim et al. 2017, section 4.1): formulas from prefix to infix notation, three seeds of each system.
#
#     bash scripts/experiments/tree_transduction/run.sh [--publish] [WORK_DIR] [SYSTEM.SETTING ...]
#
# WORK_DIR (default: tree_transduction) holds the data, checkpoints and logs. Without names every system is trained in every
# setting below. An interrupted run continues; finished steps are not repeated. SEEDS and JOBS (trainings at a time, default 1)
# may be set; each training uses one core. The report, README.md with results.json and pictures, is made in WORK_DIR; with
# --publish the one beside this script gets the results.
set -euo pipefail
. "$(dirname "$0")/../queue.sh"
structattn_experiment "$0" "--publish" "1 2 3" "$@"

depths=(2 3 4 5 6)
all=(none.sgd flat.sgd tree.sgd nonprojective.sgd uniform.sgd flat.sgd_no_tanh tree.sgd_no_tanh flat.adam tree.adam
    flat.sgd_paper_init tree.sgd_paper_init tree.best)
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")

# Of fairseq-train, for each system and each setting.
system_options() {
    case "$1" in
        none) echo --arch structattn_rnn_flat --source-attention none ;;
        flat) echo --arch structattn_rnn_flat ;;
        tree) echo --arch structattn_rnn_tree ;;
        nonprojective) echo --arch structattn_rnn_tree_nonprojective ;;
        uniform) echo --arch structattn_rnn_tree --arc-score uniform ;;
        *) echo "error: unknown system $1, choose from none flat tree nonprojective uniform" >&2 && return 1 ;;
    esac
}

cosine() { # LEARNING_RATE EPOCHS, 750 updates each
    echo --lr "$1" --lr-scheduler cosine --warmup-updates 100 --min-lr 0.0001 --max-update "$(($2 * 750))"
}

setting_options() {
    local sgd="--optimizer sgd $(cosine 1.0 30)"
    case "$1" in
        sgd) echo "$sgd" --init-range 0 ;;
        sgd_no_tanh) echo "$sgd" --init-range 0 --arc-bound none ;;
        sgd_paper_init) echo "$sgd" --init-range 0.1 ;;
        best) echo "$sgd" --init-range 0 --arc-bound none --input-feeding ;;
        adam) echo --optimizer adam "$(cosine 0.003 20)" --init-range 0 ;;
        *) echo "error: unknown setting $1, choose from sgd sgd_no_tanh sgd_paper_init adam best" >&2 && return 1 ;;
    esac
}

prepare() {
    [ ! -e "$work/bin/done" ] || return 0
    "$python" scripts/prepare/tree_transduction.py --dest "$work/data"
    rm -rf "$work/bin"
    "$python" -m fairseq_cli.preprocess --source-lang prefix --target-lang infix --trainpref "$work/data/train" \
        --validpref "$work/data/valid$(printf ",$work/data/valid.depth%s" "${depths[@]}")" \
        --testpref "$(printf ",$work/data/test.depth%s" "${depths[@]}" | cut -c2-)" --destdir "$work/bin" \
        > "$work/preprocess.log" 2>&1 || { tail -n 20 "$work/preprocess.log"; return 1; }
    touch "$work/bin/done"
}

train() { # SYSTEM SETTING SEED
    local folder="$work/$1.$2-$3" options
    mkdir -p "$folder"
    [ ! -e "$folder/trained" ] || return 0
    echo "== $1 ($2), seed $3: training, log in $folder/train.log"
    options="$(system_options "$1") $(setting_options "$2")"
    # shellcheck disable=SC2086  # options are words
    "$python" -m fairseq_cli.train "$work/bin" --user-dir fairseq_structattn --task translation $options --seed "$3" \
        --criterion structattn_label_smoothed_cross_entropy --report-length-to-failure \
        --batch-size 20 --required-batch-size-multiple 1 --clip-norm 5 --num-workers 0 \
        --valid-subset valid,valid1,valid2,valid3,valid4,valid5 --ignore-unused-valid-subsets \
        --best-checkpoint-metric length_to_failure --maximize-best-checkpoint-metric \
        --save-dir "$folder" --no-epoch-checkpoints --log-format json --log-interval 250 \
        --log-file "$folder/train.log" > "$folder/console.log" 2>&1 || { tail -n 20 "$folder/console.log"; return 1; }
    touch "$folder/trained"
}

translate() { # FOLDER CHECKPOINTS; greedily: up to the first error it makes no difference
    local folder=$1 subsets=() number=0 depth
    mkdir -p "$folder"
    for depth in "${depths[@]}"; do
        local subset="test$([ "$number" = 0 ] || echo "$number")" output="$folder/test.depth$depth.txt"
        number=$((number + 1))
        subsets+=(--subset "depth$depth" "$output" "$work/data/test.depth$depth.infix")
        [ ! -e "$output" ] || continue
        "$python" -m fairseq_cli.generate "$work/bin" --user-dir fairseq_structattn --path "$2" \
            --gen-subset "$subset" --beam 1 --batch-size 50 --max-len-a 0 --max-len-b 250 --num-workers 0 \
            > "$output.tmp" 2> "$folder/generate.log" || { tail -n 20 "$folder/generate.log"; return 1; }
        mv "$output.tmp" "$output"
    done
    "$python" -m fairseq_structattn.analysis.length_to_failure "${subsets[@]}" --output "$folder/test.json" > "$folder/score.log"
}

measure_trees() { # FOLDER
    "$python" $here/induced_trees.py "$1/checkpoint_best.pt" "$work/bin" --output "$1/induced_trees.json" \
        >> "$1/score.log" 2> "$1/trees.log" || { tail -n 20 "$1/trees.log"; return 1; }
}

one() { # SYSTEM.SETTING SEED
    local folder="$work/$1-$2"
    train "${1%%.*}" "${1#*.}" "$2" && translate "$folder" "$folder/checkpoint_best.pt" && measure_trees "$folder"
}

# The models of all seeds as one system: fairseq averages their probabilities.
ensemble() { # SYSTEM.SETTING
    local seed checkpoints=()
    for seed in $seeds; do
        [ -e "$work/$1-$seed/trained" ] || return 0
        checkpoints+=("$work/$1-$seed/checkpoint_best.pt")
    done
    [ ${#checkpoints[@]} = 1 ] || translate "$work/$1-${seeds// /+}" "$(IFS=:; echo "${checkpoints[*]}")"
}

for name in "${names[@]}"; do
    system_options "${name%%.*}" > /dev/null
    setting_options "${name#*.}" > /dev/null
done
prepare
queue "$jobs" "$seeds" "${names[@]}"
ensemble tree.best
dest=$here
[ -n "${given[--publish]:-}" ] || { dest=$work && cp $here/README.md "$work/README.md"; }
"$python" $here/report.py "$work" --dest "$dest" --command "SEEDS='$seeds' bash $here/run.sh"
drawn=()
for name in tree.sgd tree.best; do
    [ ! -e "$work/$name-1/trained" ] || drawn+=(--model "$name, seed 1" "$work/$name-1/checkpoint_best.pt")
done
[ ${#drawn[@]} = 0 ] || "$python" $here/draw_trees.py "$work/bin" "${drawn[@]}" --output "$dest/trees.png"
