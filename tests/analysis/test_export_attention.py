"""analysis/export_attention.py: every architecture, and that batches, beams and subsets change nothing."""

import json
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")

import building
from building import DICTIONARY, PRESETS, TRANSFORMERS, build, sentences
from fairseq import sequence_generator
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_structattn.analysis import export_attention
from fairseq_structattn.analysis.forced_attention import segments
from fairseq_structattn.distributions import LinearChain, ProjectiveTree
from fairseq_structattn.modules import StructuredAttention

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
WITH_ATTENTION = [name for name in (*PRESETS, *TRANSFORMERS) if name != "structattn_rnn_vanilla"]
SOURCE_LENGTHS = (5, 1, 8, 2, 3, 8, 2, 6, 4, 1)
TARGET_LENGTHS = (3, 4, 1, 6, 2, 5, 2, 7, 1, 3)
# float32 sums depend a little on the shape of the batch.
CLOSE = 2e-6


def pairs(source_lengths=SOURCE_LENGTHS, target_lengths=TARGET_LENGTHS, with_target=True):
    source, target = sentences(source_lengths), sentences(target_lengths, seed=1)
    sides = [source, np.array(source_lengths), DICTIONARY]
    if with_target:
        sides += [target, np.array(target_lengths), DICTIONARY]
    return LanguagePairDataset(*sides, shuffle=False)


TASK = TranslationTask(TranslationConfig(max_source_positions=1024, max_target_positions=1024), DICTIONARY, DICTIONARY)


def stock(arch):
    torch.manual_seed(3)
    sizes = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "decoder_out_embed_dim": 8}
    options = Namespace(arch=arch, criterion="", max_source_positions=64, max_target_positions=64, **sizes)
    ARCH_CONFIG_REGISTRY[arch](options)
    return ARCH_MODEL_REGISTRY[arch].build_model(options, building.TASK).eval()


def export(models, dataset=None, **options):
    beam = {"beam": options.pop("beam", 3), "nbest": options.pop("nbest", 1), "max_len_b": 7}
    search = GenerationConfig(**beam, **options.pop("search", {}))
    models = models if isinstance(models, list) else [models]
    dataset = pairs() if dataset is None else dataset
    return list(export_attention.export(models, TASK, dataset, search=search, log_format="none", **options))


def assert_same(records, others):
    assert len(records) == len(others) > 0
    for one, other in zip(records, others):
        one, other = dict(vars(one)), dict(vars(other))
        trees = [vars(record.pop("tree") or export_attention.SourceTree([], [])) for record in (one, other)]
        for name in ("score", "weights", "marginals"):
            torch.testing.assert_close(
                *(torch.tensor(record.pop(name) or []) for record in (one, other)), atol=CLOSE, rtol=0
            )
        assert one == other
        assert trees[0]["heads"] == trees[1]["heads"]
        torch.testing.assert_close(*(torch.tensor(tree["marginals"]) for tree in trees), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "generated"])
@pytest.mark.parametrize("arch", WITH_ATTENTION)
def test_batches_change_nothing(arch, forced):
    model = build(arch)
    alone = export(model, forced=forced, nbest=2, batch_size=1)
    assert_same(alone, export(model, forced=forced, nbest=2, batch_size=7))
    assert [(one.id, one.rank) for one in alone] == [
        (number, rank) for number in range(len(SOURCE_LENGTHS)) for rank in range(1 if forced else 2)
    ]


@pytest.mark.parametrize(
    "options", [{}, {"attention_distribution": "semi-markov"}, {"source_attention": "binary-tree"}]
)
def test_windows_and_token_batches_change_nothing(monkeypatch, options):
    model = build("structattn_rnn_crf", **options)
    whole = export(model, nbest=3, batch_size=4)
    monkeypatch.setattr(export_attention, "WINDOW", 3)
    assert_same(whole, export(model, nbest=3, max_tokens=11))


def test_subset_and_nbest_choose_among_the_same_records():
    model = build("structattn_rnn_treedec")
    everything = export(model, nbest=3)
    chosen = export(model, ids=[7, 2, 7, 3], nbest=2)
    assert_same(chosen, [one for one in everything if one.id in (2, 3, 7) and one.rank < 2])


@pytest.mark.parametrize("arch", WITH_ATTENTION)
def test_attention_to_a_translation_is_what_generation_returned(arch):
    model, dataset = build(arch), pairs()
    records = iter(export(model, dataset, nbest=3, batch_size=4))
    generator = sequence_generator.SequenceGenerator([model], DICTIONARY, beam_size=3, max_len_b=7)
    for number in range(len(dataset)):
        (hypotheses,) = generator.generate([model], dataset.collater([dataset[number]]))
        for rank, hypothesis in enumerate(hypotheses):
            record = next(records)
            assert (record.id, record.rank) == (number, rank)
            assert record.target == [DICTIONARY[token] for token in hypothesis["tokens"].tolist()]
            assert record.score == pytest.approx(float(hypothesis["score"]), abs=CLOSE)
            torch.testing.assert_close(torch.tensor(record.weights), hypothesis["attention"].t(), atol=CLOSE, rtol=0)
    assert next(records, None) is None


def posteriors(model, dataset):
    """Each pair by itself, without any padding: its posterior and the trees over its source."""
    for number in range(len(dataset)):
        net_input = dataset.collater([dataset[number]])["net_input"]
        yield net_input["src_tokens"], model(**net_input, return_posterior=True)[1]["posterior"]


def heads_of(arcs):
    return arcs.argmax(-2).tolist()


@pytest.mark.parametrize("arch", WITH_ATTENTION)
def test_marginals_segments_and_trees_are_those_of_the_distribution(arch):
    model, dataset = build(arch), pairs()
    for record, (source, posterior) in zip(export(model, dataset, forced=True), posteriors(model, dataset)):
        marginals = StructuredAttention.position_marginals(posterior)[0]
        torch.testing.assert_close(torch.tensor(record.marginals), marginals, atol=CLOSE, rtol=0)
        assert (record.segments is not None) == isinstance(posterior, LinearChain)
        assert (record.trees is not None) == isinstance(posterior, ProjectiveTree)
        if record.segments is not None:
            marked = torch.zeros_like(marginals)
            for step, runs in enumerate(record.segments):
                for start, end in runs:
                    marked[step, start:end] = 1
            assert torch.equal(marked, posterior.argmax[0])
        if record.trees is not None:
            assert record.trees == heads_of(posterior.argmax[0])
            dependents = posterior.marginals[0, :, 1:].sum(-1)
            torch.testing.assert_close(marginals[:, :-1], dependents, atol=CLOSE, rtol=0)
            assert not marginals[:, -1].any()
        assert (record.tree is not None) == (model.encoder.source_attn is not None)
        if record.tree is not None:
            found = model.encoder.source_attention(source).distribution
            assert record.tree.heads == heads_of(found.argmax[0])
            expected = found.marginals[0]
            torch.testing.assert_close(torch.tensor(record.tree.marginals), expected, atol=CLOSE, rtol=0)


def test_runs_of_marks():
    marks = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]])
    assert segments(marks) == [[(0, 2), (3, 4)], [], [(0, 4)], [(1, 2)]]


def test_source_and_target_are_in_reading_order_and_the_reference_beside():
    dataset = pairs()
    for record in export(build("structattn_rnn_luong_dot"), dataset, forced=True):
        source, target = ([DICTIONARY[token] for token in dataset[record.id][side]] for side in ("source", "target"))
        assert (record.source, record.target, record.reference) == (source, target, target[:-1])
        assert record.forced and record.rank == 0
        assert torch.tensor(record.weights).sum(-1).tolist() == pytest.approx([1.0] * len(target))


PAD, EOS, A, B, C = DICTIONARY.pad(), DICTIONARY.eos(), *range(DICTIONARY.nspecial, DICTIONARY.nspecial + 3)
MARKED = [[A, PAD, B, EOS, C, EOS], [PAD, A, B, C, EOS], [EOS, EOS], [A, B, C, EOS], [C, PAD, PAD, EOS]]


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "generated"])
@pytest.mark.parametrize("arch", ["crf", "treedec", "tree", "luong_general", "sigmoid"])
def test_words_that_only_look_like_marks_keep_their_place(arch, forced):
    model = build(f"structattn_rnn_{arch}")
    tokens = [torch.tensor(sentence) for sentence in MARKED]
    sizes = np.array([len(sentence) for sentence in MARKED])
    dataset = LanguagePairDataset(tokens, sizes, DICTIONARY, tokens, sizes, DICTIONARY, shuffle=False)
    records = export(model, dataset, forced=forced, batch_size=5)
    assert_same(records, export(model, dataset, forced=forced, batch_size=1))
    for record, sentence in zip(records, MARKED):
        assert record.source == [DICTIONARY[token] for token in sentence]
        assert record.reference == record.source[:-1] and (record.target == record.source or not forced)
        for row, other in zip(record.weights, record.marginals):
            assert len(row) == len(other) == len(sentence)
    # The model takes the first word of one sentence for padding: the others have what they have without it.
    with_mark, without = export(model, dataset, ids=[1, 3])
    same = {"id": 1, "source": with_mark.source, "reference": with_mark.reference}
    assert_same([with_mark], [one_word_later(replace(without, **same))])


def one_word_later(record):
    """What is known of the words of a record, behind a word of which nothing is known."""

    def later(heads):
        return [0] + [head + 1 if head else 0 for head in heads]

    tree = record.tree
    if tree is not None:
        root, *others = ([0.0, *row] for row in tree.marginals)
        tree = export_attention.SourceTree(later(tree.heads), [root, [0.0] * len(root), *others])
    return replace(
        record,
        weights=[[0.0, *row] for row in record.weights],
        marginals=[[0.0, *row] for row in record.marginals],
        segments=record.segments and [[(start + 1, end + 1) for start, end in runs] for runs in record.segments],
        trees=record.trees and list(map(later, record.trees)),
        tree=tree,
    )


@pytest.mark.parametrize("options", [{}, {"adaptive_softmax_cutoff": [8, 16]}], ids=["softmax", "adaptive"])
def test_score_of_a_reference_is_its_mean_log_probability(options):
    model, dataset = build("structattn_rnn_crf", **options), pairs()
    for record in export(model, dataset, forced=True, batch_size=5):
        with torch.no_grad():
            log_probs = building.log_probs(model, dataset.collater([dataset[record.id]]))
        assert record.score == pytest.approx(float(log_probs.mean()), abs=CLOSE)


# --- ensembles and models of fairseq ---


@pytest.mark.parametrize("third", ["structattn_rnn_tree", "structattn_rnn_vanilla"])
def test_weights_of_an_ensemble_are_averaged_as_fairseq_does(third):
    models, dataset = [build("structattn_rnn_crf"), stock("lstm"), build(third)], pairs()
    records = export(models, dataset, nbest=2, batch_size=4)
    generator = sequence_generator.SequenceGenerator(models, DICTIONARY, beam_size=3, max_len_b=7)
    for record in records:
        (hypotheses,) = generator.generate(models, dataset.collater([dataset[record.id]]))
        expected = hypotheses[record.rank]["attention"].t()
        torch.testing.assert_close(torch.tensor(record.weights), expected, atol=CLOSE, rtol=0)
        assert record.marginals is record.segments is record.tree is None


def test_marginals_of_an_ensemble_are_averaged():
    models = [build("structattn_rnn_crf"), build("structattn_rnn_sigmoid", seed=2)]
    both, *single = (export(chosen, forced=True) for chosen in (models, *models))
    for record, *alone in zip(both, *single):
        mean = sum(torch.tensor(one.marginals) for one in alone) / 2
        torch.testing.assert_close(torch.tensor(record.marginals), mean, atol=CLOSE, rtol=0)
        assert record.segments is None


def test_score_of_a_reference_under_an_ensemble_is_that_of_fairseq():
    from fairseq.sequence_scorer import SequenceScorer

    models, dataset = [build("structattn_rnn_crf"), stock("lstm")], pairs()
    for record in export(models, dataset, forced=True, batch_size=6):
        sample = dataset.collater([dataset[record.id]])
        ((expected,),) = SequenceScorer(DICTIONARY).generate(models, sample)
        assert record.score == pytest.approx(float(expected["score"]), abs=CLOSE)
        torch.testing.assert_close(torch.tensor(record.weights), expected["attention"], atol=CLOSE, rtol=0)


@pytest.mark.parametrize("arch", ["lstm", "transformer_tiny"])
def test_stock_models_tell_their_weights_whatever_the_batch(arch):
    model, dataset = stock(arch), pairs()
    records = export(model, dataset, batch_size=7)
    assert_same(export(model, dataset, batch_size=1), records)
    generator = sequence_generator.SequenceGenerator([model], DICTIONARY, beam_size=3, max_len_b=7)
    for record in records:
        (hypotheses,) = generator.generate([model], dataset.collater([dataset[record.id]]))
        expected = hypotheses[0]["attention"].t()
        torch.testing.assert_close(torch.tensor(record.weights), expected, atol=CLOSE, rtol=0)
        assert record.marginals is record.segments is record.trees is record.tree is None


# --- streams ---


def test_records_come_while_later_batches_wait(monkeypatch):
    monkeypatch.setattr(export_attention, "WINDOW", 4)
    done, sentences_of = [], export_attention._sentences

    def watched(models, task, dataset, batch, *others):
        done.extend(batch)
        return sentences_of(models, task, dataset, batch, *others)

    monkeypatch.setattr(export_attention, "_sentences", watched)
    records = export_attention.export([build("structattn_rnn")], TASK, pairs(), batch_size=2, log_format="none")
    for number in range(len(SOURCE_LENGTHS)):
        assert next(records).id == number
        assert set(done) <= set(range(4 * (number // 4) + 4))
    assert sorted(done) == list(range(len(SOURCE_LENGTHS)))


# --- refusals ---


@pytest.mark.parametrize("forced", [True, False])
def test_models_without_attention_are_refused(forced):
    with pytest.raises(export_attention.ExportError, match="no attention.*structattn_rnn_vanilla"):
        export(build("structattn_rnn_vanilla"), forced=forced)


def test_sentences_that_there_are_not_are_refused():
    with pytest.raises(export_attention.ExportError, match="--ids 10: .* 0 to 9"):
        export(build("structattn_rnn"), ids=[3, 10])


def test_references_are_needed_only_by_those_who_force_them():
    model, dataset = build("structattn_rnn"), pairs(with_target=False)
    assert all(record.reference is None for record in export(model, dataset))
    with pytest.raises(export_attention.ExportError, match="--forced: the data has no references"):
        export(model, dataset, forced=True)
    with pytest.raises(export_attention.ExportError, match="--prefix-size 1: the data has no references"):
        export(model, dataset, search={"prefix_size": 1})


def test_more_translations_than_the_beam_are_refused():
    with pytest.raises(export_attention.ExportError, match="--nbest 4: a beam of 3"):
        export(build("structattn_rnn"), nbest=4)


def test_sentences_that_do_not_fit_are_named():
    with pytest.raises(export_attention.ExportError, match="--max-tokens 7: the longest sentence has 8"):
        export(build("structattn_rnn"), max_tokens=7)
    short = build("structattn_rnn", max_source_positions=7)
    with pytest.raises(export_attention.ExportError, match="sentence 2: its source has 8 tokens.* take 7"):
        export(short)
    short = build("structattn_rnn", max_target_positions=6)
    with pytest.raises(export_attention.ExportError, match="sentence 7: its target has 7 tokens.* take 6"):
        export(short, forced=True)
    assert export(short)


def test_empty_sets():
    model = build("structattn_rnn")
    assert export(model, ids=[]) == []
    assert export(model, pairs((), ())) == []


# --- the command ---


def run_script(arguments):
    export_attention.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(run_fairseq, tiny_corpus, tmp_path_factory):
    """A chain in the decoder, trees over the source, trained for a moment."""
    folder = tmp_path_factory.mktemp("trained")
    run_fairseq(
        "train", tiny_corpus.bin, "--user-dir", PACKAGE, "--arch", "structattn_rnn_tree",
        "--attention-distribution", "linear-chain", "--attention-normalize", "sum", "--attention-scale", "2",
        "--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "0.02", "--batch-size", "16",
        "--max-epoch", "3", "--cpu", "--no-epoch-checkpoints", "--disable-validation", "--save-dir", folder,
    )  # fmt: skip
    return folder / "checkpoint_last.pt"


@pytest.mark.slow
def test_command_exports_what_fairseq_generate_prints(run_fairseq, tiny_corpus, trained, tmp_path):
    records_path, trees_path = tmp_path / "records.jsonl", tmp_path / "trees.conllu"
    search = ["--beam", "4", "--nbest", "2", "--lenpen", "0.6", "--max-len-b", "9"]
    run_script(
        ["--path", trained, "--data", tiny_corpus.bin, "--cpu", "--batch-size", "7", "--output", records_path]
        + ["--conllu", trees_path, "--log-format", "none", "--reference", tiny_corpus.raw / "test.tgt", *search]
    )
    printed = run_fairseq(
        "generate", tiny_corpus.bin, "--user-dir", PACKAGE, "--path", trained, "--cpu", "--print-alignment", "soft",
        "--batch-size", "16", *search,
    )  # fmt: skip
    records = [json.loads(line) for line in records_path.read_text(encoding="utf-8").splitlines()]
    hypotheses, alignments = by_sentence(printed, "H"), by_sentence(printed, "A")
    references = (tiny_corpus.raw / "test.tgt").read_text().splitlines()
    assert [(one["id"], one["rank"]) for one in records] == [(i, rank) for i in range(100) for rank in range(2)]
    for one in records:
        score, text = hypotheses[one["id"]][one["rank"]].split("\t")
        assert " ".join(one["target"][:-1]) == text
        # fairseq prints logarithms to base 2
        assert one["score"] == pytest.approx(float(score) * np.log(2), abs=1e-5)
        rows = [[float(p) for p in row.split(",")] for row in alignments[one["id"]][one["rank"]].split()]
        torch.testing.assert_close(torch.tensor(one["weights"]), torch.tensor(rows), atol=1e-5, rtol=0)
        assert " ".join(one["reference"]) == references[one["id"]]
        assert one["segments"] is not None and len(one["tree"]["heads"]) == len(one["source"]) - 1
    trees = trees_path.read_text(encoding="utf-8")
    assert re.findall("# sent_id = (.*)", trees) == [str(number) for number in range(100)]


def by_sentence(printed, kind):
    found = {}
    for number, rest in re.findall(rf"^{kind}-(\d+)\t(.*)$", printed, re.MULTILINE):
        found.setdefault(int(number), []).append(rest)
    return found


@pytest.mark.slow
def test_unknown_words_are_told_by_the_file_they_came_from(tiny_corpus, trained, tmp_path):
    text = tmp_path / "test.src"
    lines = [line.replace("w0", "猫") for line in (tiny_corpus.raw / "test.src").read_text().splitlines()]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["--path", trained, "--data", tiny_corpus.bin, "--cpu", "--sentences", "5", "--forced"]
    command += ["--output", tmp_path / "records.jsonl", "--log-format", "none", "--source", text]
    run_script(command)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [" ".join(one["source"]) for one in records] == [line + " </s>" for line in lines[:5]]
    text.write_text("\n".join(lines[:2] + ["one too many words " + lines[2]] + lines[3:]) + "\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"--source .*, line 3: .* tokens"):
        run_script(command)
    text.write_text("\n".join(lines[:9]), encoding="utf-8")
    with pytest.raises(SystemExit, match="9 lines for the 100 sentences"):
        run_script(command)
    # The exports that failed have left the earlier one alone.
    assert len((tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.slow
def test_what_cannot_be_loaded_is_told_in_one_line(run_fairseq, tiny_corpus, trained, tmp_path, capsys):
    """Data of other dictionaries, and files that are no checkpoints."""
    for language in ("src", "tgt"):
        (tmp_path / f"test.{language}").write_text("one two three\n")
    run_fairseq(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--trainpref", tmp_path / "test", "--testpref",
        tmp_path / "test", "--destdir", tmp_path / "other", "--workers", "1",
    )  # fmt: skip
    (tmp_path / "text.pt").write_text("no checkpoint")
    (tmp_path / "cut.pt").write_bytes(trained.read_bytes()[:2000])
    (tmp_path / "empty").mkdir()
    for path, data, message in (
        (trained, tmp_path / "other", "--data .*other: its dictionaries are not those of the training, which had 24"),
        (tmp_path / "text.pt", tiny_corpus.bin, "text.pt: no checkpoint that can be loaded"),
        (tmp_path / "cut.pt", tiny_corpus.bin, "cut.pt: no checkpoint that can be loaded"),
        (trained, tmp_path / "empty", "--data .*empty: no dictionaries in it"),
    ):
        with pytest.raises(SystemExit, match=message) as ended:
            run_script(["--path", path, "--data", data, "--cpu", "--output", tmp_path / "new" / "a.jsonl"])
        assert ended.value.code == 2 and not (tmp_path / "new").exists()
    with pytest.raises(SystemExit, match="--gen-subset dev: .*; name a subset"):
        run_script(["--path", trained, "--data", tiny_corpus.bin, "--gen-subset", "dev", "--output", tmp_path / "a"])


@pytest.mark.slow
def test_nothing_is_left_where_there_are_no_trees(tiny_corpus, trained, tmp_path):
    command = ["--data", tiny_corpus.bin, "--cpu", "--output", tmp_path / "a.jsonl", "--conllu", tmp_path / "a.conllu"]
    with pytest.raises(SystemExit, match="--conllu .*a.conllu: needs a single model"):
        run_script(["--path", f"{trained}:{trained}", *command])
    with pytest.raises(SystemExit, match="--conllu .*a.jsonl: the file that --output names, too"):
        run_script(["--path", trained, *command[:-1], tmp_path / "a.jsonl"])
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named(tmp_path):
    here = ["--data", tmp_path, "--output", tmp_path / "a.jsonl"]
    with pytest.raises(SystemExit, match="--path .*nowhere.pt: no such checkpoint"):
        run_script(["--path", tmp_path / "nowhere.pt", *here])
    with pytest.raises(SystemExit):
        export_attention.parse_arguments(["--path", "a.pt", *map(str, here), "--batch-size", "0"])
