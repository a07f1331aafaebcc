"""fairseq-train as one of several processes on the CPU; leaves its parameters, and what they received, in a file.

python distributed_worker.py FILE ARGUMENT ...
"""

import sys

import torch
from fairseq.trainer import Trainer
from fairseq_cli import train


def main(path, arguments):
    received, train_step, trainers = {}, Trainer.train_step, []

    def observed_step(trainer, samples, *args, **kwargs):
        log = train_step(trainer, samples, *args, **kwargs)
        trainers[:] = [trainer]
        for name, parameter in trainer.model.named_parameters():
            received[name] = received.get(name, False) or parameter.grad is not None
        return log

    Trainer.train_step = observed_step
    sys.argv = ["fairseq-train", *arguments]
    train.cli_main()
    torch.save({"parameters": trainers[0].model.state_dict(), "received": received}, path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
