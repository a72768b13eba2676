"""Digests of arrays: numbers that a flipped bit changes."""

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental.multihost_utils import process_allgather

MULTIPLIER = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio: neighbouring places get distant weights
BLOCK = 2**18  # elements that are summed at once, so that they stay in the cache of a core


def digests(tree: Any) -> dict[str, str]:  # noqa: ANN401 - any pytree
    """Return 16 hexadecimal digits for each array of a tree, by its path.

    A digest is a sum over all elements, modulo 2⁶⁴, of the bits of an element times an odd weight
    of its place: it changes with any single element, and with two elements that are swapped. It
    does not depend on how an array is divided over devices, and no device gathers an array: each
    process sums the parts that it has, on its CPU, since one XLA program for all arrays takes
    longer to compile than a short run takes.
    """
    flat = jax.tree.flatten_with_path(tree)[0]
    sums = np.array([_local_sum(leaf) for _, leaf in flat], np.uint64)
    if jax.process_count() > 1:
        halves = process_allgather(sums.view(np.uint32))  # jax has no 64 bits by default
        sums = halves.view(np.uint64).sum(axis=0, dtype=np.uint64)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat]
    return {path: f"{each:016x}" for path, each in zip(paths, sums.tolist(), strict=True)}


def _local_sum(array: Array) -> int:
    """Return the sum over the elements that this process has, each counted once."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    total = 0
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            part = np.asarray(shard.data)
            starts = [each.start or 0 for each in shard.index]
            total += _sum(part.view(f"u{part.itemsize}"), starts, array.shape)
    return total % 2**64


def _sum(bits: np.ndarray, starts: list[int], shape: tuple[int, ...]) -> int:
    """Return the sum of a block that begins at `starts` in an array of a shape."""
    if bits.size > BLOCK:
        axis = int(np.argmax(bits.shape))
        half = bits.shape[axis] // 2
        first, second = np.split(bits, [half], axis)
        later = [start + half * (number == axis) for number, start in enumerate(starts)]
        return _sum(first, starts, shape) + _sum(second, later, shape)
    places, stride = np.zeros((1,) * bits.ndim, np.uint64), 1
    for axis in reversed(range(bits.ndim)):
        along = np.arange(starts[axis], starts[axis] + bits.shape[axis], dtype=np.uint64) * stride
        places = places + along.reshape([-1 if i == axis else 1 for i in range(bits.ndim)])
        stride *= shape[axis]
    weights = places * np.uint64(MULTIPLIER) | np.uint64(1)
    return int(np.sum(bits * weights, dtype=np.uint64))
