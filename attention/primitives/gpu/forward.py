"""The kernel that makes output and logsumexp (Dao 2023, FlashAttention-2, algorithm 1)."""

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
)
from attention.primitives.kernels.programs import call_kernel, fold_visits, head_and_tile
from attention.primitives.kernels.sizes import KernelSize
from attention.primitives.kernels.tile import Pairs, Refs, dot, exp
from attention.primitives.kernels.visits import Visits


def forward(
    learned: Learned, fixed: Fixed, size: KernelSize, interpret: bool
) -> tuple[Array, Array]:
    """Output `[..., T, N, Hv]` in the query's dtype and logsumexp float32 `[..., N, T]`.

    Inputs are finite. A query that may see nothing gets output 0 and logsumexp -inf.
    """
    layout = Layout.of(learned, size)
    still, touched = fixed_operands(fixed, layout)
    operands = learned_operands(learned, layout) | still
    if touched is not None:
        operands["visits"] = Visits.of_rows(touched)
    tokens = operands["query"].shape[1]
    heads = layout.examples, layout.num_heads
    found = call_kernel(
        partial(forward_kernel, layout=layout, fixed=fixed),
        operands,
        {
            "output": jax.ShapeDtypeStruct(
                (heads[0], tokens, heads[1], layout.value_width), learned.query.dtype
            ),
            "logsumexp": jax.ShapeDtypeStruct((*heads, tokens), jnp.float32),
        },
        layout,
        "row",
        interpret,
    )
    output = found["output"][:, : layout.num_queries, :, : learned.value.shape[-1]]
    logsumexp = found["logsumexp"][:, :, : layout.num_queries]
    return (
        output.reshape(*layout.batch, *output.shape[1:]),
        logsumexp.reshape(*layout.batch, *logsumexp.shape[1:]),
    )


def forward_kernel(refs: Refs, results: Refs, *, layout: Layout, fixed: Fixed) -> None:
    """One tile of queries of one head: keeps the peak of the scores and sums scaled by it."""
    pairs = Pairs.of(refs, fixed, layout)
    head, tile = head_and_tile(layout, "row")
    query, queries = refs["query"][...], pairs.queries(tile)
    numbers = [ref[0] for ref in jax.tree.leaves(refs["scores"])]

    def visit(
        masked: bool, column: Array, carry: tuple[Array, Array, Array]
    ) -> tuple[Array, Array, Array]:
        peak, total, output = carry
        keys = pairs.keys(column)
        here = pl.ds(column * layout.size.columns, layout.size.columns)
        products = refs["scale"][0] * dot(query, refs["key"][here, :], transpose=True)
        scores = pairs.change(refs["scores"], head, queries, keys)(products, *numbers)
        if masked:
            scores = jnp.where(pairs.allowed(queries, keys), scores, -jnp.inf)
        higher = jnp.maximum(peak, scores.max(axis=1))
        level = jnp.where(higher == -jnp.inf, 0, higher)  # nothing is seen yet
        weights = exp(scores - level[:, None])
        shrink = exp(peak - level)
        kept = pairs.kept(weights, head, queries, keys)
        value = refs["value"][here, :]
        output = output * shrink[:, None] + dot(kept.astype(value.dtype), value)
        return higher, total * shrink + weights.sum(axis=1), output

    rows = layout.size.rows
    start = (
        jnp.full((rows,), -jnp.inf, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros((rows, layout.value_width), jnp.float32),
    )
    peak, total, output = fold_visits(refs.get("visits"), layout.columns, visit, start)
    empty = total == 0
    total = jnp.where(empty, 1, total)
    results["output"][...] = (output / total[:, None]).astype(results["output"].dtype)
    results["logsumexp"][...] = jnp.where(empty, -jnp.inf, peak + jnp.log(total))
