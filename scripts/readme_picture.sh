#!/usr/bin/env bash
# Trains the model of the README's picture and draws it: a chain that is trained with alignments between the letters of a
# German number word and English words (--guided-alignment), and selects whole words of several letters.
#
#   bash scripts/readme_picture.sh [FOLDER]      everything is kept in FOLDER, by default readme_picture/
#
# The picture is docs/attention.png. The package and its extras fast, quickstart and plot must be installed for
# ${PYTHON:-python3}. Minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
structattn_usage "$0" "" 1 "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
work="${1:-readme_picture}"
updates=600

mkdir -p "$work"
"$python" scripts/prepare/number_words.py --dest "$work/raw" --train 24000 --valid 500 --test 500 --alignments
rm -rf "$work/bin"
"$python" -m fairseq_cli.preprocess --source-lang de --target-lang en --trainpref "$work/raw/train" \
    --validpref "$work/raw/valid" --testpref "$work/raw/test" --align-suffix align --destdir "$work/bin"
"$python" -m fairseq_cli.train "$work/bin" --user-dir fairseq_structattn \
    --arch structattn_rnn_crf --decoder-start bridge --dropout 0.1 \
    --encoder-embed-dim 96 --encoder-hidden-size 96 --encoder-layers 1 --encoder-bidirectional \
    --decoder-embed-dim 96 --decoder-hidden-size 192 --decoder-layers 1 --decoder-out-embed-dim 96 \
    --criterion structattn_label_smoothed_cross_entropy --pairwise-l2 0.0005 --load-alignments --guided-alignment 0.2 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
    --lr 4e-3 --lr-scheduler polynomial_decay --warmup-updates 60 --total-num-update "$updates" \
    --max-tokens 2000 --max-update "$updates" --seed 1 --num-workers 0 --distributed-world-size 1 \
    --no-epoch-checkpoints --log-format simple --log-interval 100 --save-dir "$work/checkpoints"
"$python" -m fairseq_structattn.analysis.plot_attention --data "$work/bin" --path "$work/checkpoints/checkpoint_best.pt" \
    --beam 1 --ids 1 --output docs/attention.png
