"""Attention of one query over many keys, cut into parts that are merged.

As in flash decoding (Dao et al. 2023): the cores compute parts of the keys side by side, and
`merge` combines them. The query heads of a group are the rows of one matrix, so the keys of a
`Cache` are read in the order in which they are stored and never copied.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dense_mask import dense_mask
from attention.primitives.dot_product import over_examples, scaled_dot_product
from attention.primitives.dropout import keep_factor
from attention.primitives.merge import merge
from attention.primitives.nonfinite import nan_where, replace_nonfinite
from attention.primitives.scores import Score, apply_scores
from attention.primitives.softmax import share_with_sinks

# At most so many parts, of at least so many keys (measured on a CPU).
MAX_PARTS, MIN_KEYS = 8, 512


def refusal(arguments: Arguments, platform: str) -> str | None:
    """Return why it cannot compute this, in half a sentence; None if it can."""
    del platform
    if arguments.query.shape[-3] != 1:
        return f"it takes one query, and there are T={arguments.query.shape[-3]}"
    if 0 in (*arguments.query.shape, *arguments.key.shape, *arguments.value.shape):
        return "an input is empty"
    if others := sorted({*arguments.returning} - {"logsumexp"}):
        return f"it does not return {', '.join(others)}"
    if arguments.tile_sizes is None or arguments.block_mask is not None:
        return None
    return "it does not take tile sizes"


def preference(arguments: Arguments, platform: str) -> str | None:
    """Return why it is the default, on a CPU for many keys; None if it is not."""
    num_keys = arguments.key.shape[-3]
    if platform != "cpu" or num_keys < 2 * MIN_KEYS or arguments.block_mask is not None:
        return None
    return f"one query: its keys are computed in {num_parts(num_keys)} parts and merged"


def num_parts(num_keys: int) -> int:
    """Return into how many equal parts the keys are cut."""
    most = min(MAX_PARTS, num_keys // MIN_KEYS)
    return next((parts for parts in range(most, 1, -1) if num_keys % parts == 0), 1)


@jax.jit
def attend_one_query(arguments: Arguments) -> dict[str, Array]:
    """Return "output" and "logsumexp" for arguments that are not refused."""
    output, logsumexp = over_examples(_attend_example, arguments)
    return share_with_sinks({"output": output, "logsumexp": logsumexp}, arguments.sinks)


def _attend_example(one: Arguments) -> tuple[Array, Array]:
    """Return output `[1, N, Hv]` and logsumexp `[N, 1]` of one example."""
    num_keys, num_kv_heads = one.key.shape[:2]
    num_heads, parts = one.query.shape[1], num_parts(num_keys)

    def of_heads(array: Array) -> Array:  # [N, ...] -> [K, G, ...]
        return array.reshape(num_kv_heads, -1, *array.shape[1:])

    def of_keys(array: Array) -> Array:  # [S, K, H] -> [K, parts, S/parts, H]
        array = jnp.swapaxes(array, 0, 1)
        return array.reshape(num_kv_heads, parts, -1, *array.shape[2:])

    def of_pairs(array: Array) -> Array:  # [N, S] -> [K, parts, G, S/parts]
        return jnp.swapaxes(array.reshape(num_kv_heads, -1, parts, num_keys // parts), 1, 2)

    query, key, value, *pairs, nan = _operands(one)
    group = of_heads(query)[:, None]  # with an axis of parts, so that no product merges it
    operands = (
        jnp.broadcast_to(group, (num_kv_heads, parts, *group.shape[2:])),
        of_keys(key),
        of_keys(value),
        *map(of_pairs, pairs),
        of_heads(nan),
        jax.tree.map(of_heads, (one.heads, [score.by_head() for score in one.scores])),
        one.key_positions.reshape(parts, -1),
    )
    over_parts = jax.vmap(partial(_attend_part, one), (0, 0, 0, 0, 0, None, None, 0))
    outputs, logsumexps = jax.vmap(over_parts, (0, 0, 0, 0, 0, 0, 0, None), 1)(*operands)
    return merge(
        [
            (output.reshape(1, num_heads, -1), logsumexp.reshape(num_heads, 1))
            for output, logsumexp in zip(outputs, logsumexps, strict=True)
        ]
    )


def _operands(one: Arguments) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return query, key and value, visible pairs, dropout factors, and a number for each head.

    In query `[N, H]`, key and value, non-finite numbers are replaced by 0. The visible pairs and
    the dropout factors are `[N, S]`. The number `[N]` is added to all scores of a head: NaN if the
    query, or any key or value that it attends to, is not finite, since each part must then return
    NaN; else 0.
    """
    num_heads, pairs = one.query.shape[1], (one.query.shape[1], one.key.shape[0])
    query, key, value, *nonfinite = replace_nonfinite(
        one.query, one.key, one.value, one.nonfinite_keys
    )
    allowed = dense_mask(one)
    allowed = jnp.broadcast_to(True if allowed is None else allowed[:, 0], pairs)
    keep = jnp.ones(pairs, one.dtype)
    if one.dropout is not None:
        keep = keep_factor(one.dropout, one.heads, one.query_positions, one.key_positions)[:, 0]
    flags = jnp.repeat(nonfinite[1].T, num_heads // one.key.shape[1], axis=0)  # [N, S]
    nan = nan_where((allowed & flags).any(axis=1) | nonfinite[0][0], one.dtype)
    return query[0], key, value, allowed, keep, nan


def _attend_part(
    one: Arguments,
    query: Array,
    key: Array,
    value: Array,
    allowed: Array,
    keep: Array,
    nan: Array,
    heads: tuple[Array, list[Score | None]],
    positions: Array,
) -> tuple[Array, Array]:
    """Return output `[G, Hv]` and logsumexp `[G]` of a group over some keys `[S/parts, H]`."""

    def change(values: Array, head: Array, of_head: list[Score | None]) -> Array:
        return apply_scores(one.scores, of_head, values, one.query_positions[0], positions, head)

    output, _, logsumexp = scaled_dot_product(
        query,
        key,
        value,
        allowed,
        one.scale,
        keep,
        lambda scores: jax.vmap(change)(scores, *heads) + nan[:, None],
        jnp.zeros(key.shape[0], bool),
        one.precision,
    )
    return output, logsumexp
