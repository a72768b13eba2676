"""flax.nnx.dot_product_attention, and nnx.MultiHeadAttention with identity projections."""

from collections.abc import Iterator
from typing import Any

import flax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention import Dropout
from experiments.benchmarks.contender import COMMON, Candidate, Contender
from experiments.benchmarks.jax_program import flags_or_mask, jax_contender

VERSION = f"flax {flax.__version__}"
SUPPORTS = COMMON | {"value_width", "leading_axes", "dropout"}
# Keys and values are projected to one width, and projections of sharded heads are summed.
MODULE_SUPPORTS = SUPPORTS - {"value_width", "sharding"}


def candidates() -> Iterator[Candidate]:
    """Yield the function and the module."""
    yield Candidate("flax.nnx.dot_product_attention", VERSION, attend, SUPPORTS)
    yield Candidate("flax.nnx.MultiHeadAttention", VERSION, attend_by_module, MODULE_SUPPORTS)


def contenders() -> Iterator[Contender]:
    """Yield the function, which nnx.MultiHeadAttention calls."""
    call = flags_or_mask(attend, {"causal": {"is_causal": True}})
    yield jax_contender("flax.nnx", VERSION, call)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    dropout: Dropout | None = None,
    **options: Any,  # noqa: ANN401 - of the function itself
) -> Array:
    """Call the function with the arguments and results of `attention.attend`."""
    if dropout is not None:
        options |= {"dropout_rng": dropout.rng, "dropout_rate": dropout.rate}
    options |= {"broadcast_dropout": False, "deterministic": dropout is None}
    return nnx.dot_product_attention(query, key, value, mask=mask, **options)


def attend_by_module(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Call the module with the arguments and results of `attention.attend`."""
    *_, num_heads, width = query.shape
    features = num_heads * width

    def identity(_: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
        return jnp.eye(*shape, dtype=dtype)

    module = nnx.MultiHeadAttention(
        num_heads=num_heads,
        in_features=features,
        qkv_features=features,
        use_bias=False,
        kernel_init=identity,
        dropout_rate=0.0 if dropout is None else dropout.rate,
        broadcast_dropout=False,
        deterministic=dropout is None,
        decode=False,
        dtype=query.dtype,
        param_dtype=query.dtype,
        rngs=nnx.Rngs(0),
    )
    found = module(
        *(array.reshape(*array.shape[:-2], features) for array in (query, key, value)),
        mask=mask,
        rngs=None if dropout is None else nnx.Rngs(dropout=dropout.rng),
    )
    return found.reshape(query.shape)
