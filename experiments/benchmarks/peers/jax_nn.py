"""jax.nn.dot_product_attention: flags for causal and windows; its residual is `[B, T, N]`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
from jax import Array

from experiments.benchmarks.cases import WINDOW
from experiments.benchmarks.contender import (
    COMMON,
    Candidate,
    Contender,
    flags_or_mask,
    jax_contender,
)

VERSION = f"jax {jax.__version__}"
FLAGS = {"causal": {"is_causal": True}, "window": {"local_window_size": (WINDOW - 1, 0)}}
SUPPORTS = COMMON | {"scale", "grouped", "logsumexp"}


def candidates() -> Iterator[Candidate]:
    """Yield the function."""
    yield Candidate("jax.nn.dot_product_attention", VERSION, attend, SUPPORTS)


def contenders() -> Iterator[Contender]:
    """Yield the default implementation, and cuDNN on a GPU."""
    yield jax_contender("jax.nn", VERSION, flags_or_mask(attend, FLAGS))
    if jax.default_backend() == "gpu":
        cudnn = partial(attend, implementation="cudnn")
        yield jax_contender("jax.nn:cudnn", VERSION, flags_or_mask(cudnn, FLAGS))


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    scale: float | None = None,
    returning: tuple[str, ...] = (),
    **options: Any,  # noqa: ANN401 - of the function itself
) -> Any:  # noqa: ANN401 - as attention.attend
    """Call the function with the arguments and results of `attention.attend`."""
    options |= {"mask": mask, "scale": scale, "return_residual": bool(returning)}
    found = jax.nn.dot_product_attention(query, key, value, **options)
    return (found[0], {"logsumexp": found[1].swapaxes(-1, -2)}) if returning else found
