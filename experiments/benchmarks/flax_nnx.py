"""flax.nnx.dot_product_attention: a flag for causal, a bool array for all else."""

from collections.abc import Iterator

import flax
from flax import nnx
from jax import Array

from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import Contender
from experiments.benchmarks.jax_program import Call, jax_contender


def contenders() -> Iterator[Contender]:
    """The function that nnx.MultiHeadAttention calls."""
    yield jax_contender("flax.nnx", f"flax {flax.__version__}", _call)


def _call(case: Case) -> Call:
    def function(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
        return nnx.dot_product_attention(
            query, key, value, mask=mask, deterministic=True, is_causal=case.pattern == "causal"
        )

    dense = case.pattern in ("window", "packed")
    return Call(function, (case.allowed()[None, None],) if dense else ())
