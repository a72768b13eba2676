"""Linear layers that sum the gradients of their kernels over one axis of rows."""

import math
from functools import partial

import jax
from flax import nnx
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.lax import DotAlgorithmPreset, DotDimensionNumbers, Precision
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike


def dot_general(
    inputs: Array,
    kernel: Array,
    dimension_numbers: DotDimensionNumbers,
    precision: str | Precision | DotAlgorithmPreset | None = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> Array:
    """`jax.lax.dot_general`, with other gradients: the same numbers, to rounding.

    The gradient of a kernel sums over rows. Where those are several axes, such as batch and
    position, XLA on a CPU exchanges the axes of the other operand for it, and computes again in a
    strided loop what led to that operand (docs/STEPS.md). So gradients see rows as one axis, and
    features too. The product itself and the gradient of its inputs leave rows as they are, which
    may stand on several devices.

    Args:
        inputs: `[*rows, *contracted]`.
        kernel: `[*contracted, *features]`. With axes in another order, with axes of batches and
            where an explicit mesh parts an operand, gradients are those of `lax` too.
        dimension_numbers: which axes those are.
        precision: as in `lax`.
        preferred_element_type: as in `lax`.
        out_sharding: as in `lax`.

    Returns:
        `[*rows, *features]`.
    """
    multiply = partial(
        jax.lax.dot_general, precision=precision, preferred_element_type=preferred_element_type
    )
    as_asked = partial(multiply, dimension_numbers=dimension_numbers, out_sharding=out_sharding)
    (of_inputs, of_kernel), (of_batch, _) = dimension_numbers
    rows, count = inputs.ndim - len(of_inputs), len(of_kernel)
    in_order = (*of_inputs, *of_kernel) == (*range(rows, inputs.ndim), *range(count))
    parted = out_sharding or any(any(jax.typeof(each).sharding.spec) for each in (inputs, kernel))
    if not in_order or of_batch or parted:
        return as_asked(inputs, kernel)

    def by_matrix(inputs: Array, kernel: Array, shape: tuple[int, ...]) -> Array:
        matrix = kernel.reshape(*kernel.shape[:count], math.prod(kernel.shape[count:]))
        last = range(inputs.ndim - count, inputs.ndim)
        return multiply(inputs, matrix, ((last, range(count)), ((), ()))).reshape(shape)

    @jax.custom_jvp
    def multiplied(inputs: Array, kernel: Array) -> Array:
        return as_asked(inputs, kernel)

    @partial(multiplied.defjvp, symbolic_zeros=True)
    def along(
        primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, Array | SymbolicZero]
    ) -> tuple[Array, Array]:
        (inputs, kernel), (d_inputs, d_kernel) = primals, tangents
        outputs = multiplied(inputs, kernel)
        terms = []
        if not isinstance(d_inputs, SymbolicZero):
            terms.append(by_matrix(d_inputs, kernel, outputs.shape))
        if not isinstance(d_kernel, SymbolicZero):
            one_axis = inputs.reshape(math.prod(inputs.shape[:rows]), *inputs.shape[rows:])
            terms.append(by_matrix(one_axis, d_kernel, outputs.shape))
        return outputs, sum(terms[1:], terms[0])

    return multiplied(inputs, kernel)


Linear = partial(nnx.Linear, dot_general=dot_general)
LinearGeneral = partial(nnx.LinearGeneral, dot_general=dot_general)
