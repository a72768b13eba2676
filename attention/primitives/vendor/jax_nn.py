"""Attention by `jax.nn.dot_product_attention`, compiled by XLA, with all scores in memory."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.scores import BiasArray
from attention.primitives.vendor.band import Band, split_band
from attention.primitives.vendor.edge_cases import handle_edge_cases, with_dense_mask

NO_BAND = Band()


def refusal(arguments: Arguments, platform: str) -> str | None:
    """Return why it cannot compute this, in half a sentence; None if it can."""
    if why := common_refusal(arguments):
        return why
    match str(arguments.query.dtype):
        case "float64":
            return "its softmax is in float32 at most, and the inputs are float64"
        case "float16" if platform not in ("cuda", "rocm"):
            return f"it needs products of float16, which {platform} does not have"
        case "float16" | "bfloat16" | "float32":
            pass
        case other:
            return f"it was not tested with {other}"
    if not all(isinstance(score, BiasArray) for score in arguments.scores):
        return "bias_array is its only score function"
    if arguments.scores and not arguments.counted:
        return "a bias at explicit positions needs a gather"
    return None


def common_refusal(arguments: Arguments) -> str | None:
    """Return what `jax.nn.dot_product_attention` cannot do, by XLA or cuDNN; None if it can."""
    inputs = arguments.query, arguments.key, arguments.value
    if not all(array.size for array in inputs):
        return "an input is empty"
    if (width := arguments.key.shape[-1]) != (value_width := arguments.value.shape[-1]):
        return f"its value width must equal the key width: {value_width} and {width}"
    if len(dtypes := {str(array.dtype) for array in inputs}) > 1:
        return f"its inputs must have one dtype, and they have {', '.join(sorted(dtypes))}"
    return option_refusal(arguments)


def option_refusal(arguments: Arguments) -> str | None:
    """Return which option no library implements, None if there is none."""
    if arguments.dropout is not None:
        return "it does not implement this dropout"
    if arguments.sinks:
        return "it does not implement attention sinks"
    if arguments.returning:  # the gradient of its logsumexp would be lost
        return f"it does not return {', '.join(sorted(arguments.returning))}"
    if arguments.tile_sizes is not None and arguments.block_mask is None:
        return "it does not take tile sizes"
    return None


def attend_by_jax_nn(arguments: Arguments) -> dict[str, Array]:
    """Return "output" for arguments that are not refused."""
    return {"output": _attend(arguments)}


def dot_product_attention(
    arguments: Arguments, band: Band, **options: Array | float | str | None
) -> Array:
    """Call `jax.nn.dot_product_attention` with one batch axis.

    Args:
        arguments: for query, key and value, with any batch axes.
        band: visible keys around the diagonal.
        options: "implementation", "scale", lengths `[B]`, "bias" and "mask" `[B|1, N|1, T, S]`.
    """
    inputs = (arguments.query, arguments.key, arguments.value)
    with jax.numpy_dtype_promotion("standard"):  # jax.nn relies on it
        output = jax.nn.dot_product_attention(
            *(array.reshape(-1, *array.shape[-3:]) for array in inputs),
            is_causal=band.is_causal,
            local_window_size=_local_window_size(band, arguments),
            **options,
        )
    return output.reshape(arguments.query.shape)


def _local_window_size(band: Band, arguments: Arguments) -> tuple[int, int] | None:
    num_queries, num_keys = arguments.query.shape[-3], arguments.key.shape[-3]
    if band.before is None and band.after in (None, 0):
        return None
    before = num_queries if band.before is None else band.before
    return before, num_keys if band.after is None else band.after


@jax.jit
def _attend(arguments: Arguments) -> Array:
    band, others = split_band(arguments)
    if not (others or arguments.scores or arguments.allowed is not None):
        return handle_edge_cases(arguments, partial(_by_xla, band=band))
    allowed = with_dense_mask(arguments).allowed  # [..., N|1, T|1, S|1]
    if arguments.scores:
        return _attend_with_bias(arguments, allowed)
    attention = partial(_by_xla, mask=_four_axes(allowed, arguments))
    return handle_edge_cases(arguments, attention, jnp.swapaxes(allowed.any(-1), -1, -2))


def _attend_with_bias(arguments: Arguments, allowed: Array | None) -> Array:
    """Compute attention with the mask as -inf in the bias.

    jax.nn replaces masked scores by a finite number, and a bias may be lower.
    """
    bias = jnp.zeros((1, 1, 1), jnp.float32)
    for score in arguments.scores:
        bias = jnp.add(*_same_rank(bias, score.array.astype(jnp.float32)))
    if allowed is not None:
        allowed, bias = _same_rank(allowed, bias)
        bias = jnp.where(allowed, bias, -jnp.inf)
    visible = ~jnp.isneginf(bias).all(axis=-1)  # [..., N|1, T|1]
    bias = _four_axes(jnp.where(visible[..., None], bias, 0), arguments)
    attention = partial(_by_xla, bias=bias)
    return handle_edge_cases(arguments, attention, jnp.swapaxes(visible, -1, -2))


def _same_rank(*arrays: Array) -> list[Array]:
    rank = max(array.ndim for array in arrays)
    return [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]


def _by_xla(arguments: Arguments, band: Band = NO_BAND, **options: Array) -> Array:
    with jax.default_matmul_precision(arguments.precision):
        return dot_product_attention(
            arguments, band, implementation="xla", scale=arguments.scale, **options
        )


def _four_axes(array: Array, arguments: Arguments) -> Array:
    """Return `[B|1, N|1, T, S]` from `[..., N|1, T|1, S|1]`."""
    sizes = arguments.query.shape[-3], arguments.key.shape[-3]
    batch = arguments.batch if array.ndim > 3 and any(n > 1 for n in array.shape[:-3]) else ()
    array = array if batch else array.reshape(array.shape[-3:])
    array = jnp.broadcast_to(array, (*batch, array.shape[-3], *sizes))
    return array.reshape(-1, *array.shape[-3:])
