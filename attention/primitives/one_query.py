"""Attention of one query over many keys, cut into parts that are merged.

As in flash decoding (Dao et al. 2023): the cores compute parts of the keys side by side, and
`merge` combines them. The query heads of a group are the rows of one matrix, so the keys of a
`Cache` are read in the order in which they are stored and never copied.
"""

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.arguments import Arguments
from attention.primitives.dense_mask import dense_mask
from attention.primitives.dot_product import over_examples, scaled_dot_product
from attention.primitives.dropout import keep_factor
from attention.primitives.merge import merge
from attention.primitives.nonfinite import nan_where, replace_nonfinite
from attention.primitives.scores import Score
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
    num_keys, num_kv_heads = arguments.key.shape[-3:-1]
    num_heads = arguments.query.shape[-2]
    parts = num_parts(num_keys)

    def example(one: Arguments) -> tuple[Array, Array]:
        query, key, value, *nonfinite = replace_nonfinite(
            one.query, one.key, one.value, one.nonfinite_keys
        )
        allowed = dense_mask(one)
        visible = True if allowed is None else jnp.broadcast_to(allowed, (num_heads, 1, num_keys))
        flags = jnp.repeat(nonfinite[1], num_heads // num_kv_heads, axis=1).T[:, None, :]
        # A non-finite key in one part concerns all parts: NaN is added to all scores of its head.
        nan = nan_where((visible & flags).any(axis=(1, 2)) | nonfinite[0][0], arguments.dtype)
        keep = None
        if one.dropout is not None:
            keep = keep_factor(one.dropout, one.heads, one.query_positions, one.key_positions)

        def one_part(
            query: Array,
            key: Array,
            value: Array,
            allowed: Array | None,
            keep: Array | None,
            nan: Array,
            heads: tuple[Array, list[Score | None]],
            positions: Array,
        ) -> tuple[Array, Array]:
            """Queries `[G, H]` of one group over keys `[S/parts, H]`."""

            def change(values: Array, head: Array, own: list[Score | None]) -> Array:
                for shared, of_head in zip(one.scores, own, strict=True):
                    score = shared if of_head is None else of_head
                    values = score(values, one.query_positions[0], positions, head)
                return values

            output, _, logsumexp = scaled_dot_product(
                query,
                key,
                value,
                True if allowed is None else allowed,
                one.scale,
                1.0 if keep is None else keep,
                lambda values: jax.vmap(change)(values, *heads) + nan[:, None],
                jnp.zeros(key.shape[0], bool),
                one.precision,
            )
            return output, logsumexp

        def of_heads(array: Array) -> Array:  # [N, ...] -> [K, G, ...]
            return array.reshape(num_kv_heads, -1, *array.shape[1:])

        def of_keys(array: Array) -> Array:  # [S, K, H] -> [K, parts, S/parts, H]
            array = jnp.swapaxes(array, 0, 1)
            return array.reshape(num_kv_heads, parts, -1, *array.shape[2:])

        def of_pairs(pairs: Array | None) -> Array | None:  # -> [K, parts, G, S/parts]
            if pairs is None:
                return None
            pairs = jnp.broadcast_to(pairs, (num_heads, 1, num_keys))
            return jnp.swapaxes(pairs.reshape(num_kv_heads, -1, parts, num_keys // parts), 1, 2)

        group = of_heads(query[0])[:, None]  # with an axis of parts, so that no product merges it
        operands = (
            jnp.broadcast_to(group, (num_kv_heads, parts, *group.shape[2:])),
            of_keys(key),
            of_keys(value),
            of_pairs(allowed),
            of_pairs(keep),
            of_heads(nan),
            jax.tree.map(of_heads, (one.heads, [score.by_head() for score in one.scores])),
            one.key_positions.reshape(parts, -1),
        )
        over_parts = jax.vmap(one_part, (0, 0, 0, 0, 0, None, None, 0))
        outputs, logsumexps = jax.vmap(over_parts, (0, 0, 0, 0, 0, 0, 0, None), 1)(*operands)
        return merge(
            [
                (output.reshape(1, num_heads, -1), logsumexp.reshape(num_heads, 1))
                for output, logsumexp in zip(outputs, logsumexps, strict=True)
            ]
        )

    output, logsumexp = over_examples(example, arguments)
    return share_with_sinks({"output": output, "logsumexp": logsumexp}, arguments.sinks)
