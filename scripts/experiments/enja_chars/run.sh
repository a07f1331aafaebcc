#!/usr/bin/env bash
# Japanese characters to English words: stock lstm, softmax attention and chain attention at the same sizes.
#
#     bash scripts/experiments/enja_chars/run.sh [WORK_DIR] [CORPUS_DIR]
#
# WORK_DIR (default: enja_chars) takes the data, checkpoints and logs; CORPUS_DIR is a folder with the corpus, which is
# downloaded if none is given. Interrupted, it continues; what is done is not repeated. EPOCHS and SEED may be set.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=scripts/experiments/enja_chars
work=${1:-enja_chars}
corpus=${2:-}
epochs=${EPOCHS:-7}
seed=${SEED:-1}
python=${PYTHON:-python}
mkdir -p "$work"

if [ ! -e "$work/data/bin" ]; then
    bash scripts/prepare/small_parallel_enja.sh --characters --dest "$work/data" ${corpus:+"$corpus"}
fi

sizes=(--encoder-embed-dim 256 --encoder-hidden-size 256 --encoder-layers 1 --encoder-bidirectional
    --decoder-embed-dim 256 --decoder-hidden-size 512 --decoder-layers 1 --decoder-out-embed-dim 256
    --dropout 0.2 --encoder-dropout-in 0.2 --encoder-dropout-out 0.2 --decoder-dropout-in 0.2 --decoder-dropout-out 0.2)
# Adam, a short warm-up, then straight down to zero over the 273 updates of an epoch; the same for every system.
schedule=(--optimizer adam --adam-betas "(0.9, 0.98)" --lr 0.002 --lr-scheduler polynomial_decay --warmup-updates 200
    --total-num-update "$((epochs * 273))" --clip-norm 1.0 --weight-decay 0 --max-tokens 3000 --max-epoch "$epochs")
selection=(--eval-bleu --eval-bleu-args '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}' --eval-tokenized-bleu
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric)

# train_and_score SYSTEM SETTING [option ...]
train_and_score() {
    local system=$1 setting=$2 folder="$work/$1-${2// /_}-$seed"
    shift 2
    mkdir -p "$folder"
    if [ ! -e "$folder/trained" ]; then
        echo "== $system ($setting), seed $seed: training, log in $folder/train.log"
        "$python" -m fairseq_cli.train "$work/data/bin" --user-dir fairseq_structattn --source-lang ja --target-lang en \
            "${sizes[@]}" "${schedule[@]}" "${selection[@]}" "$@" --seed "$seed" --save-dir "$folder" \
            --no-epoch-checkpoints --num-workers 0 \
            --log-format json --log-interval 50 --log-file "$folder/train.log" > "$folder/console.log" 2>&1 \
            || { tail -n 20 "$folder/console.log"; exit 1; }
        touch "$folder/trained"
    fi
    if [ ! -e "$folder/test.txt" ]; then
        "$python" -m fairseq_cli.generate "$work/data/bin" --user-dir fairseq_structattn --source-lang ja \
            --target-lang en --path "$folder/checkpoint_best.pt" --gen-subset test --beam 5 --max-tokens 3000 \
            > "$folder/test.txt.tmp" 2> "$folder/generate.log" || { tail -n 20 "$folder/generate.log"; exit 1; }
        mv "$folder/test.txt.tmp" "$folder/test.txt"
    fi
    "$python" scripts/analysis/score_bleu.py --generated "$folder/test.txt" --reference "$work/data/test.en" \
        --tokenize none --bootstrap 1000 --output "$folder/bleu.json"
    "$python" scripts/results.py score --results $here/results.json --system "$system" \
        --setting "$setting" --seed "$seed" --split test --bleu "$folder/bleu.json" \
        --train-log "$folder/train.log" --command "${OMP_NUM_THREADS:+OMP_NUM_THREADS=$OMP_NUM_THREADS }EPOCHS=$epochs SEED=$seed bash $here/run.sh"
}

smoothed=(--label-smoothing 0.1 --criterion)
train_and_score lstm "input feeding" --arch lstm "${smoothed[@]}" label_smoothed_cross_entropy
train_and_score structattn_rnn_luong_general "input feeding" --arch structattn_rnn_luong_general --input-feeding \
    "${smoothed[@]}" structattn_label_smoothed_cross_entropy
train_and_score structattn_rnn_luong_general "no input feeding" --arch structattn_rnn_luong_general \
    "${smoothed[@]}" structattn_label_smoothed_cross_entropy
# The paper's 0.005 is for a loss summed over a sentence; fairseq's is a mean over its words, about ten of them here.
train_and_score structattn_rnn_crf "no input feeding" --arch structattn_rnn_crf --decoder-start bridge \
    "${smoothed[@]}" structattn_label_smoothed_cross_entropy --pairwise-l2 0.0005
"$python" scripts/results.py table --results $here/results.json --readme $here/README.md
