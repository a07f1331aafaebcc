"""Adagrad with sums of squares that start above 0, as fairseq builds it."""

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer

import fairseq_structattn  # noqa: F401  (registers the optimizer)


def built(*words):
    parser = options.get_training_parser()
    call = ["data", "--arch", "structattn_rnn", "--optimizer", "structattn_adagrad", "--lr", "0.05", *words]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, call))
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    return build_optimizer(cfg.optimizer, [parameter]), parameter


@pytest.mark.parametrize("words, initial", (((), 0.1), (("--initial-accumulator-value", "2"), 2.0)))
def test_steps_count_the_initial_value(words, initial):
    optimizer, parameter = built(*words)
    expected, squares = parameter.detach().clone(), torch.full((2,), initial)
    for gradient in (torch.tensor([0.5, -0.01]), torch.tensor([-2.0, 0.03])):
        parameter.grad = gradient.clone()
        optimizer.step()
        squares += gradient**2
        expected -= 0.05 * gradient / squares.sqrt()
        torch.testing.assert_close(parameter.detach(), expected)


def test_sums_of_squares_are_kept_and_the_rate_is_that_of_the_new_options():
    first, parameter = built()
    parameter.grad = torch.ones(2)
    first.step()
    second, _ = built("--weight-decay", "0.5")
    second.load_state_dict(first.state_dict(), second.optimizer_config)
    (state,) = second.optimizer.state.values()
    torch.testing.assert_close(state["sum"], torch.full((2,), 1.1))
    (group,) = second.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.05, 0.5)


def test_negative_initial_values_are_refused():
    with pytest.raises(ValueError, match=r"--initial-accumulator-value -1.0: must be at least 0"):
        built("--initial-accumulator-value", "-1")
