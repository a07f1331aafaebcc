import weakref

import pytest
import torch

from fairseq_structattn.modules.repeated_product import RepeatedLinear, RepeatedProduct


@pytest.fixture
def factors():
    torch.manual_seed(0)
    matrix = torch.randn(2, 4, 3, dtype=torch.double, requires_grad=True)
    steps = [torch.randn(2, 1, 4, dtype=torch.double, requires_grad=True) for _ in range(3)]
    return matrix, steps


def chained(product, steps):
    # Each factor depends on the product before it, as in a decoder.
    total, carried = 0, 0
    for left in steps:
        result = product(left + carried)
        carried = result.mean()
        total = total + result.pow(2).sum()
    return total


def test_values_and_gradients_are_those_of_single_products(factors):
    matrix, steps = factors
    expected = torch.autograd.grad(chained(lambda left: torch.bmm(left, matrix), steps), (matrix, *steps))
    actual = torch.autograd.grad(chained(RepeatedProduct(matrix, 3, 2), steps), (matrix, *steps))
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other)


def test_addends_are_added_and_have_the_gradient_of_their_results(factors):
    matrix, steps = factors
    addends = torch.randn(3, 2, 1, 3, dtype=torch.double, requires_grad=True)
    product, terms = RepeatedProduct(matrix, 3, 2, addends), iter(addends)
    inputs = (matrix, addends, *steps)
    actual = torch.autograd.grad(chained(product, steps), inputs)
    expected = torch.autograd.grad(chained(lambda left: next(terms) + torch.bmm(left, matrix), steps), inputs)
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other)


def test_the_graph_is_freed_without_a_backward_pass(factors):
    class Hook:
        def __call__(self, grad):
            return grad

    matrix, steps = factors
    hook, product = Hook(), RepeatedProduct(matrix, 3, 2)
    product(steps[0]).register_hook(hook)
    total, alive = chained(product, steps[1:]), weakref.ref(hook)
    del hook, product, total
    assert alive() is None


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_for_many_inputs_is_that_layer(factors, bias):
    linear = torch.nn.Linear(4, 3, bias=bias).double()
    steps = [step.detach().squeeze(1).requires_grad_() for step in factors[1]]
    inputs = (*linear.parameters(), *steps)
    expected = torch.autograd.grad(chained(linear, steps), inputs)
    actual = torch.autograd.grad(chained(RepeatedLinear(linear, 3, 2), steps), inputs)
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other)


def test_a_backward_pass_leaves_nothing_for_the_next(factors):
    matrix, steps = factors
    total = chained(RepeatedProduct(matrix, 3, 2), steps)
    (expected,) = torch.autograd.grad(total, matrix, retain_graph=True)
    torch.autograd.grad(total, steps, retain_graph=True)  # stops short of the matrix
    (again,) = torch.autograd.grad(total, matrix)
    assert torch.equal(again, expected)


def test_products_that_are_not_used_do_not_count(factors):
    matrix, steps = factors
    product = RepeatedProduct(matrix, 3, 2)
    unused, used = product(steps[0]), product(steps[1])
    assert unused.requires_grad
    (gradient,) = torch.autograd.grad(used.sum(), matrix)
    torch.testing.assert_close(gradient, steps[1].detach().sum(1).unsqueeze(-1).expand_as(matrix))


@pytest.mark.precision
def test_autocast_makes_the_dtype_of_any_product(factors):
    matrix, left = factors[0].detach().float().requires_grad_(), factors[1][0].detach().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = RepeatedProduct(matrix, 1, 2)(left)
    assert result.dtype == torch.bfloat16
    result.sum().backward()
    assert matrix.grad.dtype == torch.float32
    torch.testing.assert_close(matrix.grad, left.sum(1).unsqueeze(-1).expand_as(matrix), rtol=1e-2, atol=1e-2)


def test_second_derivatives_are_refused(factors):
    matrix, steps = factors
    with pytest.raises(RuntimeError, match="differentiable once: leave out create_graph=True"):
        torch.autograd.grad(chained(RepeatedProduct(matrix, 3, 2), steps), matrix, create_graph=True)
