"""Attention weights as an interactive grid in a notebook."""

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

MOST_WEIGHTS = 1_000_000  # of all heads
MOST_CELLS = 65_536  # of one head: each is a cell of a table
TOLERANCE = 0.01  # of weights that are rounded, such as those of bfloat16


class WeightGrid:
    """An interactive grid of attention weights, which a notebook shows.

    Attributes:
        weights: `[N, T, S]` in float32.
        queries: T words.
        keys: S words.
    """

    def __init__(self, weights: np.ndarray, queries: list[str], keys: list[str]) -> None:
        """Keep checked weights `[N, T, S]`, T words and S words; see `show`."""
        self.weights, self.queries, self.keys = weights, queries, keys

    def __repr__(self) -> str:
        heads, queries, keys = self.weights.shape
        return f"WeightGrid({heads=}, {queries=}, {keys=})"

    def _repr_html_(self) -> str:
        """Return a frame with a document of its own, which makes no request."""
        document = html.escape(self.document())
        height = min(120 + 30 * len(self.queries), 700)  # until its script has measured it
        return (
            f'<iframe srcdoc="{document}" title="attention weights" '
            f'style="width: 100%; height: {height}px; border: 0"></iframe>'
        )

    def document(self) -> str:
        """Return the grid as a whole HTML document."""
        style, script = ((files("attention") / name).read_text("utf-8") for name in FILES)
        rounded = [round(each, 4) for each in self.weights.ravel().tolist()]
        data = {"queries": self.queries, "keys": self.keys, "weights": rounded}
        data["shape"] = [1, *self.weights.shape]
        return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>Attention weights</title>
<style>{style}</style>
<body>
<script>{script}
showWeights({embedded(data)});
</script>
</body>
</html>"""


FILES = "show.css", "show.js"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def show(
    weights: ArrayLike, tokens: Sequence[Any], keys: Sequence[Any] | None = None
) -> WeightGrid:
    """Show attention weights as an interactive grid, in a notebook.

    Rows are queries and columns are keys. Point at a weight to read it, or use the arrow keys. If
    there are several heads, each has a small map; a click on it shows its weights.

    Args:
        weights: `[N, T, S]`, or `[T, S]` of one head; any array that `numpy.asarray` takes, with
            numbers from 0 to 1.
        tokens: T words of the queries, and of the keys unless `keys` is given.
        keys: S words of the keys, of cross-attention.

    Returns:
        an object that a notebook displays if it is the last value of a cell.

    Raises:
        TypeError: weights that are not real numbers; a str in place of a list of words.
        ValueError: weights of another number of axes, out of range or too many; a number of words
            that differs from the length of their axis.

    >>> show([[0.75, 0.25], [0.5, 0.5]], ["the", "cat"])
    WeightGrid(heads=1, queries=2, keys=2)
    """
    array = np.asarray(weights)
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"weights must be real numbers, and have dtype {array.dtype}")
    if array.ndim not in (2, 3):
        batch = ": choose one example, as weights[0]" if array.ndim == 4 else ""
        raise ValueError(f"weights must be [T, S] or [N, T, S], and have {array.shape}{batch}")
    array = array.astype(np.float32).reshape(-1, *array.shape[-2:])
    if array.size > MOST_WEIGHTS or array[0].size > MOST_CELLS:
        raise ValueError(
            f"{array.shape} are too many weights for a grid: it has at most {MOST_WEIGHTS:,}, "
            f"and {MOST_CELLS:,} of a head"
        )
    if not ((array >= 0) & (array <= 1 + TOLERANCE)).all():
        raise ValueError(
            "weights must be from 0 to 1, as softmax returns them, and have values from "
            f"{array.min():g} to {array.max():g}"
        )
    words = []
    for name, given, axis in (("tokens", tokens, 1), ("keys", tokens if keys is None else keys, 2)):
        if isinstance(given, str):
            raise TypeError(f"{name} must be a list of words, and is a str: use {name}.split()")
        if len(given) != array.shape[axis]:
            side = "TS"[axis - 1]
            raise ValueError(f"{name} are {len(given)} words for {side} = {array.shape[axis]}")
        words.append([*map(str, given)])
    return WeightGrid(array, *words)


def embedded(data: object) -> str:
    """Return JSON that can be the content of a script element: ASCII without <, > and &."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
