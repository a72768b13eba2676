"""The kernels that make gradients (Dao 2023, FlashAttention-2, algorithm 2).

With weights w and the gradients dO of the output and dl of the logsumexp, that of a score is
w · (dO·v + dl - dO·O). One kernel sums over keys for each query, the other over queries for each
key, so that none adds into the memory of another.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from attention.primitives.kernels.layout import (
    Fixed,
    Layout,
    Learned,
    fixed_operands,
    learned_operands,
    padded,
)
from attention.primitives.kernels.programs import call_kernel, fold_visits, head_and_tile
from attention.primitives.kernels.sizes import KernelSize
from attention.primitives.kernels.tile import Pairs, Refs, dot, exp
from attention.primitives.kernels.visits import Visits


def backward(
    learned: Learned,
    fixed: Fixed,
    found: tuple[Array, Array],
    cotangents: tuple[Array, Array],
    size: KernelSize,
    interpret: bool,
) -> Learned:
    """The gradients of what is learned, from output and logsumexp and their cotangents."""
    layout = Layout.of(learned, size)
    given, pull_back = jax.vjp(partial(learned_operands, layout=layout), learned)
    still, touched = fixed_operands(fixed, layout)
    operands = given | still | _rows_operands(found, cotangents, layout)
    arguments = {"layout": layout, "fixed": fixed}

    def shape(like: Array, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(like.shape, dtype)

    by_row = call_kernel(
        partial(query_kernel, **arguments),
        operands | ({} if touched is None else {"visits": Visits.of_rows(touched)}),
        {
            "query": shape(given["query"], jnp.float32),
            "score_gradients": [
                jax.ShapeDtypeStruct((*number.shape[:2], layout.rows, 1), jnp.float32)
                for number in jax.tree.leaves(given["scores"])
            ],
        },
        layout,
        "row",
        interpret,
    )
    by_column = call_kernel(
        partial(key_kernel, **arguments),
        operands | ({} if touched is None else {"visits": Visits.of_columns(touched)}),
        {name: shape(given[name], given[name].dtype) for name in ("key", "value")},
        layout,
        "column",
        interpret,
    )
    # What came back for the query is that of scale · query.
    of_scaled = by_row["query"]
    numbers = [gradient.sum(axis=2) for gradient in by_row["score_gradients"]]
    gradients = by_column | {
        "query": (learned.scale * of_scaled).astype(given["query"].dtype),
        "scale": jnp.sum(of_scaled * given["query"].astype(jnp.float32)).reshape(1),
        "scores": jax.tree.unflatten(jax.tree.structure(given["scores"]), numbers),
    }
    return pull_back(gradients)[0]


def _rows_operands(
    found: tuple[Array, Array], cotangents: tuple[Array, Array], layout: Layout
) -> dict[str, Array]:
    """The cotangent of the output `[B, T, N, Hv]`; logsumexp and dl - dO·O `[B, N, T]`."""
    tokens = layout.rows * layout.size.rows
    output, d_output = (
        array.reshape(layout.examples, *array.shape[-3:]) for array in (found[0], cotangents[0])
    )
    logsumexp, d_logsumexp = (
        array.reshape(layout.examples, *array.shape[-2:]) for array in (found[1], cotangents[1])
    )
    along = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1)
    along = jnp.swapaxes(along, 1, 2)
    # exp(score - inf) is the weight of whoever sees nothing, and of rows that only fill a tile.
    logsumexp = jnp.where(jnp.isneginf(logsumexp), jnp.inf, logsumexp)
    d_output = d_output.astype(layout.dtype)
    return {
        "output": padded(padded(d_output, 1, tokens), 3, layout.value_width),
        "logsumexp": padded(logsumexp, 2, tokens, constant_values=jnp.inf),
        "offset": padded(d_logsumexp - along, 2, tokens),
    }


def query_kernel(refs: Refs, results: Refs, *, layout: Layout, fixed: Fixed) -> None:
    """One tile of queries of one head: sums over the keys."""
    pairs = Pairs.of(refs, fixed, layout)
    head, tile = head_and_tile(layout, "row")
    query, queries = refs["query"][...], pairs.queries(tile)
    d_output, logsumexp = refs["output"][...], refs["logsumexp"][...][:, None]
    offset = refs["offset"][...][:, None]
    numbers = [ref[0] for ref in jax.tree.leaves(refs["scores"])]

    def visit(masked: bool, column: Array, carry: list[Array]) -> list[Array]:
        d_query, *d_numbers = carry
        keys = pairs.keys(column)
        here = pl.ds(column * layout.size.columns, layout.size.columns)
        key = refs["key"][here, :]
        products = refs["scale"][0] * dot(query, key, transpose=True)
        change = pairs.change(refs["scores"], head, queries, keys)
        scores, pull_back = jax.vjp(change, products, *numbers)
        weights = exp(scores - logsumexp)
        if masked:
            weights = jnp.where(pairs.allowed(queries, keys), weights, 0)
        d_kept = dot(d_output, refs["value"][here, :], transpose=True)
        d_weights = pairs.kept(d_kept, head, queries, keys) + offset
        d_products, *more = pull_back(weights * d_weights)
        d_query = d_query + dot(d_products.astype(key.dtype), key)
        return [d_query, *(total + new for total, new in zip(d_numbers, more, strict=True))]

    start = [jnp.zeros(query.shape, jnp.float32), *(jnp.zeros((), jnp.float32) for _ in numbers)]
    sums = fold_visits(refs.get("visits"), layout.columns, visit, start)
    results["query"][...] = sums[0]
    for ref, total in zip(results["score_gradients"], sums[1:], strict=True):
        ref[0] = total


def key_kernel(refs: Refs, results: Refs, *, layout: Layout, fixed: Fixed) -> None:
    """One tile of keys of one key/value head: sums over the queries of each head of the group.

    Tiles are transposed, keys down and queries across, so that no product needs it.
    """
    pairs = Pairs.of(refs, fixed, layout, query_axis=1)
    kv_head, tile = head_and_tile(layout, "column")
    key, value = refs["key"][...], refs["value"][...]
    keys = pairs.keys(tile)

    def of_head(group: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        head = kv_head * layout.groups + group
        numbers = [ref[group, 0] for ref in jax.tree.leaves(refs["scores"])]

        def visit(masked: bool, row: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            d_key, d_value = carry
            queries = pairs.queries(row)
            here = pl.ds(row * layout.size.rows, layout.size.rows)
            query, d_output = refs["query"][here, group, :], refs["output"][here, group, :]
            products = refs["scale"][0] * dot(key, query, transpose=True)
            change = pairs.change(refs["scores"], head, queries, keys)
            scores, pull_back = jax.vjp(lambda products: change(products, *numbers), products)
            weights = exp(scores - refs["logsumexp"][group, here][None, :])
            if masked:
                weights = jnp.where(pairs.allowed(queries, keys), weights, 0)
            kept = pairs.kept(weights, head, queries, keys)
            d_value = d_value + dot(kept.astype(d_output.dtype), d_output)
            d_kept = dot(value, d_output, transpose=True)
            d_weights = pairs.kept(d_kept, head, queries, keys)
            d_weights = d_weights + refs["offset"][group, here][None, :]
            (d_products,) = pull_back(weights * d_weights)
            return d_key + dot(d_products.astype(query.dtype), query), d_value

        return fold_visits(refs.get("visits"), layout.rows, visit, carry)

    carry = jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32)
    d_key, d_value = jax.lax.fori_loop(jnp.int32(0), jnp.int32(layout.groups), of_head, carry)
    results["key"][...] = (refs["scale"][0] * d_key).astype(results["key"].dtype)
    results["value"][...] = d_value.astype(results["value"].dtype)
