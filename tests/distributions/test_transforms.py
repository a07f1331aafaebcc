"""torch.func, torch.compile, shapes without values, and another default device: each gives what eager code does."""

import shutil

import pytest
import torch

from fairseq_structattn.distributions import (
    Bernoulli,
    BinaryTree,
    Categorical,
    IndependentHeads,
    LinearChain,
    OneSpan,
    ProjectiveTree,
    SemiMarkov,
    SpanningTree,
    operations,
    use_backend,
)
from fairseq_structattn.distributions.kernels import numba_compile

LENGTHS = torch.tensor([3, 2])


def draw(*shape):
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(sum(shape)))


POSITIONS, STATES, ARCS, TABLE, TABLES = draw(2, 3), draw(2, 3, 3), draw(2, 4, 3), draw(2, 2), draw(2, 2, 3, 3)
CASES = {
    "categorical": (Categorical, (POSITIONS,)),
    "bernoulli": (Bernoulli, (POSITIONS,)),
    "independent heads": (IndependentHeads, (ARCS,)),
    "binary chain": (LinearChain, (POSITIONS, TABLE)),
    "binary chain with ends": (lambda u, p, e, lengths: LinearChain(u, p, lengths, e, e), (POSITIONS, TABLE, draw(2))),
    "three states": (lambda u, p, lengths: LinearChain(u, p, lengths, num_states=3), (STATES, TABLES)),
    "one span": (OneSpan, (POSITIONS, draw(1))),
    "segments": (SemiMarkov, (draw(2, 3, 2, 3), TABLES)),
    "binary trees": (BinaryTree, (draw(2, 3, 3),)),
    "projective trees": (ProjectiveTree, (ARCS,)),
    "spanning trees, single root": (lambda s, lengths: SpanningTree(s, lengths, "single"), (ARCS,)),
}
WITH_KERNELS = [name for name in CASES if "chain" in name or "trees" in name or name.endswith(("states", "segments"))]

needs_operators = pytest.mark.skipif(not operations.HAS_CUSTOM_OPERATORS, reason="needs PyTorch 2.4")


@pytest.fixture(params=CASES)
def case(request):
    make, potentials = CASES[request.param]
    return lambda *tensors, lengths=LENGTHS: make(*tensors, lengths=lengths), potentials


@pytest.fixture(params=("auto", "reference", "plain"))
def backend(request, monkeypatch):
    """The backend in force; ``plain`` is ``auto`` on a machine without numba."""
    if request.param == "plain":
        monkeypatch.setattr(numba_compile, "available", lambda: False)
    with use_backend("auto" if request.param == "plain" else request.param):
        yield request.param


def quantities(distribution):
    return distribution.log_partition, distribution.marginals, distribution.entropy()


def scalar(results):
    return sum((result * torch.arange(result.numel()).cos().reshape(result.shape)).sum() for result in results)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


# torch.func


def test_grad_and_hessian(case, backend):
    make, potentials = case
    every = tuple(range(len(potentials)))

    def loss(*tensors):
        return scalar(quantities(make(*tensors)))

    leaves = [tensor.clone().requires_grad_() for tensor in potentials]
    close(torch.func.grad(loss, every)(*potentials), torch.autograd.grad(loss(*leaves), leaves))
    expected = torch.autograd.functional.hessian(loss, tuple(potentials))
    close(torch.func.hessian(loss, every)(*potentials), expected)


def test_vmap_over_potentials_lengths_and_gradients(case, backend):
    make, potentials = case
    stacked = [torch.stack((tensor, -tensor, 2 * tensor)) for tensor in potentials]
    lengths = torch.tensor([[3, 2], [1, 3], [0, 2]])

    def results(lengths, *tensors):
        return quantities(make(*tensors, lengths=lengths))

    mapped = torch.func.vmap(results)(lengths, *stacked)
    expected = [results(lengths[i], *(tensor[i] for tensor in stacked)) for i in range(3)]
    close(mapped, tuple(torch.stack(column) for column in zip(*expected)))
    gradient = torch.func.grad(lambda tensor, *others: scalar(results(LENGTHS, tensor, *others)))
    expected = [gradient(*(tensor[i] for tensor in stacked)) for i in range(3)]
    close(torch.func.vmap(gradient)(*stacked), torch.stack(expected))


def test_jacobians(case, backend):
    make, potentials = case
    jacobian = torch.func.jacrev(lambda first: make(first, *potentials[1:]).marginals)(potentials[0])
    expected = torch.autograd.functional.jacobian(lambda first: make(first, *potentials[1:]).marginals, potentials[0])
    close(jacobian, expected)


# torch.compile


@needs_operators
def test_compiled_functions_are_one_graph(case):
    make, potentials = case

    def results(*tensors):
        return quantities(make(*tensors))

    torch._dynamo.reset()
    found = run(torch.compile(results, fullgraph=True, backend="aot_eager"), potentials)
    close(found, run(results, potentials))


@needs_operators
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_best_structures_and_samples_compile_and_are_refused_under_transforms(name):
    make, potentials = CASES[name]

    def structures(*tensors):
        distribution = make(*tensors, lengths=LENGTHS)
        return distribution.argmax, distribution.sample((3,))

    torch._dynamo.reset()
    compiled_structures = torch.compile(structures, fullgraph=True, backend="aot_eager")
    results = []
    for function in (structures, compiled_structures):
        torch.manual_seed(4)
        results.append(function(*potentials))
    close(*results)
    with pytest.raises(RuntimeError, match="compute them outside of the transformed function"):
        torch.func.grad(lambda *tensors: structures(*tensors)[0].sum())(*potentials)


@needs_operators
@pytest.mark.parametrize("name", ("three states", "projective trees"))
def test_plain_pytorch_compiles_too(name):
    make, potentials = CASES[name]

    def results(*tensors):
        return quantities(make(*tensors, lengths=LENGTHS))

    torch._dynamo.reset()
    with use_backend("reference"):
        found = run(torch.compile(results, fullgraph=True, backend="eager"), potentials)
        close(found, run(results, potentials))


@needs_operators
@pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang")), reason="inductor needs a C compiler")
def test_inductor_compiles_a_kernel_into_its_graph():
    torch._dynamo.reset()
    close(run(torch.compile(_entropy, fullgraph=True), (ARCS,)), run(_entropy, (ARCS,)))


def _entropy(scores):
    return (ProjectiveTree(scores).entropy(),)


def run(function, potentials):
    """Results and the gradients of a scalar made of them."""
    leaves = [tensor.clone().requires_grad_() for tensor in potentials]
    results = function(*leaves)
    return [result.detach() for result in results] + list(torch.autograd.grad(scalar(results), leaves))


@needs_operators
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_operators_keep_their_word(name):
    """Schemas, shapes and strides without values, and gradients, by PyTorch's own checks."""
    make, potentials = CASES[name]
    calls, call = [], operations.Operation.__call__
    try:
        operations.Operation.__call__ = lambda self, *inputs: calls.append((self, inputs)) or call(self, *inputs)
        assert make(*potentials, lengths=LENGTHS).marginals.shape == potentials[0].shape
    finally:
        operations.Operation.__call__ = call
    for operation, inputs in calls:
        inputs = [value.requires_grad_() if i < operation.potentials else value for i, value in enumerate(inputs)]
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(operation._operator, inputs, test_utils=checks)


# Shapes without values, and other devices by default


def test_meta_tensors_have_shapes(case):
    make, potentials = case
    expected = quantities(make(*potentials))
    on_meta = [tensor.to("meta").requires_grad_() for tensor in potentials]
    found = quantities(make(*on_meta, lengths=LENGTHS.to("meta")))
    assert [(r.shape, r.dtype, r.device.type) for r in found] == [(r.shape, r.dtype, "meta") for r in expected]
    gradients = torch.autograd.grad(found[2].sum() + found[1].sum(), on_meta)
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in potentials]


@needs_operators
def test_fake_tensors_have_shapes(case):
    from torch._subclasses.fake_tensor import FakeTensorMode

    make, potentials = case
    expected = quantities(make(*potentials))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in potentials]
        found = quantities(make(*fakes, lengths=mode.from_tensor(LENGTHS)))
    assert [(r.shape, r.dtype) for r in found] == [(r.shape, r.dtype) for r in expected]


def test_every_tensor_is_made_on_the_device_of_the_potentials(case, backend):
    make, potentials = case
    leaves = [tensor.clone().requires_grad_() for tensor in potentials]
    expected = members(make(*leaves))
    expected.append(torch.autograd.grad(expected[2].sum(), leaves)[0])
    before = torch.empty(0).device
    torch.set_default_device("meta")
    try:
        found = members(make(*leaves))
        found.append(torch.autograd.grad(found[2].sum(), leaves)[0])
        without_lengths = make(*leaves, lengths=None)
        assert without_lengths.sample((2,)).device.type == without_lengths.log_partition.device.type == "cpu"
    finally:
        torch.set_default_device(before)
    close([result.detach() for result in found], [result.detach() for result in expected])


def members(distribution):
    torch.manual_seed(3)
    sample, argmax = distribution.sample((2,)), distribution.argmax
    return [
        *quantities(distribution), argmax, sample, distribution.log_prob(sample), distribution.kl(distribution),
        distribution.support_size, distribution.position_marginals,
    ]  # fmt: skip
