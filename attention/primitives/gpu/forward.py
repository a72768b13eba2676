"""The kernel for output and logsumexp (Dao 2023, FlashAttention-2, algorithm 1)."""

from functools import partial

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
    nan_operands,
)
from attention.primitives.gpu.programs import call_kernel, tile_index, tile_loop
from attention.primitives.gpu.sizes import KernelSize
from attention.primitives.gpu.tile import Refs, TileFunctions, dot, exp
from attention.primitives.gpu.tile_lists import TileLists


def forward(
    inputs: Inputs, constants: Constants, precision: str, size: KernelSize, interpret: bool
) -> tuple[Array, Array]:
    """Return output `[..., T, N, Hv]` in the query's dtype and logsumexp float32 `[..., N, T]`.

    Query, key and value are finite. A fully masked query gets output 0 and logsumexp -inf.
    """
    layout = Layout.of(inputs, constants, precision, size)
    operands, bounds = constant_operands(constants, layout)
    operands |= input_operands(inputs, layout) | nan_operands(constants, layout)
    if bounds is not None:
        operands["tile_lists"] = TileLists.of_rows(bounds)
    batch, queries, heads = layout.examples, layout.padded_queries, layout.num_heads
    output_shape = batch, queries, heads, layout.value_width
    results = call_kernel(
        partial(forward_kernel, layout=layout),
        operands,
        {
            "output": jax.ShapeDtypeStruct(output_shape, inputs.query.dtype),
            "logsumexp": jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32),
        },
        layout,
        "row",
        interpret,
    )
    output = results["output"][:, : layout.num_queries, :, : inputs.value.shape[-1]]
    logsumexp = results["logsumexp"][:, :, : layout.num_queries]
    return (
        output.reshape(*layout.batch, *output.shape[1:]),
        logsumexp.reshape(*layout.batch, *logsumexp.shape[1:]),
    )


def forward_kernel(refs: Refs, results: Refs, *, layout: Layout) -> None:
    """Compute one tile of queries of one head with an online softmax."""
    functions = TileFunctions(refs, layout)
    tile = tile_index(layout, "row")
    query, queries = refs["query"][...], functions.queries(tile)
    head, entries = functions.head(), functions.head_entries()

    def step(
        masked: bool, column: Array, carry: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array]:
        peak, total, output = carry
        keys = functions.keys(column)
        here = pl.ds(column * layout.size.columns, layout.size.columns)
        products = dot(query, refs["key"][here, :], layout.precision, transpose=True)
        scores = functions.score(queries, keys)(refs["scale"][0] * products, *entries)
        if "query_nan" in refs:
            scores = scores + (refs["query_nan"][...][:, None] + refs["key_nan"][here][None, :])
        if masked:
            scores = jnp.where(functions.allowed(queries, keys), scores, -jnp.inf)
        higher = jnp.maximum(peak, scores.max(axis=1))
        level = jnp.where(higher == -jnp.inf, 0, higher)  # no visible key so far
        weights = exp(scores - level[:, None])
        shrink = exp(peak - level)
        dropped = functions.drop(weights, head, queries, keys)
        value = refs["value"][here, :]
        output = output * shrink[:, None] + dot(
            dropped.astype(value.dtype), value, layout.precision
        )
        return higher, total * shrink + weights.sum(axis=1), output

    rows = layout.size.rows
    start = (
        jnp.full((rows,), -jnp.inf, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows, layout.value_width), jnp.float32),
    )
    peak, total, output = tile_loop(refs.get("tile_lists"), layout.columns, step, start)
    # A NaN score makes the total NaN, whether or not the maximum of the platform keeps NaN.
    empty = total == 0
    total = jnp.where(empty, 1, total)
    results["output"][...] = (output / total[:, None]).astype(results["output"].dtype)
    results["logsumexp"][...] = jnp.where(empty, -jnp.inf, peak + jnp.log(total))
