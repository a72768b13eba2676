"""Linear layers over named axes, and a matrix product whose gradient is fast on a CPU."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.lax import DotAlgorithmPreset, DotDimensionNumbers, Precision
from jax.nn.initializers import Initializer
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from attention.primitives.choice import one_of

LECUN_NORMAL = nnx.initializers.lecun_normal()

# name -> initializer of kernels. LeCun et al. 1998; Glorot and Bengio 2010; He et al. 2015; the
# standard deviation of GPT-2 and BERT.
INITIALIZERS: dict[str, Initializer] = {
    "lecun_normal": LECUN_NORMAL,
    "xavier_uniform": nnx.initializers.xavier_uniform(),
    "he_normal": nnx.initializers.he_normal(),
    "normal_0.02": nnx.initializers.normal(0.02),
}


def soft_cap(array: Array, bound: float | None) -> Array:
    """Return c·tanh(x / c) for a bound c, the array itself for None (Gemma 2)."""
    return array if bound is None else bound * jnp.tanh(array / bound)


def named(name: str, given: Any, title: str, registry: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
    """Return an entry of a registry by its name, or what was given if it can be called.

    Args:
        name: of the argument.
        given: its value.
        title: name of the registry.
        registry: name -> value.

    Raises:
        ValueError: an unknown name.
    """
    if callable(given):
        return given
    one_of(name, given, tuple(registry), registry=title)
    return registry[given]


def dot_general(
    inputs: Array,
    kernel: Array,
    dimension_numbers: DotDimensionNumbers,
    precision: str | Precision | DotAlgorithmPreset | None = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> Array:
    """Compute `jax.lax.dot_general`, with gradients that are faster on a CPU.

    The gradient of a kernel is a sum over rows. If rows are several axes, such as batch and
    position, XLA on a CPU transposes the other operand for it and recomputes in a strided loop what
    led to that operand (docs/STEPS.md). Here the gradient merges the axes of rows, and those of
    features. The product and the gradient of the inputs keep the axes of rows, of which the first
    may be sharded. Merged axes would have to be gathered if the second were sharded too.

    Args:
        inputs: `[*rows, *contracted]`.
        kernel: `[*contracted, *features]`. If axes are in another order, if there are batch axes,
            if an operand is sharded over an explicit mesh, or if the mesh has an axis "sequence",
            the gradients are those of `lax`.
        dimension_numbers: axes as in `lax`.
        precision: as in `lax`.
        preferred_element_type: as in `lax`.
        out_sharding: as in `lax`.

    Returns:
        `[*rows, *features]`.
    """
    multiply = partial(
        jax.lax.dot_general, precision=precision, preferred_element_type=preferred_element_type
    )
    plain = partial(multiply, dimension_numbers=dimension_numbers, out_sharding=out_sharding)
    (inputs_axes, kernel_axes), (batch_axes, _) = dimension_numbers
    rows, count = inputs.ndim - len(inputs_axes), len(kernel_axes)
    in_order = (*inputs_axes, *kernel_axes) == (*range(rows, inputs.ndim), *range(count))
    shardings = [jax.typeof(each).sharding for each in (inputs, kernel)]
    sharded = out_sharding or any(any(each.spec) for each in shardings)
    sharded = sharded or any(each.mesh.shape.get("sequence", 1) > 1 for each in shardings)
    if not in_order or batch_axes or sharded:
        return plain(inputs, kernel)

    def by_matrix(inputs: Array, kernel: Array, shape: tuple[int, ...]) -> Array:
        matrix = kernel.reshape(*kernel.shape[:count], math.prod(kernel.shape[count:]))
        last = range(inputs.ndim - count, inputs.ndim)
        return multiply(inputs, matrix, ((last, range(count)), ((), ()))).reshape(shape)

    @jax.custom_jvp
    def multiplied(inputs: Array, kernel: Array) -> Array:
        return plain(inputs, kernel)

    @partial(multiplied.defjvp, symbolic_zeros=True)
    def multiplied_jvp(
        primals: tuple[Array, Array], tangents: tuple[Array | SymbolicZero, Array | SymbolicZero]
    ) -> tuple[Array, Array]:
        (inputs, kernel), (d_inputs, d_kernel) = primals, tangents
        outputs = multiplied(inputs, kernel)
        terms = []
        if not isinstance(d_inputs, SymbolicZero):
            terms.append(by_matrix(d_inputs, kernel, outputs.shape))
        if not isinstance(d_kernel, SymbolicZero):
            rows_as_one_axis = inputs.reshape(math.prod(inputs.shape[:rows]), *inputs.shape[rows:])
            terms.append(by_matrix(rows_as_one_axis, d_kernel, outputs.shape))
        return outputs, sum(terms[1:], terms[0])

    return multiplied(inputs, kernel)


def linear(
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    *,
    use_bias: bool = True,
    kernel_init: Initializer = LECUN_NORMAL,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.LinearGeneral:
    """Make a linear layer over named axes.

    Args:
        inputs: sizes of the last axes of the inputs by logical name, for instance {"embed": 64}.
        outputs: the same of the outputs, for instance {"heads": 4, "head": 16}.
        use_bias: whether to add a bias of the shape of the outputs.
        kernel_init: initializer of the kernel, of shape inputs + outputs.
        dtype: of the computation; that of inputs and parameters if None.
        param_dtype: of the parameters.
        rngs: source of the initial parameters.

    Returns:
        A module whose parameters have metadata "axes", their logical axis names, and whose kernel
        has metadata "num_inputs", the number of its input axes.
    """
    return nnx.LinearGeneral(
        tuple(inputs.values()),
        tuple(outputs.values()),
        axis=tuple(range(-len(inputs), 0)),
        use_bias=use_bias,
        kernel_init=kernel_init,
        dtype=dtype,
        param_dtype=param_dtype,
        dot_general=dot_general,
        rngs=rngs,
        kernel_metadata={"axes": (*inputs, *outputs), "num_inputs": len(inputs)},
        bias_metadata={"axes": tuple(outputs)},
    )
