#!/usr/bin/env bash
# The bottleneck of one vector: four systems, English to German, by the length of the source.
#
#     bash scripts/experiments/long_sentences/run.sh --corpus FOLDER [--publish] [WORK_DIR] [SYSTEM ...]
#
# FOLDER (or the variable DATA) has the tokenised files of Multi30k: train, val and test_2016_flickr .lc.norm.tok.en and
# .de. It is needed once; the script says where to get it.
# WORK_DIR (default: long_sentences) holds the data, checkpoints and logs. Without names every system is trained: vanilla
# bahdanau luong_general crf. An interrupted run continues; finished steps are not repeated. SEEDS (default: 1), UPDATES, JOBS
# (trainings at a time, default 1) and PYTHON may be set; each training uses one core. The report, README.md with
# results.json and pictures, is made in WORK_DIR; with --publish the one beside this script gets the results.
set -euo pipefail
. "$(dirname "$0")/../queue.sh"
structattn_experiment "$0" "--corpus= --publish" "1" "$@"
corpus=${given[--corpus]:-${DATA:-}}
all=(vanilla bahdanau luong_general crf)
systems=("${names[@]}")
[ ${#systems[@]} -gt 0 ] || systems=("${all[@]}")
updates=${UPDATES:-2080}

check_corpus() {
    local split language
    for split in train val test_2016_flickr; do
        for language in en de; do
            [ -e "$corpus/$split.lc.norm.tok.$language" ] || {
                echo "error: no $split.lc.norm.tok.$language in ${corpus:-any folder: name it by DATA or --corpus}. The" \
                    "corpus is data/task1/tok of https://github.com/multi30k/dataset; it is for non-commercial research" \
                    "and education." >&2
                return 1
            }
        done
    done
}

# Of fairseq-train. Every system starts its decoder from the encoder's last states and has the same sizes.
system_options() {
    case "$1" in
        vanilla) echo --arch structattn_rnn_vanilla ;;
        bahdanau) echo --arch structattn_rnn_bahdanau ;;
        luong_general) echo --arch structattn_rnn_luong_general ;;
        # The paper's 0.005 is for a loss summed over a sentence; fairseq's is a mean over its words, some twenty here.
        crf) echo --arch structattn_rnn_crf --decoder-start bridge --pairwise-l2 0.00025 ;;
        *) echo "error: unknown system $1, choose from ${all[*]}" >&2 && return 1 ;;
    esac
}

sizes=(--encoder-embed-dim 128 --encoder-hidden-size 128 --encoder-layers 1 --encoder-bidirectional
    --decoder-embed-dim 128 --decoder-hidden-size 256 --decoder-layers 1 --decoder-out-embed-dim 128
    --attention-hidden-size 128 --dropout 0.2 --encoder-dropout-in 0.2 --encoder-dropout-out 0.2
    --decoder-dropout-in 0.2 --decoder-dropout-out 0.2)
# Adam, a short warm-up, then straight down to zero.
schedule=(--optimizer adam --adam-betas "(0.9, 0.98)" --lr 0.003 --lr-scheduler polynomial_decay --warmup-updates 200
    --total-num-update "$updates" --max-update "$updates" --clip-norm 1.0 --max-tokens 2500)
selection=(--eval-bleu --eval-bleu-args '{"beam": 1, "max_len_a": 1.5, "max_len_b": 10}' --eval-tokenized-bleu
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric)

# Training and validation sets are the corpus as it is, in pairs and in groups of four: no system meets long sentences for
# the first time in the test. The test set is tested as it is, and in groups of two, three, four and six.
prepare() {
    [ ! -e "$work/data/done" ] || return 0
    check_corpus
    local raw="$work/data/raw"
    join() { # SPLIT OUTPUT SIZE ...
        "$python" scripts/prepare/join_sentences.py --languages en de --input "$corpus/$1.lc.norm.tok" \
            --output "$2" --sizes "${@:3}"
    }
    join train "$raw/train" 1 2 4
    join val "$raw/valid" 1 2 4
    join test_2016_flickr "$raw/test" 1
    # three times in the joined training set is once in the corpus: words seen three times or more there have a vector
    "$python" scripts/prepare/parallel_corpus.py --source-lang en --target-lang de --train "$raw/train" \
        --valid "$raw/valid" --test "$raw/test" --dest "$work/data" --source-threshold 9 --target-threshold 9
    join test_2016_flickr "$work/data/joined" 2 3 4 6
    rm -rf "$work/data/bin_joined"
    "$python" -m fairseq_cli.preprocess --source-lang en --target-lang de --testpref "$work/data/joined" \
        --srcdict "$work/data/bin/dict.en.txt" --tgtdict "$work/data/bin/dict.de.txt" --destdir "$work/data/bin_joined" \
        > "$work/preprocess.log" 2>&1 || { tail -n 20 "$work/preprocess.log"; return 1; }
    touch "$work/data/done"
}

train() { # SYSTEM SEED
    local folder="$work/$1-$2" options
    mkdir -p "$folder"
    [ ! -e "$folder/trained" ] || return 0
    echo "== $1, seed $2: training, log in $folder/train.log"
    options="$(system_options "$1")" || return 1
    # shellcheck disable=SC2086  # options are words
    "$python" -m fairseq_cli.train "$work/data/bin" --user-dir fairseq_structattn --source-lang en --target-lang de \
        $options "${sizes[@]}" "${schedule[@]}" "${selection[@]}" --seed "$2" \
        --criterion structattn_label_smoothed_cross_entropy --label-smoothing 0.1 --num-workers 0 \
        --update-epoch-batch-itr True --save-dir "$folder" --no-epoch-checkpoints \
        --log-format json --log-interval 50 --log-file "$folder/train.log" > "$folder/console.log" 2>&1 \
        || { tail -n 20 "$folder/console.log"; return 1; }
    touch "$folder/trained"
}

translate() { # SYSTEM SEED
    local folder="$work/$1-$2" set bin
    for set in test joined; do
        bin="$work/data/bin"
        [ "$set" = test ] || bin="$work/data/bin_joined"
        [ ! -e "$folder/$set.txt" ] || continue
        "$python" -m fairseq_cli.generate "$bin" --user-dir fairseq_structattn --source-lang en --target-lang de \
            --path "$folder/checkpoint_best.pt" --gen-subset test --beam 5 --max-len-a 1.5 --max-len-b 10 \
            --max-tokens 2500 --num-workers 0 > "$folder/$set.txt.tmp" 2> "$folder/generate.log" \
            || { tail -n 20 "$folder/generate.log"; return 1; }
        mv "$folder/$set.txt.tmp" "$folder/$set.txt"
    done
}

one() { # SYSTEM SEED
    train "$1" "$2" && translate "$1" "$2"
}

for name in "${systems[@]}"; do system_options "$name" > /dev/null; done
prepare
queue "$jobs" "$seeds" "${systems[@]}"
dest=$here
[ -n "${given[--publish]:-}" ] || { dest=$work && cp $here/README.md "$work/README.md"; }
"$python" $here/report.py "$work" --dest "$dest" --command "SEEDS='$seeds' UPDATES=$updates bash $here/run.sh --corpus FOLDER"
