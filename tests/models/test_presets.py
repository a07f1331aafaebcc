"""Every preset goes through fairseq's own trainer, learns, is saved, loaded again and translates the same."""

import pytest
import torch
from building import PRESETS
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator
from fairseq.trainer import Trainer

SMALL = (
    "--encoder-embed-dim 16 --encoder-hidden-size 16 --encoder-layers 1 --decoder-embed-dim 16 "
    "--decoder-hidden-size 16 --decoder-layers 1 --decoder-out-embed-dim 16 --dropout 0"
).split()


def configure(corpus, arch):
    argv = [str(corpus.bin), "--arch", arch, *SMALL, "--max-tokens", "400", "--cpu", "--distributed-world-size", "1"]
    argv += ["--optimizer", "adam", "--lr", "0.01", "--criterion", "structattn_label_smoothed_cross_entropy"]
    argv += ["--pairwise-l2", "0.005"]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), argv))


def make_trainer(config):
    task = tasks.setup_task(config.task)
    task.load_dataset("train")
    utils.set_torch_seed(1)
    return task, Trainer(config, task, task.build_model(config.model), task.build_criterion(config.criterion))


def batches(task):
    iterator = task.get_batch_iterator(task.dataset("train"), max_tokens=400, seed=1)
    return list(iterator.next_epoch_itr(shuffle=False))


def loss_of(trainer, samples):
    with torch.no_grad():
        losses = [trainer.criterion(trainer.model, sample) for sample in samples]
    return sum(loss.item() for loss, _, _ in losses) / sum(size for _, size, _ in losses)


def save(trainer, path):
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(path, {"train_iterator": {"epoch": 1}})


def translations(model, task, sample):
    generator = SequenceGenerator([model.eval()], task.target_dictionary, beam_size=3, max_len_b=10)
    return [hypotheses[0]["tokens"].tolist() for hypotheses in generator.generate([model], sample)]


@pytest.mark.parametrize("arch", PRESETS)
def test_trains_reloads_and_generates(arch, tiny_corpus, tmp_path):
    task, trainer = make_trainer(configure(tiny_corpus, arch))
    samples = batches(task)
    before = loss_of(trainer, samples)
    for _ in range(16):
        for sample in samples:
            trainer.train_step([sample])
    assert loss_of(trainer, samples) < 0.9 * before
    path = str(tmp_path / "checkpoint.pt")
    save(trainer, path)
    (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path])
    assert type(loaded) is type(trainer.model)
    assert translations(loaded, task, samples[0]) == translations(trainer.model, task, samples[0])


def test_a_checkpoint_continues_exactly(tiny_corpus, tmp_path):
    config = configure(tiny_corpus, "structattn_rnn_crf")
    task, trainer = make_trainer(config)
    samples = batches(task)
    trainer.train_step(samples[:1])
    save(trainer, str(tmp_path / "checkpoint.pt"))
    expected = trainer.train_step(samples[1:2])["loss"], loss_of(trainer, samples)
    _, resumed = make_trainer(config)
    resumed.load_checkpoint(str(tmp_path / "checkpoint.pt"))
    assert (resumed.train_step(samples[1:2])["loss"], loss_of(resumed, samples)) == expected
