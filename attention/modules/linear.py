"""Linear layers whose gradients are as quick as they are."""

import math
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import Array
from jax.lax import DotDimensionNumbers


def product(
    inputs: Array,
    kernel: Array,
    dimension_numbers: DotDimensionNumbers,
    **options: Any,  # noqa: ANN401 - those of lax.dot_general
) -> Array:
    """`lax.dot_general` of the last axes of inputs with the first ones of a kernel.

    The same numbers as without it: rows are made one axis, and so are features. The gradient of a
    kernel sums over rows; where they are several axes, XLA transposes one of its operands for it on
    a CPU, and computes again in a strided loop what led to that operand. A feed-forward layer
    learned in half the time without.

    Args:
        inputs: `[..., *contracted]`.
        kernel: `[*contracted, *features]`.
        dimension_numbers: which axes those are, as Flax says it.
        options: of `lax.dot_general`.

    Returns:
        `[..., *features]`.
    """
    (contracted, _), _ = dimension_numbers
    count = len(contracted)
    rows, features = inputs.shape[: inputs.ndim - count], kernel.shape[count:]
    width = math.prod(kernel.shape[:count])
    found = jax.lax.dot_general(
        inputs.reshape(math.prod(rows), width),
        kernel.reshape(width, math.prod(features)),
        (((1,), (0,)), ((), ())),
        **options,
    )
    return found.reshape(*rows, *features)


Linear = partial(nnx.Linear, dot_general=product)
LinearGeneral = partial(nnx.LinearGeneral, dot_general=product)
