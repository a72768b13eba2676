"""One example to try a function on, and how to make a failing one smaller."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

Found = TypeVar("Found")

# Axes that shrink together where a function wants them equal, and each alone.
TOGETHER = (("T", "S"), ("N", "K"), ("H", "Hv"), ("B",), ("T",), ("S",), ("N",), ("H",), ("Hv",))


@dataclass(frozen=True)
class Case:
    """The sizes of one example, by the letters of the axis legend, and what it is drawn from.

    Attributes:
        B: batch.
        T: query length.
        S: key length.
        N: query heads.
        K: key/value heads.
        H: head width.
        Hv: head width of the values.
        dtype: of query, key and value.
        seed: of every random number.
    """

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
        sizes = " ".join(f"{axis}={getattr(self, axis)}" for axis in _AXES)
        return f"{sizes} {self.dtype} seed={self.seed}"

    def random(self, stream: int) -> np.random.Generator:
        """Random numbers of this case; other numbers for every stream."""
        return np.random.default_rng((self.seed, stream))

    def normal(self, stream: int, *shape: int) -> np.ndarray:
        """Standard normal numbers."""
        return self.random(stream).standard_normal(shape)

    def query_key_value(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Query `[B, T, N, H]`, key `[B, S, K, H]` and value `[B, S, K, Hv]` in float64.

        Numbers that the dtype of the case holds exactly.
        """
        dtype = jnp.dtype(self.dtype)
        query, key, value = (
            self.normal(stream, *sizes).astype(dtype).astype(np.float64)
            for stream, sizes in enumerate(
                [
                    (self.B, self.T, self.N, self.H),
                    (self.B, self.S, self.K, self.H),
                    (self.B, self.S, self.K, self.Hv),
                ]
            )
        )
        return query, key, value

    def mask(self) -> np.ndarray:
        """A random mask, bool `[B, T, S]`, under which every query sees a key."""
        random = self.random(3)
        mask = random.random((self.B, self.T, self.S)) < 0.6
        some = random.integers(self.S, size=(self.B, self.T, 1))
        return mask | (np.arange(self.S) == some)

    def smaller(self) -> Iterator["Case"]:
        """Cases with less of something, the boldest first."""
        least = {axis: 1 for axis in _AXES}
        yield replace(self, **least)
        yield replace(self, **least | {"T": min(self.T, 2), "S": min(self.S, 2)})
        for axes in TOGETHER:
            size = max(getattr(self, axis) for axis in axes)
            for fewer in sorted({1, 2, size // 2, size - 1} & set(range(1, size))):
                yield replace(self, **{axis: min(fewer, getattr(self, axis)) for axis in axes})

    @property
    def size(self) -> int:
        """The sum of the sizes."""
        return sum(getattr(self, axis) for axis in _AXES)


_AXES = tuple(field.name for field in fields(Case) if field.name not in ("dtype", "seed"))


def smallest(
    case: Case,
    found: Found,
    fails: Callable[[Case], Found | None],
    fits: Callable[[Case], bool],
    attempts: int = 25,
) -> tuple[Case, Found]:
    """Goes down from a failing case for as long as a smaller one fails as well.

    Args:
        case: that fails.
        found: what `fails` found there.
        fails: what is wrong with a case, None if nothing is.
        fits: whether a case may be tried.
        attempts: the most cases tried, each of which may cost a compilation.

    Returns:
        The smallest case that was found, and what is wrong with it.
    """
    tried = {case}
    while True:
        candidates = [
            smaller
            for smaller in case.smaller()
            if smaller.size < case.size and smaller not in tried and fits(smaller)
        ]
        for candidate in candidates:
            if len(tried) > attempts:
                return case, found
            tried.add(candidate)
            if (again := fails(candidate)) is not None:
                case, found = candidate, again
                break
        else:
            return case, found
