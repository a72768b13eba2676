"""jax.nn.dot_product_attention: flags for causal and windows; its residual is `[B, T, N]`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
from jax import Array

from experiments.benchmarks.cases import WINDOW
from experiments.benchmarks.contender import Contender, jax_peer

FLAGS = {"causal": {"is_causal": True}, "window": {"local_window_size": (WINDOW - 1, 0)}}
SUPPORTS = {"scale", "grouped", "logsumexp"}


def contenders() -> Iterator[Contender]:
    """Yield the default implementation, and cuDNN on a GPU."""
    functions = {"jax.nn": attend}
    if jax.default_backend() == "gpu":
        functions["jax.nn:cudnn"] = partial(attend, implementation="cudnn")
    for name, function in functions.items():
        yield jax_peer(name, f"jax {jax.__version__}", function, FLAGS, SUPPORTS)


def attend(*inputs: Array, returning: tuple[str, ...] = (), **options: Any) -> Any:  # noqa: ANN401 - as attention.attend
    """Call the function with the arguments and results of `attention.attend`."""
    found = jax.nn.dot_product_attention(*inputs, return_residual=bool(returning), **options)
    return (found[0], {"logsumexp": found[1].swapaxes(-1, -2)}) if returning else found
