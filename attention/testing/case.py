"""Sizes and random inputs of one example, and the search for the smallest failing example."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

Fault = TypeVar("Fault")

# Axes to shrink together, for functions that require equal sizes, and axes to shrink alone.
SHRINK = (("T", "S"), ("N", "K"), ("H", "Hv"), ("B",), ("T",), ("S",), ("N",), ("H",), ("Hv",))


@dataclass(frozen=True)
class Case:
    """The axis sizes of one example, its dtype and its random seed.

    Attributes:
        B: batch.
        T: query length.
        S: key length.
        N: query heads.
        K: key/value heads.
        H: head width.
        Hv: head width of the values.
        dtype: of query, key and value.
        seed: of all random numbers.
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
        """Return a random generator of this case; each stream gives different numbers."""
        return np.random.default_rng((self.seed, stream))

    def normal(self, stream: int, *shape: int) -> np.ndarray:
        """Return standard normal numbers."""
        return self.random(stream).standard_normal(shape)

    def query_key_value(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return query `[B, T, N, H]`, key `[B, S, K, H]` and value `[B, S, K, Hv]` in float64.

        The numbers are exact in the dtype of the case.
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

    def cotangents(self) -> np.ndarray:
        """Return random cotangents of the output, `[B, T, N, Hv]`."""
        return self.normal(10, self.B, self.T, self.N, self.Hv)

    def mask(self) -> np.ndarray:
        """Return a random mask, bool `[B, T, S]`; every query may attend to at least one key."""
        random = self.random(3)
        mask = random.random((self.B, self.T, self.S)) < 0.6
        some = random.integers(self.S, size=(self.B, self.T, 1))
        return mask | (np.arange(self.S) == some)

    def smaller(self) -> Iterator["Case"]:
        """Yield cases with smaller axes, the smallest first."""
        least = {axis: 1 for axis in _AXES}
        yield replace(self, **least)
        yield replace(self, **least | {"T": min(self.T, 2), "S": min(self.S, 2)})
        for axes in SHRINK:
            size = max(getattr(self, axis) for axis in axes)
            for fewer in sorted({1, 2, size // 2, size - 1} & set(range(1, size))):
                yield replace(self, **{axis: min(fewer, getattr(self, axis)) for axis in axes})

    @property
    def size(self) -> int:
        """The sum of the axis sizes."""
        return sum(getattr(self, axis) for axis in _AXES)


_AXES = tuple(field.name for field in fields(Case) if field.name not in ("dtype", "seed"))


def smallest(
    case: Case,
    fault: Fault,
    find_fault: Callable[[Case], Fault | None],
    fits: Callable[[Case], bool],
    attempts: int = 25,
) -> tuple[Case, Fault]:
    """Shrink a failing case until no smaller case fails, or until `attempts` are used.

    Args:
        case: a failing case.
        fault: the result of `find_fault(case)`.
        find_fault: returns the fault of a case, or None if it passes.
        fits: whether a case may be tried.
        attempts: largest number of cases to try; each may cost a compilation.

    Returns:
        The smallest failing case that was found, and its fault.
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
                return case, fault
            tried.add(candidate)
            if (found := find_fault(candidate)) is not None:
                case, fault = candidate, found
                break
        else:
            return case, fault
