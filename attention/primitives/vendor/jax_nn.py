"""Attention by `jax.nn.dot_product_attention`, compiled by XLA: every score in memory at once."""

from math import prod

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.request import Request
from attention.primitives.scores import BiasArray
from attention.primitives.vendor.band import Band, split_band
from attention.primitives.vendor.repair import repaired


def refusal(request: Request) -> str | None:
    """Why it cannot compute a request here, in half a sentence; None if it can."""
    if why := common_refusal(request):
        return why
    platform = jax.default_backend()
    match str(request.query.dtype):
        case "float64":
            return "its softmax is in float32 at most, and there is float64"
        case "float16" if platform != "gpu":
            return f"it asks for products of float16 that {platform} does not have"
        case "float16" | "bfloat16" | "float32":
            pass
        case other:
            return f"it was not tried with {other}"
    if not all(isinstance(score, BiasArray) for score in request.scores):
        return "of the scores it knows bias_array alone"
    if request.scores and not request.counted:
        return "a bias at explicit positions would have to be gathered first"
    return None


def common_refusal(request: Request) -> str | None:
    """What `jax.nn.dot_product_attention` cannot do, whoever implements it."""
    inputs = request.query, request.key, request.value
    if not all(array.size for array in inputs):
        return "there is nothing to compute"
    if (width := request.key.shape[-1]) != (value_width := request.value.shape[-1]):
        return f"its value width must be the key's: {value_width} and {width}"
    if len(dtypes := {str(array.dtype) for array in inputs}) > 1:
        return f"its inputs share one dtype, and there are {', '.join(sorted(dtypes))}"
    if request.dropout is not None:
        return "it has no dropout"
    if request.sinks:
        return "it has no attention sinks"
    if request.returning:  # not even its logsumexp, whose gradient would be lost
        return f"it returns no {', '.join(sorted(request.returning))}"
    return None


def attend_by_jax_nn(request: Request) -> dict[str, Array]:
    """`attend` for a request that is not refused: "output"."""
    return {"output": _attend(request)}


def call(request: Request, band: Band, **arguments: Array | float | str) -> Array:
    """`jax.nn.dot_product_attention` of query, key and value with any leading axes, in a band.

    Its `arguments` are "implementation", "scale", "bias" and "mask", `[B or 1, N or 1, T, S]`.
    """
    flat = (x.reshape(-1, *x.shape[-3:]) for x in (request.query, request.key, request.value))
    with jax.numpy_dtype_promotion("standard"):  # on which it relies
        output = jax.nn.dot_product_attention(
            *flat,
            is_causal=band.is_causal,
            local_window_size=None if band.before is None else (band.before, band.after),
            **arguments,
        )
    return output.reshape(request.query.shape)


@jax.jit
def _attend(request: Request) -> Array:
    band, others = split_band(request)
    if request.scores:
        return _attend_with_bias(request)
    if not others:
        return repaired(request, lambda request: _by_xla(request, band))
    allowed = request.allowed()
    mask = _flat(allowed[..., None, :, :], request)
    return repaired(
        request, lambda request: _by_xla(request, Band(), mask=mask), allowed.any(-1)[..., None]
    )


def _attend_with_bias(request: Request) -> Array:
    """The mask goes into the bias as -inf, which is lower than any number that a bias may hold.

    The finite number that jax.nn puts in place of a masked score is not.
    """
    bias = sum(_flat(score.array.astype(jnp.float32), request) for score in request.scores)
    if (allowed := request.allowed()) is not None:
        bias = jnp.where(_flat(allowed[..., None, :, :], request), bias, -jnp.inf)
    sees = ~jnp.isneginf(bias).all(axis=-1)  # [B or 1, N or 1, T]
    bias = jnp.where(sees[..., None], bias, 0)
    sees = jnp.broadcast_to(jnp.swapaxes(sees, 1, 2), (prod(request.batch), *sees.shape[:0:-1]))
    sees = sees.reshape(*request.batch, *sees.shape[1:])
    return repaired(request, lambda request: _by_xla(request, Band(), bias=bias), sees)


def _by_xla(request: Request, band: Band, **arguments: Array) -> Array:
    # The default product of float32 is of fewer digits on a GPU and a TPU.
    with jax.default_matmul_precision("highest"):
        return call(request, band, implementation="xla", scale=request.scale, **arguments)


def _flat(array: Array, request: Request) -> Array:
    """`[..., N or 1, T, S]` as `[B or 1, N or 1, T, S]`."""
    core = array.shape[-3:]
    if array.ndim > 3:
        array = jnp.broadcast_to(array, (*request.batch, *core))
    return array.reshape(-1, *core)
