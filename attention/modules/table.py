"""Tables of learned vectors."""

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike


def table(
    shape: tuple[int, int],
    axes: tuple[str | None, str | None],
    *,
    init: Initializer | None = None,
    dtype: DTypeLike = jnp.float32,
    rngs: nnx.Rngs,
) -> nnx.Param:
    """Make a table `[rows, D]` with logical axis names, of variance 1/D if `init` is None."""
    init = nnx.initializers.normal(shape[-1] ** -0.5) if init is None else init
    return nnx.Param(init(rngs.params(), shape, dtype), axes=axes)


def rows(table: Array, numbers: Array) -> Array:
    """Return rows of a table `[rows, D]`; a number out of range gives NaN."""
    return table.at[numbers].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
