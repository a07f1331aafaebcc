"""Kernels for log Z and marginals as operations that PyTorch can differentiate, transform and trace.

A kernel maps numbers to numbers. From a forward kernel and a kernel for its gradient, :class:`Operation` makes

* an ``autograd.Function`` that can be differentiated any number of times. The gradient of log Z is the marginals, which
  the kernels differentiate once more; the specification in plain PyTorch computes all higher derivatives;
* its counterpart for ``torch.func``, whose ``vmap`` calls the kernels once for each item;
* custom operators (``torch.library.custom_op``, PyTorch 2.4) with shape functions, which ``torch.compile``,
  ``torch.export`` and fake tensors accept. With an older PyTorch, ``torch.compile`` leaves kernels out of the graph.
"""

import functools
import inspect
from typing import TYPE_CHECKING, Callable, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef  # PyTorch 2.4

Tensors = Tuple[Optional[Tensor], ...]

HAS_CUSTOM_OPERATORS = hasattr(torch.library, "custom_op")


def is_compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is tracing."""
    return _is_compiling()


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is running."""
    return _is_transformed()


def is_traced(*tensors: Optional[Tensor]) -> bool:
    """Whether tensors may have no values, as under ``torch.compile``, or a mode or subclass intercepts operators."""
    if _is_compiling() or _modes() > 0:
        return True
    # A loop is faster than any(), and this function is called several times a step.
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return True
    return False


def has_values(*tensors: Tensor) -> bool:
    """Whether Python may read the values of the tensors. It may not while code is traced, under a transform of
    ``torch.func`` or on the device ``meta``."""
    if _is_compiling() or _is_transformed() or _modes() > 0:
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN or tensor.is_meta:
            return False
    return True


def uniform(
    shape: Sequence[int],
    device: torch.device,
    generator: Optional[torch.Generator],
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Uniform numbers in [0, 1) on ``device``, from a generator of any device; ``None``: PyTorch's default."""
    source = device if generator is None else generator.device
    return torch.rand(tuple(shape), dtype=dtype, device=source, generator=generator).to(device)


def value_and_gradients(function: Callable, *tensors: Tensor) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """A function's value ``[batch]`` and the gradients of its sum, by ``torch.func``. For code that is transformed or
    traced, where ``torch.autograd.grad`` may not be called."""
    value, pull = torch.func.vjp(function, *tensors)  # type: ignore[misc]
    return value, pull(torch.ones_like(value))


def value_and_marginals(function: Callable, *tensors: Tensor) -> Tuple[Tensor, Tuple[Tensor, ...]]:
    """A function's value ``[batch]`` and the gradients of its sum. Both carry a graph if gradients are enabled and a
    tensor requires them."""
    if not has_values(*tensors):
        return value_and_gradients(function, *tensors)
    track = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with torch.inference_mode(False), torch.enable_grad():
        # requires_grad is never set on the caller's tensor, and a view made in inference mode has no graph: without a
        # graph to be kept, or a gradient to be taken, a tensor is detached first.
        leaves = [t if track and t.requires_grad else usable(t).detach().requires_grad_() for t in tensors]
        value = function(*leaves)
        total = value.sum() + leaves[0].flatten()[:0].sum()
        found = torch.autograd.grad(total, leaves, create_graph=track, allow_unused=True)
        # The value may not depend on an empty tensor, which then serves as its own gradient, with a graph.
        gradients = tuple(leaf if leaf.numel() == 0 else gradient for gradient, leaf in zip(found, leaves))
    return (value, gradients) if track else (value.detach(), tuple(gradient.detach() for gradient in gradients))


def usable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that autograd may save if the tensor was made in inference mode."""
    return tensor.clone() if not _is_compiling() and tensor.is_inference() else tensor


_PLAIN = (Tensor, torch.nn.Parameter, type(None))
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
_is_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_not_compiled = getattr(getattr(torch, "compiler", None), "disable", lambda function: function)


class Operation:
    """Kernels of one distribution: ``operation(*potentials, *settings)`` returns log Z and the marginals of all parts.

    A subclass provides the attributes and methods below. Its *results* are log Z and marginals, which can be
    differentiated; its *outputs* are the results and whatever else the gradient kernel reads.

    Attributes:
        name: name of the custom operator, in the namespace ``structattn``.
        arguments: types and names of the arguments as in an operator's schema, potentials first.
        potentials: number of arguments that are potentials.
        results: number of results.
        outputs: number of outputs, including the results.
        kept: indices of the outputs that ``gradient`` reads; the others are ``None`` there.
        wide: whether the specification is computed in float64, as the kernels are.
    """

    name: str
    arguments: str
    potentials: int
    results: int
    outputs: int
    kept: Sequence[int]
    wide = True

    # What a subclass provides

    def forward(self, *inputs) -> Tensors:
        """All outputs as new tensors; ``None`` for marginals that the settings do not ask for."""
        raise NotImplementedError

    def gradient(self, inputs: tuple, outputs: Tensors, upstream: Tensors) -> Tensors:
        """Gradients with respect to the potentials as new tensors, given upstream gradients of the results."""
        raise NotImplementedError

    def shapes(self, *inputs) -> Tuple[Tensor, ...]:
        """Empty tensors in the shapes of the outputs; of shape ``(0,)`` for outputs that are ``None``."""
        raise NotImplementedError

    def parts(self, *potentials) -> Tensors:
        """The potentials expanded, so that the gradient of log Z with respect to each is a result."""
        return potentials

    def log_partition(self, *parts_and_settings) -> Tensor:
        """The specification in plain PyTorch: log Z of ``parts`` under the settings."""
        raise NotImplementedError

    def all_results(self, *inputs) -> tuple:
        """The inputs with settings that ask for the marginals of all parts; ``()`` if there is no such setting."""
        return inputs

    def weigh(self, weights: Tensor, part: Tensor) -> Tensor:
        """``part`` times one number for each item."""
        return weights.reshape(weights.shape + (1,) * (part.dim() - 1)) * part

    # What this class provides

    def __init__(self) -> None:
        self.inputs = len(self.arguments.split(","))
        if HAS_CUSTOM_OPERATORS:
            self._gradient_operator = _gradient_operator(self)
            self._operator = _operator(self)

    def __call__(self, *inputs) -> tuple:
        if HAS_CUSTOM_OPERATORS:
            if is_traced(*inputs[: self.potentials]):
                return self._operator(*inputs)[: self.results]
            return self._run(*inputs)
        return _not_compiled(self._run)(*inputs)

    def _run(self, *inputs) -> Tensors:
        if _is_transformed():
            return _TransformedExpectations.apply(self, *inputs)[: self.results]
        return _Expectations.apply(self, *inputs)

    def differentiate(self, inputs: tuple, outputs: Tensors, upstream: Tensors) -> Tensors:
        """Gradients with respect to the potentials, which can be differentiated where gradients are enabled."""
        if all(gradient is None for gradient in upstream):
            return (None,) * self.potentials
        if not torch.is_grad_enabled():
            return self._differentiate_once(inputs, outputs, upstream)
        first = self._expected_parts(inputs, upstream[0])
        if first is None:
            return self._differentiate_once(inputs, outputs, upstream)
        others = (None,) + upstream[1:]
        if all(gradient is None for gradient in others):
            return first
        return tuple(map(_sum, first, self._differentiate_once(inputs, outputs, others)))

    def _expected_parts(self, inputs: tuple, grad_log_partition: Optional[Tensor]) -> Optional[Tensors]:
        """The gradient of log Z times its upstream gradient, computed by this operation."""
        complete = self.all_results(*inputs)
        if grad_log_partition is None or not complete:
            return None
        _, *marginals = self(*complete)
        potentials = inputs[: self.potentials]
        parts, pull = torch.func.vjp(self.parts, *potentials)  # type: ignore[misc]
        weighted = (self.weigh(grad_log_partition, marginal) for marginal in marginals)
        return pull(tuple(marginal.to(part.dtype) for marginal, part in zip(weighted, parts)))

    def _differentiate_once(self, inputs: tuple, outputs: Tensors, upstream: Tensors) -> Tensors:
        flat = (*inputs, *outputs, *upstream)
        if HAS_CUSTOM_OPERATORS and is_traced(*inputs[: self.potentials], *upstream):
            gradients = _tuple(self._gradient_operator(*flat))
            return tuple(None if given is None else gradient for given, gradient in zip(inputs, gradients))
        if _is_transformed():
            return _TransformedGradient.apply(self, *flat)
        if torch.is_grad_enabled():
            return _Gradient.apply(self, *flat)
        return self.gradient(inputs, outputs, upstream)

    def _differentiate_again(
        self, inputs: tuple, upstream: Tensors, upstream_again: Tensors
    ) -> Tuple[Tensors, Tensors]:
        """Gradients of :meth:`gradient` with respect to potentials and ``upstream``, by the specification."""
        gradient, primals, numbers, given = self._specified_gradient(inputs, upstream)
        values, pull = torch.func.vjp(gradient, *primals)  # type: ignore[misc]
        again = [upstream_again[i] for i in numbers]
        found = pull(tuple(torch.zeros_like(v) if g is None else g.to(v.dtype) for v, g in zip(values, again)))
        grad_potentials = _spread(found[: len(numbers)], numbers, self.potentials)
        return grad_potentials, _spread(found[len(numbers) :], given, self.results)

    def _push_results(self, inputs: tuple, tangents: Tensors) -> Tensors:
        """Directional derivatives of the results, by the specification, for ``tangents`` of the potentials."""
        numbers = [i for i in range(self.potentials) if inputs[i] is not None]
        given = range(self.results)

        def results(*potentials: Tensor) -> Tensors:
            return self._specified_results(potentials, numbers, given, inputs[self.potentials :])

        return _push(results, [inputs[i] for i in numbers], [tangents[i] for i in numbers])

    def _push_gradient(self, inputs: tuple, upstream: Tensors, tangents: Tensors, grad_upstream: Tensors) -> Tensors:
        """Directional derivatives of :meth:`gradient`, for tangents of the potentials and of the upstream gradients."""
        gradient, primals, numbers, given = self._specified_gradient(inputs, upstream)
        pushed = _push(gradient, primals, [tangents[i] for i in numbers] + [grad_upstream[i] for i in given])
        return _spread(pushed, numbers, self.potentials)

    def _specified_gradient(self, inputs: tuple, upstream: Tensors) -> tuple:
        """:meth:`gradient` as a function of the potentials and upstream gradients that are not ``None``; these tensors;
        and the indices of both."""
        numbers = [i for i in range(self.potentials) if inputs[i] is not None]
        given = [i for i in range(self.results) if upstream[i] is not None]

        def results(*potentials: Tensor) -> Tensors:
            return self._specified_results(potentials, numbers, given, inputs[self.potentials :])

        def gradient(*primals: Tensor) -> Tuple[Tensor, ...]:
            values, pull = torch.func.vjp(results, *primals[: len(numbers)])  # type: ignore[misc]
            return pull(tuple(u.to(value.dtype) for u, value in zip(primals[len(numbers) :], values)))

        return gradient, [inputs[i] for i in numbers] + [upstream[i] for i in given], numbers, given

    def _specified_results(
        self, potentials: Sequence[Tensor], numbers: Sequence[int], given: Sequence[int], settings: tuple
    ) -> Tensors:
        wide = [potential.double() if self.wide else potential for potential in potentials]
        every = self._specified(_spread(wide, numbers, self.potentials), settings)
        return tuple(every[i] for i in given)

    def _specified(self, potentials: Tensors, settings: tuple) -> Tensors:
        """log Z and its gradients with respect to all parts, by the specification."""
        parts = self.parts(*potentials)
        numbers = [i for i, part in enumerate(parts) if part is not None]

        def log_partition(*given: Tensor) -> Tensor:
            return self.log_partition(*_spread(given, numbers, len(parts)), *settings)

        value, marginals = value_and_gradients(log_partition, *(part for part in parts if part is not None))
        return (value, *_spread(marginals, numbers, len(parts)))


def without_gradient(name: str, arguments: str, shape: Callable) -> Callable:
    """Decorator for functions that read values and return integers, such as those for argmax and samples.

    The function becomes a custom operator while code is traced, and raises under a transform of ``torch.func``. The
    keyword argument ``generator``, which no operator can have, becomes the last argument.

    Args:
        name: name of the operator, in the namespace ``structattn``.
        arguments: types and names of the arguments, as in an operator's schema.
        shape: function from the same arguments to the shape of the result.
    """

    def decorate(function: Callable) -> Callable:
        def shapes(*inputs):
            return inputs[0].new_empty(shape(*inputs), dtype=torch.long)

        schema = f"({arguments}) -> Tensor"
        operator = _define(name, schema, function, shapes, _tags()) if HAS_CUSTOM_OPERATORS else None

        @functools.wraps(function)
        def call(*inputs, generator=None):
            if operator is not None and generator is None and is_traced(inputs[0]):
                return operator(*inputs)
            if _is_transformed():
                raise RuntimeError(
                    "argmax and samples cannot be computed under torch.func (grad, vmap, jacrev …): compute them "
                    "outside of the transformed function, where a batch needs no vmap"
                )
            inputs = inputs if generator is None else inputs + (generator,)
            return function(*inputs) if HAS_CUSTOM_OPERATORS else _not_compiled(function)(*inputs)

        return call

    return decorate


def _tags() -> dict:
    """Tags of a random operator: without them, the compiler would merge two calls into one."""
    known = "tags" in inspect.signature(torch.library.custom_op).parameters
    return {"tags": (torch.Tag.nondeterministic_seeded,)} if known else {}


# For autograd


def _keep(ctx, operation: Operation, inputs: tuple, outputs: Tensors) -> None:
    ctx.set_materialize_grads(False)
    ctx.operation = operation
    _save(ctx, [*inputs, *[output if i in operation.kept else None for i, output in enumerate(outputs)]])


def _save(ctx, values: Sequence) -> None:
    ctx.others = [_TENSOR if isinstance(value, Tensor) else value for value in values]
    tensors = [value for value in values if isinstance(value, Tensor)]
    ctx.save_for_backward(*tensors)
    if _is_transformed():
        ctx.save_for_forward(*tensors)


def _saved(ctx) -> tuple:
    tensors = iter(ctx.saved_tensors)
    return tuple([next(tensors) if value is _TENSOR else value for value in ctx.others])


_TENSOR = "a tensor"


def _backward(ctx, *upstream: Optional[Tensor]) -> Tensors:
    operation, values = ctx.operation, _saved(ctx)
    inputs, outputs = values[: operation.inputs], values[operation.inputs :]
    gradients = operation.differentiate(inputs, outputs, upstream[: operation.results])
    return (*gradients, *(None for _ in inputs[operation.potentials :]))


def _keep_gradient(ctx, operation: Operation, flat: tuple) -> None:
    ctx.set_materialize_grads(False)
    ctx.operation = operation
    _save(ctx, (*flat[: operation.inputs], *flat[operation.inputs + operation.outputs :]))


def _backward_of_gradient(ctx, *upstream_again: Optional[Tensor]) -> Tensors:
    operation, values = ctx.operation, _saved(ctx)
    inputs, upstream = values[: operation.inputs], values[operation.inputs :]
    grad_potentials, grad_upstream = operation._differentiate_again(inputs, upstream, upstream_again)
    between = len(inputs) - len(grad_potentials) + operation.outputs
    return (*grad_potentials, *(None for _ in range(between)), *grad_upstream)


class _Expectations(torch.autograd.Function):
    """From an operation and its inputs to its results."""

    @staticmethod
    def forward(ctx, operation: Operation, *inputs):
        outputs = operation.forward(*inputs)
        _keep(ctx, operation, inputs, outputs)
        return outputs[: operation.results]

    @staticmethod
    def backward(ctx, *upstream):
        return (None, *_backward(ctx, *upstream))


class _Gradient(torch.autograd.Function):
    """From an operation, its inputs, its outputs and upstream gradients to gradients of the potentials."""

    @staticmethod
    def forward(ctx, operation: Operation, *flat):
        _keep_gradient(ctx, operation, flat)
        return operation.gradient(*_split(operation, flat))

    @staticmethod
    def backward(ctx, *upstream_again):
        return (None, *_backward_of_gradient(ctx, *upstream_again))


def _split(operation: Operation, flat: tuple) -> Tuple[tuple, Tensors, Tensors]:
    first, second = operation.inputs, operation.inputs + operation.outputs
    return flat[:first], flat[first:second], flat[second:]


# For torch.func, where results of an inner transform are inputs of an outer one: all outputs have to be returned.


class _TransformedExpectations(torch.autograd.Function):
    @staticmethod
    def forward(operation: Operation, *inputs):
        return operation.forward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        operation, *inputs = inputs
        ctx.mark_non_differentiable(*output[operation.results :])
        ctx.dtypes = [None if value is None else value.dtype for value in output[: operation.results]]
        _keep(ctx, operation, tuple(inputs), output)

    @staticmethod
    def backward(ctx, *upstream):
        return (None, *_backward(ctx, *upstream))

    @staticmethod
    def jvp(ctx, *tangents):
        operation, values = ctx.operation, _saved(ctx)
        inputs = values[: operation.inputs]
        pushed = operation._push_results(inputs, tangents[1:])
        # Marginals that were not asked for, and outputs that only the gradient kernel reads, have no tangents.
        present = zip(pushed, ctx.dtypes)
        return (*(None if d is None else p.to(d) for p, d in present), *(None,) * (operation.outputs - len(pushed)))

    @staticmethod
    def vmap(info, in_dims, operation, *inputs):
        return _one_by_one(_TransformedExpectations, info.batch_size, in_dims[1:], operation, inputs)


class _TransformedGradient(torch.autograd.Function):
    @staticmethod
    def forward(operation: Operation, *flat):
        return operation.gradient(*_split(operation, flat))

    @staticmethod
    def setup_context(ctx, inputs, output):
        operation, *flat = inputs
        ctx.dtypes = [None if value is None else value.dtype for value in output]
        _keep_gradient(ctx, operation, tuple(flat))

    @staticmethod
    def backward(ctx, *upstream_again):
        return (None, *_backward_of_gradient(ctx, *upstream_again))

    @staticmethod
    def jvp(ctx, *tangents):
        operation, values = ctx.operation, _saved(ctx)
        inputs, upstream = values[: operation.inputs], values[operation.inputs :]
        grad_upstream = tangents[1 + operation.inputs + operation.outputs :]
        pushed = operation._push_gradient(inputs, upstream, tangents[1:], grad_upstream)
        return tuple(None if p is None else p.to(d) for p, d in zip(pushed, ctx.dtypes))

    @staticmethod
    def vmap(info, in_dims, operation, *flat):
        return _one_by_one(_TransformedGradient, info.batch_size, in_dims[1:], operation, flat)


def _one_by_one(
    function: Type[torch.autograd.Function], batch: int, dims: tuple, operation: Operation, inputs: tuple
) -> Tuple[tuple, tuple]:
    """All outputs, stacked, and the position of their new dimension."""
    items = (
        [value] * batch if dim is None else [item.contiguous() for item in value.unbind(dim)]
        for value, dim in zip(inputs, dims)
    )
    outputs = zip(*(function.apply(operation, *item) for item in zip(*items)))
    stacked = tuple(None if values[0] is None else torch.stack(values) for values in outputs)
    return stacked, tuple(None if values is None else 0 for values in stacked)


# For torch.compile


def _operator(operation: Operation) -> Callable:
    def forward(*inputs):
        outputs = operation.forward(*inputs)
        return tuple(inputs[0].new_empty(0) if output is None else output for output in outputs)

    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output[operation.results :])
        _keep(ctx, operation, inputs, output)

    returns = ", ".join(["Tensor"] * operation.outputs)
    operator = _define(operation.name, f"({operation.arguments}) -> ({returns})", forward, operation.shapes)
    operator.register_autograd(_backward, setup_context=setup_context)
    return operator


def _gradient_operator(operation: Operation) -> Callable:
    def gradient(*flat):
        gradients = operation.gradient(*_split(operation, flat))
        return _one_or_all(tuple(flat[0].new_empty(0) if value is None else value for value in gradients))

    def shapes(*flat):
        potentials = flat[: operation.potentials]
        return _one_or_all(tuple(flat[0].new_empty(0) if p is None else p.new_empty(p.shape) for p in potentials))

    def setup_context(ctx, inputs, output):
        _keep_gradient(ctx, operation, inputs)

    optional = [f"Tensor? output{i}" for i in range(operation.outputs)]
    optional += [f"Tensor? upstream{i}" for i in range(operation.results)]
    returns = ", ".join(["Tensor"] * operation.potentials)
    returns = f"({returns})" if operation.potentials > 1 else returns
    schema = f"({', '.join([operation.arguments] + optional)}) -> {returns}"
    operator = _define(operation.name + "_gradient", schema, gradient, shapes)
    operator.register_autograd(_backward_of_gradient, setup_context=setup_context)
    return operator


def _define(
    name: str, schema: str, function: Callable, shapes: Callable, options: Optional[dict] = None
) -> "CustomOpDef":
    name = f"structattn::{name}"
    operator = torch.library.custom_op(name, function, mutates_args=(), schema=schema, **(options or {}))
    operator.register_fake(shapes)
    return operator


def _push(function: Callable, primals: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]) -> Tensors:
    directions = tuple(torch.zeros_like(p) if t is None else t.to(p.dtype) for p, t in zip(primals, tangents))
    return torch.func.jvp(function, tuple(primals), directions)[1]


def _spread(values: Sequence, numbers: Sequence[int], count: int) -> tuple:
    """``count`` entries: the values at the indices ``numbers``, and ``None`` elsewhere."""
    places = dict(zip(numbers, values))
    return tuple(places.get(i) for i in range(count))


def _one_or_all(values: Tensors):
    return values[0] if len(values) == 1 else values


def _tuple(values) -> tuple:
    return (values,) if isinstance(values, Tensor) else tuple(values)


def _sum(first: Optional[Tensor], second: Optional[Tensor]) -> Optional[Tensor]:
    return first if second is None else second if first is None else first + second
