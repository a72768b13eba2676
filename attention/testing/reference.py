"""The equation and its derivatives in float64 NumPy, and a sentence about where results differ."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Arrays = tuple[np.ndarray, ...]
Results = dict[str, np.ndarray]

# Absolute errors after sums over the keys, for results of order one.
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "float16": 1e-2, "bfloat16": 6e-2}
AXIS_NAMES = {"B": "batch", "T": "query", "S": "key", "N": "head", "K": "key head", "H": "feature"}
RESULTS = {  # name: axes
    "output": "BTNH",
    "weights": "BNTS",
    "logsumexp": "BNT",
    "gradient of query": "BTNH",
    "gradient of key": "BSKH",
    "gradient of value": "BSKH",
    "gradient of slopes": "N",
}


@dataclass
class Equation:
    """The equation keep · softmax(score(scale · q kᵀ) + mask) v for one example.

    Attributes:
        query: `[B, T, N, H]`; query head n reads key head n // G.
        key: `[B, S, K, H]`.
        value: `[B, S, K, Hv]`.
        mask: bool, broadcasts to `[B, T, S]`.
        scale: 1/√H by default.
        score: an analytic function of the scaled products `[B, N, T, S]`.
        keep: multiplies the weights, `[B, N, T, S]`.
        products: scaled, `[B, N, T, S]`.
        weights: before `keep`, `[B, N, T, S]`; 0 for a fully masked query.
        logsumexp: `[B, N, T]`; -inf for a fully masked query.
        output: `[B, T, N, Hv]`.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None = None
    scale: float | None = None
    score: Callable[[np.ndarray], np.ndarray] = lambda products: products
    keep: np.ndarray | float = 1.0
    products: np.ndarray = field(init=False)
    weights: np.ndarray = field(init=False)
    logsumexp: np.ndarray = field(init=False)
    output: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Compute the results."""
        self.scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        self.products = self.scale * np.einsum(
            "BTNH,BSNH->BNTS", self.query, self._repeat(self.key)
        )
        scores = self.score(self.products)
        if self.mask is not None:
            sizes = self.query.shape[0], self.query.shape[1], self.key.shape[1]
            self.mask = np.array(np.broadcast_to(self.mask, sizes))
            scores = np.where(self.mask[:, None], scores, -np.inf)
        peak = scores.max(axis=-1, keepdims=True, initial=np.finfo(np.float64).min)
        exponentials = np.exp(scores - peak)
        total = exponentials.sum(axis=-1, keepdims=True)
        self.weights = exponentials / np.where(total == 0, 1, total)
        with np.errstate(divide="ignore"):  # the logarithm of 0 is -inf
            self.logsumexp = (np.log(total) + peak)[..., 0]
        values = self._repeat(self.value)
        self.output = np.einsum("BNTS,BSNH->BTNH", self.keep * self.weights, values)

    @property
    def inputs(self) -> Arrays:
        """Query, key and value."""
        return self.query, self.key, self.value

    def results(self, cotangents: Results | None = None, tangents: Arrays | None = None) -> Results:
        """Return output, weights and logsumexp; with cotangents, gradients of inputs and scores.

        With tangents of the inputs: the derivatives of all these along the tangents, as central
        differences, which are exact to eight digits in float64.

        Args:
            cotangents: of "output" and, optionally, of "logsumexp".
            tangents: of query, key and value.
        """
        if tangents is not None:
            ahead, behind = (
                Equation(
                    *(x + step * tangent for x, tangent in zip(self.inputs, tangents, strict=True)),
                    *(self.mask, self.scale, self.score, self.keep),
                ).results(cotangents)
                for step in (1e-4, -1e-4)
            )
            return {name: (ahead[name] - behind[name]) / 2e-4 for name in ahead}
        results = {"output": self.output, "weights": self.weights, "logsumexp": self.logsumexp}
        return results if cotangents is None else results | self._gradients(**cotangents)

    def _gradients(self, output: np.ndarray, logsumexp: np.ndarray | None = None) -> Results:
        of_weights = self.keep * np.einsum("BTNH,BSNH->BNTS", output, self._repeat(self.value))
        mean = (self.weights * of_weights).sum(axis=-1, keepdims=True)
        of_logsumexp = 0.0 if logsumexp is None else logsumexp[..., None]
        of_scores = self.weights * (of_weights - mean + of_logsumexp)
        slope = self.score(self.products + 1e-30j).imag / 1e-30  # by a complex step
        of_products = self.scale * of_scores * slope
        of_key = np.einsum("BNTS,BTNH->BSNH", of_products, self.query)
        of_value = np.einsum("BNTS,BTNH->BSNH", self.keep * self.weights, output)
        return {
            "gradient of query": np.einsum("BNTS,BSNH->BTNH", of_products, self._repeat(self.key)),
            "gradient of key": self._sum_groups(of_key),
            "gradient of value": self._sum_groups(of_value),
            "gradient of scores": of_scores,
        }

    def _repeat(self, array: np.ndarray) -> np.ndarray:
        """Repeat `[B, S, K, *]` for the query heads of each group, `[B, S, N, *]`."""
        return np.repeat(array, self.query.shape[2] // self.key.shape[2], axis=2)

    def _sum_groups(self, array: np.ndarray) -> np.ndarray:
        """Sum `[B, S, N, *]` over the query heads of each group, `[B, S, K, *]`."""
        return array.reshape(*self.key.shape[:3], -1, array.shape[-1]).sum(axis=3)


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
        axes: one letter of `AXIS_NAMES` for each axis; H for any width.
        actual: the result.
        expected: the right result; an infinity equals only itself.
        tolerance: absolute for numbers below one, relative above; 0 requires equality.
    """
    if actual.shape != expected.shape:
        return f"{what} has shape {actual.shape}, should be {expected.shape}"
    with np.errstate(invalid="ignore"):  # inf - inf; equal infinities have error 0
        error = np.where(actual == expected, 0, np.abs(actual - expected))
        near = (error == 0) | (error <= tolerance * np.maximum(1, np.abs(expected)))
    if near.all():
        return None
    error = np.where(near, -1, np.where(np.isnan(error), np.inf, error))
    index = np.unravel_index(np.argmax(error), error.shape)
    off = f" (off by {error[index]:.2g})" if np.isfinite(error[index]) else ""
    place, due = first(axes, error == error.max()), f"{expected[index]:.4g}{off}"
    return f"{what} at {place} is {actual[index]:.4g}, should be {due}"


def difference_of_results(
    actual: Results, expected: Results, tolerance: float | np.ndarray, prefix: str = ""
) -> str | None:
    """Describe the first of `RESULTS` that differs; derivatives have five times the tolerance."""
    for name in (name for name in RESULTS if name in actual):
        factor = 5 if " of " in prefix + name else 1
        fault = difference(
            prefix + name, RESULTS[name], actual[name], expected[name], factor * tolerance
        )
        if fault:
            return fault
    return None


def first(axes: str, wrong: np.ndarray) -> str | None:
    """Return the first True index in words, "batch 0, query 3"; None if there is none."""
    for index in np.argwhere(wrong)[:1]:
        return ", ".join(f"{AXIS_NAMES[axis]} {n}" for axis, n in zip(axes, index, strict=True))
    return None
