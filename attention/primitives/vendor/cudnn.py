"""Attention by cuDNN, which `jax.nn.dot_product_attention` calls on an NVIDIA GPU."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives import masks
from attention.primitives.arguments import Arguments
from attention.primitives.first_order import first_order_library
from attention.primitives.vendor.band import split_band
from attention.primitives.vendor.edge_cases import handle_edge_cases
from attention.primitives.vendor.jax_nn import common_refusal, dot_product_attention


def refusal(arguments: Arguments, platform: str) -> str | None:
    """Return why it cannot compute this, in half a sentence; None if it can."""
    if platform != "cuda":
        return f"it is for an NVIDIA GPU, and the platform is {platform}"
    return arguments_refusal(arguments, _compute_capability())


def _compute_capability() -> tuple[int, ...]:
    """Return the capability of the first GPU; 8.0 where there is none and code is only exported."""
    try:
        capability = jax.local_devices(backend="cuda")[0].compute_capability
    except RuntimeError:
        return (8, 0)
    return tuple(int(part) for part in capability.split("."))


def arguments_refusal(arguments: Arguments, capability: tuple[int, ...]) -> str | None:
    """Return why it cannot compute this on a GPU of a compute capability; None if it can."""
    if why := common_refusal(arguments):
        return why
    if (dtype := str(arguments.query.dtype)) not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 and float16 only, and the inputs are {dtype}"
    if capability < (8, 0):
        return f"it needs compute capability 8.0, and this GPU has {'.'.join(map(str, capability))}"
    widest = 256 if capability >= (9, 0) else 128
    if (width := arguments.query.shape[-1]) > widest or width % 8:
        return f"its head widths are multiples of 8 up to {widest}, not {width}"
    if arguments.scores:
        return "it does not evaluate score functions"
    if isinstance(arguments.scale, jax.Array):
        return "its scale is a Python number, not an array"
    band, others = split_band(arguments)
    lengths = masks.Lengths | masks.QueryLengths
    if (
        arguments.allowed is not None
        or not all(isinstance(mask, lengths) for mask in others)
        or (others and not arguments.counted)
    ):
        # It adds a finite number to other masked scores, in half precision.
        return "its exact masks are causal, window, lengths, and these composed by &"
    if band != (None, None) and not band.is_causal:
        return "its windows must be causal"
    return None


def attend_by_cudnn(arguments: Arguments) -> dict[str, Array]:
    """Return "output" for arguments that are not refused."""
    return {"output": _attend(float(arguments.scale), arguments)}


@partial(jax.jit, static_argnums=0)
def _attend(scale: float, arguments: Arguments) -> Array:
    band, others = split_band(arguments)
    if not others:
        attention = partial(_by_cudnn, options={"scale": scale, "band": band}, lengths={})
        return handle_edge_cases(arguments, attention)
    num_queries, num_keys = arguments.query.shape[-3], arguments.key.shape[-3]
    query_lengths = jnp.full(arguments.batch, num_queries, jnp.int32)
    key_lengths = jnp.full(arguments.batch, num_keys, jnp.int32)
    for mask in others:
        if isinstance(mask, masks.Lengths):
            key_lengths = jnp.minimum(key_lengths, mask.lengths)
        else:
            query_lengths = jnp.minimum(query_lengths, mask.lengths)
    if band.before is not None:  # later queries are fully masked
        query_lengths = jnp.minimum(query_lengths, key_lengths + band.before)
    query_lengths = jnp.where(key_lengths > 0, query_lengths, 0)
    visible_queries = _before(query_lengths, num_queries)
    visible_keys = _before(key_lengths, num_keys)
    lengths = {
        # At least one query and key, so that every softmax has a finite sum.
        "query_seq_lengths": jnp.maximum(query_lengths, 1).reshape(-1),
        "key_value_seq_lengths": jnp.maximum(key_lengths, 1).reshape(-1),
    }

    def attention(arguments: Arguments) -> Array:
        # Padding gets gradient 0, whatever cuDNN writes there.
        query = jnp.where(visible_queries[..., None], arguments.query, 0)
        key, value = (
            jnp.where(visible_keys[..., None], x, 0) for x in (arguments.key, arguments.value)
        )
        arguments = replace(arguments, query=query, key=key, value=value)
        return _by_cudnn(arguments, {"scale": scale, "band": band}, lengths)

    return handle_edge_cases(arguments, attention, visible_queries)


def _before(lengths: Array, num_tokens: int) -> Array:
    """Return bool `[..., tokens, 1]`, True for tokens before the length `[...]`."""
    tokens = jnp.arange(num_tokens, dtype=jnp.int32).reshape((1,) * lengths.ndim + (-1,))
    return (tokens < lengths[..., None])[..., None]


def _by_cudnn(arguments: Arguments, options: dict[str, Any], lengths: dict[str, Array]) -> Array:
    def library(inputs: tuple[Array, Array, Array], lengths: dict[str, Array]) -> Array:
        query, key, value = inputs
        return dot_product_attention(
            replace(arguments, query=query, key=key, value=value),
            implementation="cudnn",
            **options,
            **lengths,
        )

    inputs = arguments.query, arguments.key, arguments.value
    return first_order_library("cudnn", library, inputs, lengths)
