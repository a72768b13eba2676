"""jax.nn.dot_product_attention: flags for causal and a window, a bool array for all else."""

from collections.abc import Iterator

import jax
from jax import Array

from experiments.benchmarks.cases import WINDOW, Case
from experiments.benchmarks.contender import Contender
from experiments.benchmarks.jax_program import Call, jax_contender


def contenders() -> Iterator[Contender]:
    """What it does if nobody says how, and cuDNN where there is a GPU."""
    version = f"jax {jax.__version__}"
    yield jax_contender("jax.nn", version, lambda case: _call(case, None))
    if jax.default_backend() == "gpu":
        yield jax_contender("jax.nn:cudnn", version, lambda case: _call(case, "cudnn"))


def _call(case: Case, implementation: str | None) -> Call:
    keywords = {
        "causal": {"is_causal": True},
        "window": {"local_window_size": (WINDOW - 1, 0)},
    }.get(case.pattern, {})

    def function(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, implementation=implementation, **keywords
        )

    return Call(function, (case.allowed()[None, None],) if case.pattern == "packed" else ())
