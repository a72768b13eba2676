"""The kernels for gradients (Dao 2023, FlashAttention-2, algorithm 2).

With weights w and the gradients dO of the output and dl of the logsumexp, the gradient of a score
is w · (dO·v + dl - dO·O). One kernel sums over keys for each query, the other over queries for
each key, so that no two programs add into the same memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from attention.primitives.gpu.inputs import (
    Constants,
    Inputs,
    Layout,
    constant_operands,
    input_operands,
    padded,
)
from attention.primitives.gpu.programs import By, call_kernel, tile_index, tile_loop
from attention.primitives.gpu.sizes import KernelSize
from attention.primitives.gpu.tile import Refs, TileFunctions, dot, exp
from attention.primitives.gpu.tile_lists import TileLists


def backward(
    inputs: Inputs,
    constants: Constants,
    results: tuple[Array, Array],
    cotangents: tuple[Array, Array],
    precision: str,
    size: KernelSize,
    interpret: bool,
) -> Inputs:
    """Return the gradients of the inputs, from output and logsumexp and their cotangents."""
    layout = Layout.of(inputs, constants, precision, size)
    given, pull_back = jax.vjp(partial(input_operands, layout=layout), inputs)
    others, bounds = constant_operands(constants, layout)
    operands = given | others | _row_operands(results, cotangents, layout)

    def gradients_by(
        axis: By, kernel: Callable[..., None], shapes: dict[str, Any]
    ) -> dict[str, Any]:
        lists = {}
        if bounds is not None:
            of = TileLists.of_rows if axis == "row" else TileLists.of_columns
            lists = {"tile_lists": of(bounds)}
        kernel = partial(kernel, layout=layout)
        return call_kernel(kernel, operands | lists, shapes, layout, axis, interpret)

    by_query = gradients_by(
        "row",
        query_kernel,
        {
            "query": jax.ShapeDtypeStruct(given["query"].shape, jnp.float32),
            "score_gradients": [
                jax.ShapeDtypeStruct((*entries.shape[:2], layout.rows, 1), jnp.float32)
                for entries in jax.tree.leaves(given["scores"])
            ],
        },
    )
    by_key = gradients_by(
        "column",
        key_kernel,
        {
            name: jax.ShapeDtypeStruct(given[name].shape, given[name].dtype)
            for name in ("key", "value")
        },
    )
    d_scaled = by_query["query"]  # the gradient of scale · query
    entries = [gradient.sum(axis=2) for gradient in by_query["score_gradients"]]
    gradients = by_key | {
        "query": (inputs.scale * d_scaled).astype(given["query"].dtype),
        "scale": jnp.sum(d_scaled * given["query"].astype(jnp.float32)).reshape(1),
        "scores": jax.tree.unflatten(jax.tree.structure(given["scores"]), entries),
    }
    return pull_back(gradients)[0]


def _row_operands(
    results: tuple[Array, Array], cotangents: tuple[Array, Array], layout: Layout
) -> dict[str, Array]:
    """Return the cotangent of the output `[B, T, N, Hv]`, logsumexp and dl - dO·O `[B, N, T]`."""
    output, d_output = (layout.one_batch_axis(x, 3) for x in (results[0], cotangents[0]))
    logsumexp, d_logsumexp = (layout.one_batch_axis(x, 2) for x in (results[1], cotangents[1]))
    along = jnp.sum(d_output.astype(jnp.float32) * output.astype(jnp.float32), axis=-1)
    offset = d_logsumexp - jnp.swapaxes(along, 1, 2)
    # The weights of a fully masked query are exp(score - inf) = 0, like those of padding.
    empty = jnp.isneginf(logsumexp)
    offset, logsumexp = jnp.where(empty, 0, offset), jnp.where(empty, jnp.inf, logsumexp)
    # A NaN logsumexp makes the gradients of visible keys NaN. A NaN cotangent would also reach the
    # masked keys of the query, as 0 · NaN.
    finite = jnp.isfinite(jnp.swapaxes(logsumexp, 1, 2))[..., None]
    d_output = jnp.where(finite, d_output, 0).astype(layout.dtype)
    tokens = layout.padded_queries
    return {
        "d_output": padded(padded(d_output, 1, tokens), 3, layout.value_width),
        "logsumexp": padded(logsumexp, 2, tokens, constant_values=jnp.inf),
        "offset": padded(offset, 2, tokens),
    }


def _weights(scores: Array, logsumexp: Array) -> Array:
    """Return exp(scores - logsumexp), at most 1; NaN stays NaN."""
    exponents = scores - logsumexp
    return exp(jnp.where(exponents > 0, 0, exponents))


def query_kernel(refs: Refs, results: Refs, *, layout: Layout) -> None:
    """Compute the gradients of one tile of queries of one head: sums over the keys."""
    functions = TileFunctions(refs, layout)
    tile = tile_index(layout, "row")
    query, queries = refs["query"][...], functions.queries(tile)
    d_output, logsumexp = refs["d_output"][...], refs["logsumexp"][...][:, None]
    offset = refs["offset"][...][:, None]
    head, entries = functions.head(), functions.head_entries()
    product = partial(dot, precision=layout.precision)

    def step(masked: bool, column: Array, carry: list[Array]) -> list[Array]:
        keys = functions.keys(column)
        here = pl.ds(column * layout.size.columns, layout.size.columns)
        key = refs["key"][here, :]
        products = refs["scale"][0] * product(query, key, transpose=True)
        scores, pull_back = jax.vjp(functions.score(queries, keys), products, *entries)
        d_weights = product(d_output, refs["value"][here, :], transpose=True)
        d_weights = functions.drop(d_weights, head, queries, keys) + offset
        d_scores = _weights(scores, logsumexp) * d_weights
        if masked:
            d_scores = jnp.where(functions.allowed(queries, keys), d_scores, 0)
        d_products, *d_entries = pull_back(d_scores)
        new = product(d_products.astype(key.dtype), key), *d_entries
        return [total + one for total, one in zip(carry, new, strict=True)]

    start = [jnp.zeros(query.shape, jnp.float32), *(jnp.zeros((), jnp.float32) for _ in entries)]
    sums = tile_loop(refs.get("tile_lists"), layout.columns, step, start)
    results["query"][...] = sums[0]
    for ref, total in zip(results["score_gradients"], sums[1:], strict=True):
        ref[0] = total


def key_kernel(refs: Refs, results: Refs, *, layout: Layout) -> None:
    """Compute the gradients of one tile of keys: sums over the queries of each head of the group.

    Tiles are transposed, keys down and queries across, so that no product needs a transpose.
    """
    functions = TileFunctions(refs, layout, query_axis=1)
    tile = tile_index(layout, "column")
    key, value = refs["key"][...], refs["value"][...]
    keys = functions.keys(tile)
    product = partial(dot, precision=layout.precision)

    def one_head(group: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        head, entries = functions.head(group), functions.head_entries(group)

        def step(masked: bool, row: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            d_key, d_value = carry
            queries = functions.queries(row)
            here = pl.ds(row * layout.size.rows, layout.size.rows)
            query, d_output = refs["query"][here, group, :], refs["d_output"][here, group, :]
            products = refs["scale"][0] * product(key, query, transpose=True)
            score = functions.score(queries, keys)
            scores, pull_back = jax.vjp(lambda products: score(products, *entries), products)
            weights = _weights(scores, refs["logsumexp"][group, here][None, :])
            d_weights = product(value, d_output, transpose=True)
            d_weights = functions.drop(d_weights, head, queries, keys)
            d_scores = weights * (d_weights + refs["offset"][group, here][None, :])
            if masked:
                allowed = functions.allowed(queries, keys)
                weights = jnp.where(allowed, weights, 0)
                d_scores = jnp.where(allowed, d_scores, 0)
            dropped = functions.drop(weights, head, queries, keys)
            (d_products,) = pull_back(d_scores)
            return (
                d_key + product(d_products.astype(query.dtype), query),
                d_value + product(dropped.astype(d_output.dtype), d_output),
            )

        return tile_loop(refs.get("tile_lists"), layout.rows, step, carry)

    carry = jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32)
    d_key, d_value = jax.lax.fori_loop(jnp.int32(0), jnp.int32(layout.groups), one_head, carry)
    results["key"][...] = (refs["scale"][0] * d_key).astype(results["key"].dtype)
    results["value"][...] = d_value.astype(results["value"].dtype)
