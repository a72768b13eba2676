"""Tables of learned numbers: drawn, and read by row."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


def table(shape: tuple[int, int] | None, width: int, *, rngs: nnx.Rngs) -> nnx.Param | None:
    """Numbers of variance 1/D for a model of width D; nothing without a shape."""
    if shape is None:
        return None
    return nnx.Param(jax.nn.initializers.normal(width**-0.5)(rngs.params(), shape))


def rows(table: Array, numbers: Array) -> Array:
    """Rows of a table; outside it there is NaN, which nobody overlooks, and not another row."""
    return table.at[numbers].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
