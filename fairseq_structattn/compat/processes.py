"""Several processes: PyTorch's wrapper of a model."""

import functools

from fairseq.models import distributed_fairseq_model

from .deciding import put_in_place


def repair_processes_on_cpu():
    """Several processes without GPUs.

    Symptom: with the default `--ddp-backend pytorch_ddp` they end in "DistributedDataParallel device_ids and
    output_device arguments only work with single-device/multiple-device GPU modules": fairseq always passes a device.
    Detection: none is needed; no version of the wrapper accepts a device for a model on the CPU.
    Repair: no device is passed for models on the CPU.
    """
    put_in_place(distributed_fairseq_model, "DistributedDataParallel", _without_device_on_cpu)


def _without_device_on_cpu(wrapper):
    @functools.wraps(wrapper, updated=())
    def wrap(module, **options):
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            options.update(device_ids=None, output_device=None)
        return wrapper(module=module, **options)

    return wrap
