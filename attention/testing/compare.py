"""Describe in one sentence where two arrays differ the most."""

import numpy as np

NAMES = {"B": "batch", "T": "query", "S": "key", "N": "head", "K": "key head", "H": "feature"}

# Absolute errors after sums over the keys, for results of order one.
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "float16": 1e-2, "bfloat16": 6e-2}


def difference(
    what: str,
    axes: str,
    actual: np.ndarray,
    expected: np.ndarray,
    tolerance: float | np.ndarray = 0.0,
) -> str | None:
    """Return a sentence about the entry with the largest error; None if all are close enough.

    Args:
        what: name of the array.
        axes: one letter for each axis: B, T, S, N, K, or H for any width.
        actual: the result.
        expected: the right result; an infinity equals only itself.
        tolerance: absolute for numbers below one, relative above; 0 requires equality.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if actual.shape != expected.shape:
        return f"{what} has shape {actual.shape}, should be {expected.shape}"
    with np.errstate(invalid="ignore"):  # inf - inf; equal infinities have error 0
        error = np.where(actual == expected, 0, np.abs(actual - expected))
        near = error <= tolerance * np.maximum(1, np.abs(expected))
    near |= error == 0
    if near.all():
        return None
    error = np.where(near, -1, np.where(np.isnan(error), np.inf, error))
    index = np.unravel_index(np.argmax(error), error.shape)
    off = f" (off by {error[index]:.2g})" if np.isfinite(error[index]) else ""
    due = f"{expected[index]:.4g}{off}"
    return f"{what} at {at(axes, index)} is {actual[index]:.4g}, should be {due}"


def difference_of_gradients(
    what: str,
    actual: tuple[np.ndarray, ...],
    expected: tuple[np.ndarray, ...],
    tolerance: float,
) -> str | None:
    """Compare gradients of query, key and value; return a sentence about the first wrong one."""
    names = ("BTNH", "query"), ("BSKH", "key"), ("BSKH", "value")
    for (axes, name), ours, theirs in zip(names, actual, expected, strict=True):
        found = difference(f"{what} of {name}", axes, ours, theirs, tolerance)
        if found:
            return found
    return None


def at(axes: str, index: tuple[int, ...]) -> str:
    """Return an index in words: "batch 0, query 3"."""
    return ", ".join(f"{NAMES[axis]} {number}" for axis, number in zip(axes, index, strict=True))
