"""Tile sizes of the kernels."""

from dataclasses import dataclass

import jax.numpy as jnp

LEAST = 16  # smallest rows, columns or width of a tensor core product


@dataclass(frozen=True)
class KernelSize:
    """Queries and keys per tile, warps per program, stages of the load pipeline."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True)
class KernelSizes:
    """Sizes of the forward kernel and of the two backward kernels."""

    forward: KernelSize
    backward: KernelSize


# Bits of a number → largest padded head width → sizes. Not measured on a GPU: chosen after Dao
# (2023, section 3.3), smaller for the backward pass, which keeps four tiles and two sums at once.
# Compiled for compute capability 8.0 and 9.0 they need less than the 99 KB of shared memory of
# every GPU since 8.0, and three quarters of the kernels do not spill registers.
_SIZES = {
    16: {
        64: KernelSizes(KernelSize(128, 64, 4, 3), KernelSize(64, 64, 4, 2)),
        128: KernelSizes(KernelSize(128, 64, 8, 2), KernelSize(64, 32, 4, 2)),
        256: KernelSizes(KernelSize(64, 32, 8, 2), KernelSize(32, 32, 8, 1)),
    },
    32: {
        64: KernelSizes(KernelSize(64, 32, 8, 2), KernelSize(32, 32, 8, 2)),
        128: KernelSizes(KernelSize(32, 32, 8, 2), KernelSize(32, 16, 8, 1)),
        256: KernelSizes(KernelSize(32, 16, 8, 1), KernelSize(16, 16, 8, 1)),
    },
}

WIDEST = 256


def sizes_for(dtype: jnp.dtype, width: int) -> KernelSizes:
    """Return the sizes for inputs of a dtype and a padded head width, of keys or values."""
    by_width = _SIZES[16 if jnp.dtype(dtype).itemsize == 2 else 32]
    return next(sizes for largest, sizes in by_width.items() if width <= largest)


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size` and at least 16."""
    return max(LEAST, 1 << (size - 1).bit_length())
