"""flax.nnx.dot_product_attention, and nnx.MultiHeadAttention with identity projections."""

import flax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention import Dropout
from experiments.conformance.candidate import Candidate, for_heads

SUPPORTS = frozenset(
    {
        *("jit", "vmap", "gradients", "jvp", "second_derivatives", "mask", "cross"),
        *("value_width", "leading_axes", "dropout", "bfloat16", "float16", "float64"),
        "sharding",
    }
)


# Keys and values are projected to one width.
MODULE_SUPPORTS = SUPPORTS - {"value_width"}


def candidate() -> Candidate:
    """Return the function of the installed flax."""
    name = "flax.nnx.dot_product_attention"
    return Candidate(name, f"flax {flax.__version__}", attend, SUPPORTS)


def module_candidate() -> Candidate:
    """Return the module of the installed flax."""
    name = "flax.nnx.MultiHeadAttention"
    return Candidate(name, f"flax {flax.__version__}", attend_by_module, MODULE_SUPPORTS)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Call the function with the arguments and results of `attention.attend`."""
    return nnx.dot_product_attention(
        query,
        key,
        value,
        mask=for_heads(mask),
        dropout_rng=None if dropout is None else dropout.rng,
        dropout_rate=0.0 if dropout is None else dropout.rate,
        broadcast_dropout=False,
        deterministic=dropout is None,
    )


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
        mask=for_heads(mask),
        rngs=None if dropout is None else nnx.Rngs(dropout=dropout.rng),
    )
    return found.reshape(query.shape)
