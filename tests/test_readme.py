"""The Python of the README runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def code_under(heading):
    """The indented lines of a section, without their indentation."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ") or not line]
    return "\n".join(line[4:] for line in lines)


def run(program):
    return subprocess.run([sys.executable, "-c", program], cwd=str(ROOT), stdout=subprocess.PIPE, text=True, check=True)


def test_distributions():
    program = code_under("Distributions on their own") + "\nprint(chain.marginals.shape, chain.marginals[:, 40:].any())"
    assert run(program).stdout.strip() == "torch.Size([32, 50]) tensor(False)"


@pytest.mark.slow
def test_extending():
    checks = """
from argparse import Namespace
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
options = Namespace(arch="cautious_rnn")
ARCH_CONFIG_REGISTRY["cautious_rnn"](options)
task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
attention = ARCH_MODEL_REGISTRY["cautious_rnn"].build_model(options, task).decoder.attention
print(attention.distribution.__name__, attention.normalize, [tuple(table.shape) for table in attention.tables.values()])
"""
    assert run(code_under("Extending") + checks).stdout.strip().splitlines()[-1] == "CautiousSigmoid sum [(1,)]"


def test_looking_inside():
    given = """
import sys
from argparse import Namespace
from building import batch, build, sentences
model = Namespace(models=[build("structattn_rnn_tree", attention_distribution="linear-chain")])
src_tokens, src_lengths, prev_output_tokens = batch(sentences((5, 3)), sentences((2, 4)))["net_input"].values()
"""
    program = code_under("Looking inside")
    program = given + program[program.index("rnn = ") :]
    program += "\nprint(*map(len, (posterior.entropy(), extra['attn'][0], heads.vectors)), posterior.argmax.shape[1:])"
    assert run(program).stdout.strip().splitlines()[-1] == "2 2 2 torch.Size([4, 5])"
