"""Attention of one query over a long cache, without a copy of the cache.

Products per head would first transpose the keys, `[S, K, H]` to `[K, S, H]`: a copy of the cache
for one query. Here all key/value heads are one head of width K·H, in which each query is 0 outside
of the H features of its own head: a product of matrices as they lie in memory, which takes about
as long as reading them. The keys of a single example are cut into parts, which the cores compute
side by side, and the partial results are merged (flash decoding, Dao et al. 2023).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dot_product import attend_by_definition
from attention.primitives.lift import possible_shards
from attention.primitives.merge import merge
from attention.primitives.softmax import share_with_sinks
from attention.primitives.vendor.edge_cases import handle_edge_cases

# Parts of the keys of a single example, and from how many keys on (measured on two cores).
PARTS, MANY_KEYS = 4, 2**12


def refusal(arguments: Arguments, platform: str) -> str | None:
    """Return why it cannot compute this, in half a sentence; None if it can."""
    del platform
    if arguments.query.shape[-3] != 1:
        return f"it takes one query, and there are T={arguments.query.shape[-3]}"
    if 0 in (*arguments.query.shape, *arguments.key.shape, *arguments.value.shape):
        return "an input is empty"
    if arguments.returning:
        return f"it does not return {', '.join(sorted(arguments.returning))}"
    return None if arguments.tile_sizes is None else "it does not take tile sizes"


def preference(arguments: Arguments, platform: str) -> str | None:
    """Return why it is the default: on a CPU, if no device may hold a part of the heads."""
    if platform != "cpu" or possible_shards(platform) > 1 or arguments.key.shape[-2] == 1:
        return None
    return "one query reads all keys and values as they lie in memory"


def attend_one_query(arguments: Arguments, platform: str = "cpu") -> dict[str, Array]:
    """Return "output" for arguments that are not refused."""
    del platform
    return {"output": _attend(arguments)}


@jax.jit
def _attend(arguments: Arguments) -> Array:
    return handle_edge_cases(arguments, _merged_parts)


def _merged_parts(arguments: Arguments) -> Array:
    """Return the output `[..., 1, N, Hv]` for finite inputs."""
    num_keys, num_kv_heads = arguments.key.shape[-3:-1]
    num_heads = arguments.query.shape[-2]
    kv_head = jnp.arange(num_heads) // (num_heads // num_kv_heads)
    own = kv_head[:, None, None] == jnp.arange(num_kv_heads)[:, None]  # [N, K, 1]

    def joined(array: Array) -> Array:  # [..., K, H] -> [..., K·H]
        return array.reshape(*array.shape[:-2], -1)

    arguments = replace(
        arguments,
        query=joined(jnp.where(own, arguments.query[..., None, :], 0)),
        key=joined(arguments.key)[..., None, :],
        value=joined(arguments.value)[..., None, :],
        nonfinite_keys=jnp.zeros((*arguments.key.shape[:-2], 1), bool),
    )
    is_long = arguments.batch in ((), (1,)) and num_keys >= MANY_KEYS
    size = -(-num_keys // PARTS) if is_long else num_keys
    parts = [slice(start, start + size) for start in range(0, num_keys, size)]
    partials = [attend_by_definition(_select_keys(arguments, part)) for part in parts]
    output, logsumexp = merge([(part["output"], part["logsumexp"]) for part in partials])
    results = {"output": output, "logsumexp": logsumexp}
    output = share_with_sinks(results, arguments.sinks)["output"]
    output = output.reshape(*output.shape[:-1], num_kv_heads, -1)
    return jnp.where(own, output, 0).sum(axis=-2, dtype=output.dtype)


def _select_keys(arguments: Arguments, part: slice) -> Arguments:
    """Return the arguments for some of the keys, without sinks."""
    allowed = arguments.allowed
    return replace(
        arguments,
        key=arguments.key[..., part, :, :],
        value=arguments.value[..., part, :, :],
        nonfinite_keys=arguments.nonfinite_keys[..., part, :],
        key_positions=arguments.key_positions[..., part],
        allowed=allowed if allowed is None or allowed.shape[-1] == 1 else allowed[..., part],
        sinks=(),
    )
