"""The sizes of one example, and its random inputs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from attention.testing.reference import Arrays, Results

AXES = ("B", "T", "S", "N", "K", "H", "Hv")
# Axes to shrink together, for functions that require equal sizes, and axes to shrink alone.
SHRINK = (("T", "S"), ("N", "K"), ("H", "Hv"), ("B",), ("T",), ("S",), ("N",), ("H",), ("Hv",))


@dataclass(frozen=True)
class Case:
    """The axis sizes of one example, its dtype, and the seed of all its random numbers."""

    B: int
    T: int
    S: int
    N: int
    K: int
    H: int
    Hv: int
    dtype: str = "float32"
    seed: int = 0

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={getattr(self, axis)}" for axis in AXES)
        return f"{sizes} {self.dtype} seed={self.seed}"

    def random(self, stream: int) -> np.random.Generator:
        """Return a random generator of this case; each stream gives different numbers."""
        return np.random.default_rng((self.seed, stream))

    def normal(self, stream: int, *shape: int) -> np.ndarray:
        """Return standard normal numbers in float64 that are exact in the dtype of the case."""
        numbers = self.random(stream).standard_normal(shape)
        return numbers.astype(jnp.dtype(self.dtype)).astype(np.float64)

    def query_key_value(self, stream: int = 0) -> Arrays:
        """Return query, key and value; or tangents of them, from another stream."""
        return (
            self.normal(stream, self.B, self.T, self.N, self.H),
            self.normal(stream + 1, self.B, self.S, self.K, self.H),
            self.normal(stream + 2, self.B, self.S, self.K, self.Hv),
        )

    def cotangents(self, *names: str) -> Results:
        """Return random cotangents of "output" and of the names, which may be "logsumexp"."""
        shapes = {
            "output": (self.B, self.T, self.N, self.Hv),
            "logsumexp": (self.B, self.N, self.T),
        }
        return {name: self.normal(10, *shapes[name]) for name in ("output", *names)}

    def mask(self) -> np.ndarray:
        """Return a random mask, bool `[B, T, S]`; every query may attend to at least one key."""
        random = self.random(3)
        mask = random.random((self.B, self.T, self.S)) < 0.6
        some = random.integers(self.S, size=(self.B, self.T, 1))
        return mask | (np.arange(self.S) == some)

    def smaller(self) -> Iterator["Case"]:
        """Yield cases with smaller axes, the smallest first."""
        ones = replace(self, **dict.fromkeys(AXES, 1))
        cases = [ones, replace(ones, T=min(self.T, 2), S=min(self.S, 2))]
        for axes in SHRINK:
            size = max(getattr(self, axis) for axis in axes)
            for fewer in sorted({1, 2, size // 2, size - 1} & set(range(1, size))):
                fewest = {axis: min(fewer, getattr(self, axis)) for axis in axes}
                cases.append(replace(self, **fewest))
        yield from (case for case in cases if case != self and case.N % case.K == 0)
