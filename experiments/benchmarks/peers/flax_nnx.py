"""flax.nnx.dot_product_attention, which nnx.MultiHeadAttention calls."""

from collections.abc import Iterator
from typing import Any

import flax
from flax import nnx
from jax import Array

from attention import Dropout
from experiments.benchmarks.contender import Contender, jax_peer

FLAGS = {"causal": {"is_causal": True}}
SUPPORTS = {"value_width", "leading_axes", "dropout"}


def contenders() -> Iterator[Contender]:
    """Yield the function."""
    yield jax_peer("flax.nnx", f"flax {flax.__version__}", attend, FLAGS, SUPPORTS)


def attend(*inputs: Array, dropout: Dropout | None = None, **options: Any) -> Array:  # noqa: ANN401 - of the function itself
    """Call the function with the arguments and results of `attention.attend`."""
    if dropout is not None:
        options |= {"dropout_rng": dropout.rng, "dropout_rate": dropout.rate}
    options |= {"broadcast_dropout": False, "deterministic": dropout is None}
    return nnx.dot_product_attention(*inputs, **options)
