"""tokamax.dot_product_attention: flags for causal and a window, a bool array for all else."""

from collections.abc import Iterator
from importlib.metadata import version

import jax
from absl import flags
from jax import Array

from experiments.benchmarks.cases import WINDOW, Case
from experiments.benchmarks.contender import Contender
from experiments.benchmarks.jax_program import Call, jax_contender


def contenders() -> Iterator[Contender]:
    """Its two implementations for every platform, and what it chooses itself on an accelerator.

    Raises:
        ImportError: it is not installed.
    """
    import tokamax  # noqa: F401 - a peer, which nothing else needs

    if not flags.FLAGS.is_parsed():  # or it looks for flags of its own among ours
        flags.FLAGS.mark_as_parsed()
    name = f"tokamax {version('tokamax')}"
    yield jax_contender("tokamax:xla_chunked", name, lambda case: _call(case, "xla_chunked"))
    yield jax_contender("tokamax:xla", name, lambda case: _call(case, "xla"))
    if jax.default_backend() != "cpu":
        yield jax_contender("tokamax", name, lambda case: _call(case, None))


def _call(case: Case, implementation: str | None) -> Call:
    import tokamax

    keywords = {
        "causal": {"is_causal": True},
        "window": {"local_window_size": (WINDOW - 1, 0)},
    }.get(case.pattern, {})

    def function(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
        return tokamax.dot_product_attention(
            query, key, value, mask=mask, implementation=implementation, **keywords
        )

    return Call(function, (case.allowed()[None, None],) if case.pattern == "packed" else ())
