"""Speed of matrix products on this machine: an upper bound for attention functions."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.clock import seconds_of
from experiments.devices import num_cores

# Batch, rows, inner, columns: a large square product; scores and weighted sum of a tile of 2 heads.
SHAPES = {
    "2048 x 2048 x 2048": (1, 2048, 2048, 2048),
    "scores of a tile: 2 heads, 1024 x 64 x 512": (2, 1024, 64, 512),
    "weighted sum of a tile: 2 heads, 1024 x 512 x 64": (2, 1024, 512, 64),
}
CALLS = 7


class Product(NamedTuple):
    """Speed of one product of float32 matrices: the median of several calls."""

    shape: str
    library: str
    gflops: float


def products(*, with_torch: bool) -> Iterator[Product]:
    """Yield products by XLA, and by torch if it can be used and jax uses the CPU."""
    libraries = {"XLA": _xla}
    if with_torch and jax.default_backend() == "cpu":
        libraries["torch"] = _torch
    random = np.random.default_rng(0)
    for name, (batch, rows, inner, columns) in SHAPES.items():
        left = random.standard_normal((batch, rows, inner), np.float32)
        right = random.standard_normal((batch, inner, columns), np.float32)
        for library, make in libraries.items():
            run = make(left, right)
            run()
            seconds = float(np.median([seconds_of(run) for _ in range(CALLS)]))
            yield Product(name, library, 2 * batch * rows * inner * columns / seconds / 1e9)


def _xla(left: np.ndarray, right: np.ndarray) -> Callable[[], Any]:
    arrays = jnp.asarray(left), jnp.asarray(right)
    product = jax.jit(jnp.matmul)
    return lambda: jax.block_until_ready(product(*arrays))


def _torch(left: np.ndarray, right: np.ndarray) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(num_cores())
    tensors = torch.from_numpy(left), torch.from_numpy(right)
    return lambda: torch.matmul(*tensors)
