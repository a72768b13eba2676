"""FlashAttention on a GPU by Pallas kernels: which arguments they take, and the call.

Imports Pallas when it is called for the first time.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.first_order import first_order
from attention.primitives.gpu.inputs import Constants, Inputs, common_dtype, split
from attention.primitives.gpu.sizes import WIDEST, KernelSizes, power_of_two, sizes_for
from attention.primitives.gpu.tile_mask import mask_refusal
from attention.primitives.gpu.tile_score import score_refusal
from attention.primitives.nonfinite import nan_where, replace_nonfinite
from attention.primitives.softmax import share_with_sinks

_DTYPES = ("float32", "bfloat16", "float16")


def refusal(arguments: Arguments, platform: str, interpret: bool = False) -> str | None:
    """Return why the kernels cannot compute this, in half a sentence; None if they can.

    Args:
        arguments: the validated arguments.
        platform: "cpu", "cuda", "rocm" or "tpu".
        interpret: whether the kernels would be interpreted, which works on any platform.
    """
    inputs = arguments.query, arguments.key, arguments.value
    if platform not in ("cuda", "rocm") and not interpret:
        return f"its kernels are for a GPU, and the platform is {platform}"
    if other := {str(array.dtype) for array in inputs} - set(_DTYPES):
        return f"it computes in float32 at most, and the inputs are {', '.join(sorted(other))}"
    if not all(array.size for array in inputs):
        return "an input is empty"
    if (width := max(arguments.query.shape[-1], arguments.value.shape[-1])) > WIDEST:
        return f"a head width of {width} is more than its {WIDEST}"
    if more := set(arguments.returning) - {"logsumexp"}:
        return f"it does not return {', '.join(sorted(more))}"
    if arguments.tile_sizes is not None:
        return "its tile sizes depend on dtype and head width only"
    if arguments.allowed is not None:
        return "it does not read a mask that is a bool array"
    if why := mask_refusal(arguments.mask, arguments.counted):
        return why
    return next((why for score in arguments.scores if (why := score_refusal(score))), None)


def attend_by_kernel(
    arguments: Arguments,
    *,
    interpret: bool = False,
    sizes: KernelSizes | None = None,
) -> dict[str, Array]:
    """Return "output" and "logsumexp" for arguments that are not refused.

    Args:
        arguments: the validated arguments.
        interpret: whether to run the kernels as ordinary JAX, on any platform.
        sizes: tile sizes; by default from a table, by dtype and head width.
    """
    if sizes is None:
        width = power_of_two(max(arguments.query.shape[-1], arguments.value.shape[-1]))
        sizes = sizes_for(common_dtype(arguments.query, arguments.key, arguments.value), width)
    output, logsumexp = _attend(sizes, interpret, arguments)
    return share_with_sinks({"output": output, "logsumexp": logsumexp}, arguments.sinks)


@partial(jax.jit, static_argnums=(0, 1))
def _attend(sizes: KernelSizes, interpret: bool, arguments: Arguments) -> tuple[Array, Array]:
    from attention.primitives.gpu.backward import backward
    from attention.primitives.gpu.forward import forward

    inputs, constants = split(arguments)
    query, key, value, nonfinite_queries, nonfinite_keys = replace_nonfinite(
        inputs.query, inputs.key, inputs.value, arguments.nonfinite_keys
    )
    inputs = inputs._replace(query=query, key=key, value=value)
    constants = constants._replace(
        query_nan=nan_where(nonfinite_queries, jnp.float32),
        key_nan=nan_where(nonfinite_keys, jnp.float32),
    )
    precision = arguments.precision

    def attention(inputs: Inputs, constants: Constants) -> tuple[Array, Array]:
        return forward(inputs, constants, precision, sizes.forward, interpret)

    def attention_forward(inputs: Inputs, constants: Constants) -> tuple:
        results = attention(inputs, constants)
        return results, (inputs, results)

    def attention_backward(residuals: tuple, constants: Constants, cotangents: tuple) -> Inputs:
        inputs, results = residuals
        return backward(
            inputs, constants, results, cotangents, precision, sizes.backward, interpret
        )

    return first_order(
        "pallas", attention, attention_forward, attention_backward, inputs, constants
    )
