"""Repair of several processes without GPUs; what they compute is tested in tests/cli/test_distributed.py."""

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.models import distributed_fairseq_model  # noqa: E402

from fairseq_structattn.compat import processes  # noqa: E402


@pytest.mark.parametrize("device, named", [("cpu", None), ("meta", [0])])
def test_a_device_is_named_for_what_is_not_on_the_cpu(device, named, monkeypatch):
    monkeypatch.setattr(distributed_fairseq_model, "DistributedDataParallel", lambda module, **options: options)
    processes.repair_processes_on_cpu()
    wrap = distributed_fairseq_model.DistributedDataParallel
    options = wrap(module=torch.nn.Linear(1, 1, device=device), device_ids=[0], bucket_cap_mb=25)
    assert options["device_ids"] == named and options["bucket_cap_mb"] == 25
