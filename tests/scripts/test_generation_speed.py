"""scripts/benchmark/generation_speed.py: every system translates the same sentences into as many words."""

import json

import pytest
from helpers_scripts import load_script


@pytest.mark.filterwarnings("ignore")
def test_systems_make_as_many_words(tiny_corpus, tmp_path, capsys):
    speed = load_script("benchmark/generation_speed.py")
    output = tmp_path / "new" / "results.json"
    systems = ["lstm", "luong_general_input_feeding", "bahdanau"]
    arguments = [str(tiny_corpus.bin), "--device", "cpu", "--reduce", "32", "--batches", "2", "--batch-size", "4"]
    speed.main([*arguments, "--longest", "5", "--systems", ",".join(systems), "--output", str(output)])
    assert "words/s" in capsys.readouterr().out
    content = json.loads(output.read_text(encoding="utf-8"))
    assert [row["system"] for row in content["rows"]] == systems
    assert {row["job"] for row in content["rows"]} == {
        "translation against lstm, beam 5, 4 sentences, reduced 32 times"
    }
    with pytest.raises(SystemExit, match="the validation set has 20 sentences, a batch of --batch-size 21 needs more"):
        speed.main([*arguments, "--systems", "lstm", "--batch-size", "21"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("system", ["lstm", "bahdanau"])
def test_translations_have_the_length_asked_for(system, tiny_corpus):
    speed = load_script("benchmark/generation_speed.py")
    device = speed.torch.device("cpu")
    sizes = speed.model_options("equal", 32)
    generating = speed.Generating(str(tiny_corpus.bin), speed.SYSTEMS[system].split() + sizes, 3, device)
    (batch,) = speed.batches_of(generating, 1, 4, 5, device)
    found = []
    step = generating.task.inference_step
    generating.task.inference_step = lambda *given: found.append(step(*given))
    generating.update(batch)
    lengths = {len(hypothesis["tokens"]) for sentence in found[0] for hypothesis in sentence}
    assert lengths == {batch["words"] + 1} and len(generating.seconds) == 1
