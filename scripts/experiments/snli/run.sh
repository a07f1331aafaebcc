#!/usr/bin/env bash
# Entailment (Kim et al. 2017, section 4.4): do the heads of words help, and are the latent trees syntactic? Also the
# supervised parser alone, and translation with its trees.
#
#     bash scripts/experiments/snli/run.sh [--corpus DIR] [--treebank DIR] [--multi30k DIR] [--vectors FILE] [--dry-run]
#          [WORK_DIR] [NAME ...]
#
# WORK_DIR (default: snli) holds data, checkpoints and logs. Each finished run leaves one small file in results/ beside this
# script and is not repeated, so the experiment can be spread over days and machines.
# NAME is a run (parser.biaffine.projective.single.cased, pairs.tree …), all of a kind (parser, pairs, translation,
# published), or report. Without names: parser, pairs and translation. SEEDS (default: 1 2 3), JOBS (trainings at a time, default
# 1) and PYTHON may be set; each training uses one core. --dry-run runs all steps with tiny models, results in WORK_DIR.
#
# --corpus    SNLI: s1, s2 and labels .dev and .test for pairs; snli_1.0_train, _dev and _test.jsonl for published
# --treebank  UD_English-EWT: en_ewt-ud-train, -dev and -test.conllu
# --multi30k  Multi30k: tok/train.lc.norm.tok.en …; for translation
# --vectors   GloVe 840B; for published
set -euo pipefail
. "$(dirname "$0")/../queue.sh"
structattn_experiment "$0" "--corpus= --treebank= --multi30k= --vectors= --dry-run" "1 2 3" "$@"
data=()
for option in --corpus --treebank --multi30k; do
    [ -z "${given[$option]:-}" ] || data+=("$option" "${given[$option]}")
done
vectors=()
[ -z "${given[--vectors]:-}" ] || vectors=(--vectors "${given[--vectors]}")
structattn_kept_runs

one() { # NAME SEED
    "$python" $here/make_run.py "$1" "$2" --work "$work" --results "$results" \
        ${vectors[@]+"${vectors[@]}"} ${tiny[@]+"${tiny[@]}"}
}

[ ${#names[@]} -gt 0 ] || names=(parser pairs translation)
if [ "${names[*]}" != report ]; then
    planned=$("$python" $here/systems.py "${names[@]}") # a run and the parser that it listens to, a line each
    mapfile -t runs < <(cut -d' ' -f1 <<< "$planned")
    "$python" $here/prepare.py "$work" "${runs[@]}" ${data[@]+"${data[@]}"} ${tiny[@]+"${tiny[@]}"}
    # Those that listen to a parser come last, one at a time: two must not train it at once.
    mapfile -t alone < <(sed -n 's/ $//p' <<< "$planned")
    mapfile -t listening < <(grep -v ' $' <<< "$planned" | cut -d' ' -f1)
    [ ${#alone[@]} = 0 ] || queue "$jobs" "$seeds" "${alone[@]}"
    [ ${#listening[@]} = 0 ] || queue 1 "$seeds" "${listening[@]}"
fi
"$python" $here/report.py "$results" ${tiny[@]+--dest "$work"}
