"""flax.nnx.dot_product_attention, which nnx.MultiHeadAttention calls."""

from collections.abc import Iterator
from typing import Any

import flax
from flax import nnx
from jax import Array

from attention import Dropout
from experiments.benchmarks.contender import (
    COMMON,
    Candidate,
    Contender,
    flags_or_mask,
    jax_contender,
)

VERSION = f"flax {flax.__version__}"
SUPPORTS = COMMON | {"value_width", "leading_axes", "dropout"}


def candidates() -> Iterator[Candidate]:
    """Yield the function."""
    yield Candidate("flax.nnx.dot_product_attention", VERSION, attend, SUPPORTS)


def contenders() -> Iterator[Contender]:
    """Yield the function."""
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
