"""The cases that the benchmark can measure, by name, and their exact results."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from attention import attend, masks
from attention.primitives.masks import Mask
from experiments.errors import UsageError, nearest

NUM_HEADS, HEAD_WIDTH = 8, 64
PATTERNS = ("full", "causal", "window", "packed")
LENGTHS = tuple(2**power for power in range(6, 16))
DTYPES = ("float32", "bfloat16")
PASSES = ("forward", "gradient")
WINDOW = 256  # keys that are visible to a query, its own included
SEGMENTS = 8  # sequences of equal length in a packed row

# Every length has the work of one example of 4,096 positions, up to a limit of memory.
PAIRS, POSITIONS = 2**24, 2**13


@dataclass(frozen=True)
class Case:
    """Self-attention of B examples of T positions, with N = K = 8 heads of width H = 64."""

    pattern: str  # the mask, one of `PATTERNS`
    length: int  # T = S
    dtype: str  # of inputs and outputs
    gradient: bool  # whether gradients of query, key and value are computed too
    batch: int  # B

    @property
    def name(self) -> str:
        """Name in flags and tables, such as "causal_4096_float32_gradient"."""
        return f"{self.pattern}_{self.length}_{self.dtype}_{PASSES[self.gradient]}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`[B, T, N, H]` of query, key, value and output."""
        return self.batch, self.length, NUM_HEADS, HEAD_WIDTH

    def segments(self) -> list[np.ndarray]:
        """Return the segment of each position `[T]` in a list, [] unless the pattern is packed."""
        if self.pattern != "packed":
            return []
        return [np.repeat(np.arange(SEGMENTS, dtype=np.int32), self.length // SEGMENTS)]

    def mask(self, *segments: ArrayLike) -> Mask | None:
        """Return the pattern as a mask; a packed one needs its segments."""
        if self.pattern == "causal":
            return masks.causal()
        if self.pattern == "window":
            return masks.window(before=WINDOW - 1)
        return masks.segments(*segments) if segments else None

    def allowed(self) -> np.ndarray:
        """Return the pattern as a bool array `[T, S]`, for functions without other masks."""
        mask = masks.full() if self.pattern == "full" else self.mask(*self.segments())
        return np.asarray(masks.to_array(mask, self.length, self.length))


CASES = {
    case.name: case
    for case in (
        Case(pattern, length, dtype, gradient, max(1, min(PAIRS // length**2, POSITIONS // length)))
        for pattern, dtype, gradient, length in product(PATTERNS, DTYPES, (False, True), LENGTHS)
    )
}


def select(field: str, patterns: str, names: Sequence[str]) -> list[str]:
    """Return the names that match, in their own order.

    Patterns are names that may contain `*`, separated by blanks or commas, or "all".

    Raises:
        UsageError: a pattern of this field of the config matches no name.
    """
    wanted = ["*" if word == "all" else word for word in patterns.replace(",", " ").split()]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = nearest(pattern, names) or f": it has {', '.join(names)}"
            raise UsageError(f"{field} has no {pattern!r}{hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]


def inputs(case: Case) -> np.ndarray:
    """Return standard normal numbers `[4, B, T, N, H]` in float32, exact in the dtype of the case.

    They are query, key, value and a cotangent of the output, the same for every contender.
    """
    arrays = np.random.default_rng(0).standard_normal((4, *case.shape), np.float32)
    return arrays.astype(jnp.dtype(case.dtype)).astype(np.float32)


def exact(case: Case, inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return output and gradients of query, key and value in float64, each `[B, T, N, H]`."""

    def function(query: Array, key: Array, value: Array) -> Array:
        mask = case.mask(*case.segments())
        return attend(query, key, value, mask=mask, implementation="reference")

    with jax.enable_x64(True):
        *arguments, cotangent = (jnp.asarray(array, jnp.float64) for array in inputs)
        output, pull = jax.vjp(jax.jit(function), *arguments)
        return tuple(np.asarray(array) for array in (output, *pull(cotangent)))


def relative_errors(arrays: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Return the norm of the difference over the norm of the exact array, for each array."""
    return [
        float(np.linalg.norm((array - true).ravel()) / np.linalg.norm(true.ravel()))
        for array, true in zip(arrays, expected, strict=True)
    ]
