"""Vector registers in numba kernels: a ``Lanes`` value is eight float64 numbers.

numba leaves vector instructions to LLVM's loop vectoriser, which does not keep eight sums in a register while a loop
adds to them. The operations here emit LLVM vector code that does. LLVM splits it if registers are narrower.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from .numba_compile import subroutine

LANES = 8
BYTES = 8

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(64), LANES)

# 2^e for an integer e has the bits (e + 1023) << 52. Adding this number to e leaves e + 1023 in the lowest bits of the
# sum, which are then shifted into place.
_INTEGER_TO_BITS = 2.0**52 + 2.0**51 + 1023


class LanesType(types.Type):
    """The numba type of eight float64 numbers."""

    def __init__(self):
        super().__init__(name="Lanes")


_LANES = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, _VECTOR)


@subroutine
def empty_lanes(count):
    """An empty float64 array of ``count`` numbers, aligned to a cache line: a read across two lines takes twice as
    long."""
    room = np.empty(count + LANES)
    skipped = -(room.ctypes.data // BYTES) % LANES
    return room[skipped : skipped + count]


@intrinsic
def load(typing_context, array, start):
    """``array[start : start + 8]`` of a contiguous float64 array, without checks."""

    def generate(context, builder, signature, arguments):
        return builder.load(_pointer(context, builder, signature, arguments), align=8)

    return _LANES(array, types.intp), generate


@intrinsic
def store(typing_context, array, start, value):
    """``array[start : start + 8] = value``."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _pointer(context, builder, signature, arguments), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@intrinsic
def fill(typing_context, number):
    """The same number eight times."""

    def generate(context, builder, signature, arguments):
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(undefined, arguments[0], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, undefined, zeros)

    return _LANES(types.float64), generate


@intrinsic
def add(typing_context, a, b):
    """a + b"""

    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return _LANES(_LANES, _LANES), generate


@intrinsic
def subtract(typing_context, a, b):
    """a − b"""

    def generate(context, builder, signature, arguments):
        return builder.fsub(*arguments)

    return _LANES(_LANES, _LANES), generate


@intrinsic
def multiply(typing_context, a, b):
    """a · b"""

    def generate(context, builder, signature, arguments):
        return builder.fmul(*arguments)

    return _LANES(_LANES, _LANES), generate


@intrinsic
def multiply_add(typing_context, a, b, c):
    """a · b + c, rounded once if the processor supports it."""

    def generate(context, builder, signature, arguments):
        product = builder.fmul(arguments[0], arguments[1], flags=("contract",))
        return builder.fadd(product, arguments[2], flags=("contract",))

    return _LANES(_LANES, _LANES, _LANES), generate


@intrinsic
def maximum(typing_context, a, b):
    """The larger of each pair."""

    def generate(context, builder, signature, arguments):
        a, b = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    return _LANES(_LANES, _LANES), generate


@intrinsic
def power_of_two(typing_context, exponent):
    """2 to the power of integers: 0 below −1022, 1 above 0, and 0 for NaN and infinities."""

    def generate(context, builder, signature, arguments):
        (exponent,) = arguments
        small = builder.select(builder.fcmp_ordered("<", exponent, _constant(0.0)), exponent, _constant(0.0))
        bits = builder.bitcast(builder.fadd(small, _constant(_INTEGER_TO_BITS)), _INTEGERS)
        power = builder.bitcast(builder.shl(bits, ir.Constant(_INTEGERS, [52] * LANES)), _VECTOR)
        in_range = builder.and_(
            builder.fcmp_ordered(">=", exponent, _constant(-1022.0)),
            builder.fcmp_ordered("<", exponent, _constant(float("inf"))),
        )
        return builder.select(in_range, power, _constant(0.0))

    return _LANES(_LANES), generate


def _pointer(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), _VECTOR.as_pointer())


def _constant(number):
    return ir.Constant(_VECTOR, [number] * LANES)
