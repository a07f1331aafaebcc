"""scripts/benchmark/first_use.py: rows from an empty cache, and that only a named file is written."""

import json

import numpy as np
import pytest
import torch
from helpers_scripts import load_script

from fairseq_structattn.distributions.kernels import numba_compile

pytest.importorskip("numba")


def test_each_first_use_is_a_row(tmp_path, monkeypatch, capsys):
    first_use = load_script("benchmark/first_use.py")
    assert len(first_use.first_uses()) == 12

    def part(item):
        return item + 1

    part = numba_compile.subroutine(part)
    kernel = numba_compile.kernel(lambda first, stride, items: part(items[0]))
    uses = {"first": lambda: kernel(0, 1, np.ones(1)), "again": lambda: kernel(0, 1, np.ones(1))}
    monkeypatch.setattr(first_use, "first_uses", lambda: uses)
    monkeypatch.setenv("STRUCTATTN_CACHE", str(tmp_path / "of_the_user"))
    output, threads = tmp_path / "new" / "results.json", torch.get_num_threads()
    first_use.main(["--kernels", "3", "--output", str(output)])
    torch.set_num_threads(threads)
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [row["job"] for row in rows] == ["first", "again", "all"] and rows[1]["seconds"] == 0
    assert "part" in capsys.readouterr().out and not (tmp_path / "of_the_user").exists()
