"""tokamax.dot_product_attention, with the implementation that it chooses itself."""

from importlib.metadata import version

from jax import Array

from experiments.conformance.candidate import Candidate, for_heads

SUPPORTS = frozenset(
    {
        *("jit", "vmap", "gradients", "jvp", "second_derivatives", "mask", "scale", "cross"),
        *("grouped", "value_width", "leading_axes", "bfloat16", "float16", "float64"),
    }
)


def candidate() -> Candidate:
    """As it is installed.

    Raises:
        ImportError: it is not.
    """
    import tokamax  # noqa: F401 - a peer, which nothing else needs

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
    """Arguments and results as those of `attention.attend`."""
    import tokamax

    keywords = {} if scale is None else {"scale": scale}
    return tokamax.dot_product_attention(query, key, value, mask=for_heads(mask), **keywords)
