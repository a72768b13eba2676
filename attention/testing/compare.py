"""Where two arrays differ the most, in a sentence."""

import numpy as np

NAMES = {"B": "batch", "T": "query", "S": "key", "N": "head", "K": "key head", "H": "feature"}

# Roundings pile up over the keys; results are of the order of one.
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "float16": 1e-2, "bfloat16": 6e-2}


def difference(
    what: str,
    axes: str,
    actual: np.ndarray,
    expected: np.ndarray,
    tolerance: float | np.ndarray = 0.0,
) -> str | None:
    """The entry that is farthest from what it should be; None if all are near enough.

    Args:
        what: the name of the array.
        axes: a letter of the axis legend for each of its axes, H for any width.
        actual: numbers.
        expected: what they should be; an infinity is near itself alone.
        tolerance: absolute for numbers below one, and relative above; 0 means the same bits.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if actual.shape != expected.shape:
        return f"{what} has shape {actual.shape}, should be {expected.shape}"
    with np.errstate(invalid="ignore"):  # inf - inf, which the equality settles
        error = np.where(actual == expected, 0, np.abs(actual - expected))
        near = error <= tolerance * np.maximum(1, np.abs(expected))
    near |= error == 0
    if near.all():
        return None
    error = np.where(near, -1, np.where(np.isnan(error), np.inf, error))
    place = np.unravel_index(np.argmax(error), error.shape)
    off = f" (off by {error[place]:.2g})" if np.isfinite(error[place]) else ""
    due = f"{expected[place]:.4g}{off}"
    return f"{what} at {at(axes, place)} is {actual[place]:.4g}, should be {due}"


def difference_of_gradients(
    what: str,
    actual: tuple[np.ndarray, ...],
    expected: tuple[np.ndarray, ...],
    tolerance: float,
) -> str | None:
    """The first of query, key and value whose gradient is not what it should be."""
    names = ("BTNH", "query"), ("BSKH", "key"), ("BSKH", "value")
    for (axes, name), ours, theirs in zip(names, actual, expected, strict=True):
        found = difference(f"{what} of {name}", axes, ours, theirs, tolerance)
        if found:
            return found
    return None


def at(axes: str, place: tuple[int, ...]) -> str:
    """A place in words: "batch 0, query 3"."""
    return ", ".join(f"{NAMES[axis]} {number}" for axis, number in zip(axes, place, strict=True))
