"""How large the tiles of a kernel are."""

from dataclasses import dataclass

import jax.numpy as jnp

LEAST = 16  # rows, columns or width of what a tensor core multiplies


@dataclass(frozen=True)
class KernelSize:
    """Queries and keys of a tile, warps of a program, loads that are under way at once."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True)
class KernelSizes:
    """Sizes of the kernel that makes the output and of the two that make gradients."""

    forward: KernelSize
    backward: KernelSize


# Bits of a number → largest padded head width → sizes. Not measured on a GPU: chosen after Dao
# (2023, section 3.3), smaller for the backward pass, which holds four tiles and two sums at once.
# Compiled for compute capability 8.0 and 9.0 they need less than the 99 KB of shared memory that
# every GPU since 8.0 has, and three quarters of the kernels keep all they carry in registers.
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
    """The sizes for inputs of a dtype and a padded head width, of keys or values."""
    by_width = _SIZES[16 if jnp.dtype(dtype).itemsize == 2 else 32]
    return next(sizes for largest, sizes in by_width.items() if width <= largest)


def power_of_two(size: int) -> int:
    """The smallest power of two that is enough, and that a tensor core multiplies."""
    return max(LEAST, 1 << (size - 1).bit_length())
