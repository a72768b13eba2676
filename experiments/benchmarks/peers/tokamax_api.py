"""tokamax.dot_product_attention: flags for causal and windows."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
from absl import flags
from jax import Array

from experiments.benchmarks.contender import (
    COMMON,
    Candidate,
    Contender,
    flags_or_mask,
    jax_contender,
)
from experiments.benchmarks.peers.jax_nn import FLAGS

SUPPORTS = COMMON | {"scale", "grouped", "value_width", "leading_axes"}


def candidates() -> Iterator[Candidate]:
    """Yield the function with its default implementation.

    Raises:
        ModuleNotFoundError: tokamax is not installed.
    """
    yield Candidate("tokamax.dot_product_attention", _version(), attend, SUPPORTS)


def contenders() -> Iterator[Contender]:
    """Yield both implementations for every platform, and the default one on an accelerator.

    Raises:
        ModuleNotFoundError: tokamax is not installed.
    """
    installed = _version()
    for name in ("xla_chunked", "xla"):
        call = flags_or_mask(partial(attend, implementation=name), FLAGS)
        yield jax_contender(f"tokamax:{name}", installed, call)
    if jax.default_backend() != "cpu":
        yield jax_contender("tokamax", installed, flags_or_mask(attend, FLAGS))


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    **options: Any,  # noqa: ANN401 - scale, and those of the function itself
) -> Array:
    """Call the function with the arguments and results of `attention.attend`."""
    import tokamax

    return tokamax.dot_product_attention(query, key, value, mask=mask, **options)


def _version() -> str:
    import tokamax  # noqa: F401 - optional package

    if not flags.FLAGS.is_parsed():  # tokamax would parse the command line for its own flags
        flags.FLAGS.mark_as_parsed()
    return f"tokamax {version('tokamax')}"
