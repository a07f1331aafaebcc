"""Adam by fused operations against fairseq's."""

import copy

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer

import fairseq_structattn  # noqa: F401  (registers the optimizer)

NAMES = ("adam", "structattn_adam")
SHAPES = ((3, 2), (5,), (1,))


def built(name, parameters, *words):
    parser = options.get_training_parser()
    call = ["data", "--arch", "structattn_rnn", "--optimizer", name, "--lr", "0.05", *words]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, call))
    return build_optimizer(cfg.optimizer, parameters)


def made_parameters(dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def update(optimizer, parameters, seed):
    torch.manual_seed(seed)
    for number, parameter in enumerate(parameters):
        # The last parameter takes part in every other update only.
        parameter.grad = None if number == 2 and seed % 2 else torch.randn(parameter.shape).to(parameter.dtype)
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.precision)])
@pytest.mark.parametrize("words", [(), ("--weight-decay", "0.3", "--adam-betas", "(0.8, 0.9)", "--adam-eps", "0.1")])
def test_updates_are_those_of_fairseq(words, dtype):
    results = []
    for name in NAMES:
        parameters = made_parameters(dtype)
        optimizer = built(name, parameters, *words)
        for seed in range(5):
            update(optimizer, parameters, seed)
        results.append(parameters)
    for expected, actual in zip(*results):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("first, second", [NAMES, NAMES[::-1]])
def test_a_training_goes_on_with_the_other(first, second):
    straight, resumed = made_parameters(), made_parameters()
    optimizer, one = built(first, straight), built(first, resumed)
    for seed in range(3):
        update(optimizer, straight, seed)
        update(one, resumed, seed)
    other = built(second, resumed, "--lr", "0.01")
    other.load_state_dict(copy.deepcopy(one.state_dict()), other.optimizer_config)
    # What fairseq's trainer compares before it resumes.
    assert type(one).__name__ == type(other).__name__
    optimizer.set_lr(0.01)
    for seed in range(3, 6):
        update(optimizer, straight, seed)
        update(other, resumed, seed)
    for expected, actual in zip(straight, resumed):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("most", [0, 0.5, 100])
def test_the_norm_of_gradients_is_that_of_fairseq(most):
    results = []
    for name in NAMES:
        parameters = made_parameters()
        for parameter in parameters:
            parameter.grad = parameter.detach() + 1
        doubled = built(name, parameters).clip_grad_norm(most, lambda norm: 2 * norm)
        results.append([doubled, *(parameter.grad for parameter in parameters)])
    for expected, actual in zip(*results):
        torch.testing.assert_close(actual, expected)


def test_other_implementations_are_refused():
    with pytest.raises(ValueError, match="--use-old-adam chooses an implementation of Adam: leave it out"):
        built("structattn_adam", made_parameters(), "--use-old-adam")


def test_float16_keeps_its_copies_in_float32():
    parameters = made_parameters(torch.float16)
    assert built("structattn_adam", parameters).supports_flat_params
    assert built("structattn_adam", parameters).supports_memory_efficient_fp16


def test_parameters_without_gradients_have_norm_0():
    assert built("structattn_adam", made_parameters()).clip_grad_norm(1.0) == 0
