"""jax.nn.dot_product_attention: its mask has an axis of heads, its residual is `[B, T, N]`."""

from typing import Any

import jax
from jax import Array

from experiments.conformance.candidate import Candidate, for_heads

SUPPORTS = frozenset(
    {
        *("jit", "vmap", "gradients", "jvp", "second_derivatives", "mask", "scale", "cross"),
        *("grouped", "logsumexp", "bfloat16", "float16", "float64"),
        "sharding",
    }
)


def candidate() -> Candidate:
    """Return the function of the installed jax."""
    return Candidate("jax.nn.dot_product_attention", f"jax {jax.__version__}", attend, SUPPORTS)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    scale: float | None = None,
    returning: tuple[str, ...] = (),
) -> Any:  # noqa: ANN401 - as attention.attend
    """Call the function with the arguments and results of `attention.attend`."""
    found = jax.nn.dot_product_attention(
        query, key, value, mask=for_heads(mask), scale=scale, return_residual=bool(returning)
    )
    return (found[0], {"logsumexp": found[1].swapaxes(-1, -2)}) if returning else found
