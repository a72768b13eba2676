"""tokamax.dot_product_attention with its default implementation."""

from importlib.metadata import version

from jax import Array

from experiments.conformance.candidate import Candidate, for_heads

SUPPORTS = frozenset(
    {
        *("jit", "vmap", "gradients", "jvp", "second_derivatives", "mask", "scale", "cross"),
        *("grouped", "value_width", "leading_axes", "bfloat16", "float16", "float64"),
        "sharding",
    }
)


def candidate() -> Candidate:
    """Return the function of the installed package.

    Raises:
        ImportError: the package is not installed.
    """
    import tokamax  # noqa: F401 - optional package

    name = "tokamax.dot_product_attention"
    return Candidate(name, f"tokamax {version('tokamax')}", attend, SUPPORTS)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    scale: float | None = None,
) -> Array:
    """Call the function with the arguments and results of `attention.attend`."""
    import tokamax

    keywords = {} if scale is None else {"scale": scale}
    return tokamax.dot_product_attention(query, key, value, mask=for_heads(mask), **keywords)
