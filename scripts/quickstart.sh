#!/usr/bin/env bash
# From nothing to a translation model with structured attention, in minutes: German number words, spelled in characters,
# to English words (s i e b e n u n d v i e r z i g -> forty seven).
#
#   bash scripts/quickstart.sh [FOLDER]      everything is kept in FOLDER, by default quickstart/
#
# It installs, makes the corpus, binarises, trains structattn_rnn_crf, translates the test set, scores it and draws the
# attention of three test sentences. A GPU is used where there is one. An interrupted run continues; a
# later run repeats only unfinished steps and steps whose options have changed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"
structattn_usage "$0" "" 1 "$@"

work="${1:-$STRUCTATTN_ROOT/quickstart}"
scripts="$STRUCTATTN_ROOT/scripts"
updates=900 # an epoch and a half of the corpus below
made_with=""
step_number=0

# The lines in which fairseq lists all options are hidden, and translations are shown as source and hypothesis only. A
# progress bar replaces the lines of the training.
show() {
    { grep --line-buffered -v -e "| {'_name'" -e 'Namespace(' -e '^[TDP]-' || true; } |
        "$STRUCTATTN_PYTHON" -m fairseq_structattn.analysis.progress "$updates"
}

record() {
    printf '%s\n' "$made_with" >"$1.tmp"
    mv "$1.tmp" "$1"
}

# step NAME OUTPUT COMMAND...  runs the command unless OUTPUT was made by this very command from what the same commands
# made before it. What other options made is removed; what this command left half-done is there for it to continue.
step() {
    local name="$1" output="$2"
    shift 2
    step_number=$((step_number + 1))
    made_with="$(printf '%s\n' "$made_with" "${@/#$STRUCTATTN_PYTHON/python}" | cksum)"
    if [[ -e "$output" && "$(cat ".$name.done" 2>/dev/null)" == "$made_with" ]]; then
        structattn_say "$step_number/6 $name: done already ($work/$output)"
        return
    fi
    structattn_say "$step_number/6 $name"
    printf '    %s\n' "${*/#$STRUCTATTN_PYTHON/python}"
    if [[ "$(cat ".$name.started" 2>/dev/null)" != "$made_with" ]]; then
        rm -rf "$output"
        record ".$name.started"
    fi
    "$@" 2>&1 | tee -a "$name.log" | show
    record ".$name.done"
}

# fairseq-preprocess does not overwrite its own half-written output.
binarise() {
    rm -rf bin.tmp
    "$@" --destdir bin.tmp
    mv bin.tmp bin
}

# fairseq copies its newest checkpoint to checkpoint_last.pt; an interruption may cut that copy short.
mend_last_checkpoint() {
    local last=checkpoints/checkpoint_last.pt newest
    if [[ ! -e "$last" ]] || "$STRUCTATTN_PYTHON" -m zipfile -t "$last" >/dev/null 2>&1; then
        return
    fi
    rm "$last"
    newest="$(find checkpoints -name 'checkpoint_[0-9]*.pt' | sort -V | tail -n 1)"
    if [[ -n "$newest" ]]; then
        echo "$last was cut short; continuing from $newest"
        cp "$newest" "$last.tmp"
        mv "$last.tmp" "$last"
    fi
}

train() {
    mend_last_checkpoint
    "$@" --save-dir checkpoints
}

translate() {
    "$@" | tee translation.txt.tmp
    mv translation.txt.tmp translation.txt
}

structattn_install fast,quickstart,plot
started=$SECONDS
mkdir -p "$work"
cd "$work"
work="$PWD"
python="$STRUCTATTN_PYTHON"
user_dir="$("$python" -m fairseq_structattn)"
structattn_say "working in $work, on $("$python" -c 'import torch
print("a GPU: " + torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU")')"

step corpus raw \
    "$python" "$scripts/prepare/number_words.py" --dest raw --train 24000 --valid 500 --test 500

step binarise bin \
    binarise "$python" -m fairseq_cli.preprocess --source-lang de --target-lang en \
    --trainpref raw/train --validpref raw/valid --testpref raw/test

step train checkpoints \
    train "$python" -m fairseq_cli.train bin --user-dir "$user_dir" \
    --arch structattn_rnn_crf --decoder-start bridge --dropout 0.1 \
    --encoder-embed-dim 96 --encoder-hidden-size 96 --encoder-layers 1 --encoder-bidirectional \
    --decoder-embed-dim 96 --decoder-hidden-size 192 --decoder-layers 1 --decoder-out-embed-dim 96 \
    --criterion structattn_label_smoothed_cross_entropy --pairwise-l2 0.0005 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
    --lr 4e-3 --lr-scheduler polynomial_decay --warmup-updates 60 --total-num-update "$updates" \
    --max-tokens 2000 --max-update "$updates" \
    --update-epoch-batch-itr True --seed 1 --num-workers 0 --distributed-world-size 1 \
    --save-interval-updates 200 --keep-interval-updates 1 --no-epoch-checkpoints \
    --log-format simple --log-interval 10

# Greedy search, here and for the picture: fairseq stops when as many hypotheses as the beam is wide have ended, and with
# a model as confident as this one the bad hypotheses end before the good one.
step translate translation.txt \
    translate "$python" -m fairseq_cli.generate bin --user-dir "$user_dir" \
    --path checkpoints/checkpoint_best.pt --gen-subset test --beam 1 --max-tokens 8000 --num-workers 0 \
    --log-format none

step score bleu.json \
    "$python" -m fairseq_structattn.analysis.score_bleu --generated translation.txt --reference raw/test.en --tokenize none \
    --output bleu.json

step plot attention.png \
    "$python" -m fairseq_structattn.analysis.plot_attention --data bin \
    --path checkpoints/checkpoint_best.pt --gen-subset test --beam 1 --sentences 3 --output attention.png

structattn_say "finished after $((SECONDS - started)) seconds (installation not counted)"
cat bleu.json
echo "translations  $work/translation.txt"
echo "attention     $work/attention.png"
