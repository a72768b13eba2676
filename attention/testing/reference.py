"""The equation and its derivatives in float64 NumPy, and the comparison of results with them."""

from collections.abc import Callable

import numpy as np

Arrays = tuple[np.ndarray, ...]
Results = dict[str, np.ndarray]

# Absolute errors after sums over the keys, for results of order one.
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "float16": 1e-2, "bfloat16": 6e-2}
AXIS_NAMES = {"B": "batch", "T": "query", "S": "key", "N": "head", "K": "key head", "H": "feature"}
RESULTS = {  # name: axes, with H for any width
    "output": "BTNH",
    "weights": "BNTS",
    "logsumexp": "BNT",
    "gradient of query": "BTNH",
    "gradient of key": "BSKH",
    "gradient of value": "BSKH",
    "gradient of slopes": "N",
}


class ContractError(AssertionError):
    """A result differs from the contract; the message is the detail of a failed row."""


def reference_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | bool = True,
    scale: float | None = None,
    score: Callable[[np.ndarray], np.ndarray] = lambda products: products,
    keep: np.ndarray | float = 1.0,
    cotangents: Results | None = None,
) -> Results:
    """Compute keep · softmax(score(scale · q kᵀ) + mask) v and, with cotangents, its gradients.

    Args:
        query: `[..., T, N, H]`; query head n reads key head n // G.
        key: `[..., S, K, H]`.
        value: `[..., S, K, Hv]`.
        mask: broadcasts to `[..., T, S]`.
        scale: 1/√H by default.
        score: an analytic function of the scaled products `[..., N, T, S]`.
        keep: multiplies the weights, `[..., N, T, S]`.
        cotangents: of "output" and, optionally, of "logsumexp".

    Returns:
        "output" `[..., T, N, Hv]`, "weights" `[..., N, T, S]` before `keep`, "logsumexp"
        `[..., N, T]`, gradients of the inputs, and "gradient of scores", which `score` returned.
    """
    group = query.shape[-2] // key.shape[-2]
    keys, values = (np.repeat(array, group, axis=-2) for array in (key, value))  # [..., S, N, *]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    products = scale * np.einsum("...TNH,...SNH->...NTS", query, keys)
    visible = np.broadcast_to(mask, products[..., 0, :, :].shape)[..., None, :, :]
    scores = np.where(visible, score(products), -np.inf)
    peak = scores.max(axis=-1, keepdims=True, initial=np.finfo(np.float64).min)
    exponentials = np.exp(scores - peak)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / np.where(total == 0, 1, total)
    output = np.einsum("...NTS,...SNH->...TNH", keep * weights, values)
    with np.errstate(divide="ignore"):  # the logarithm of 0 is -inf
        logsumexp = (np.log(total) + peak)[..., 0]
    results = {"output": output, "weights": weights, "logsumexp": logsumexp}
    if cotangents is None:
        return results

    of_output, of_logsumexp = cotangents["output"], cotangents.get("logsumexp", np.zeros(1))
    of_weights = keep * np.einsum("...TNH,...SNH->...NTS", of_output, values)
    mean = (weights * of_weights).sum(axis=-1, keepdims=True)
    of_scores = weights * (of_weights - mean + of_logsumexp[..., None])
    slope = score(products + 1e-30j).imag / 1e-30  # by a complex step
    of_products = scale * of_scores * slope
    of_keys = np.einsum("...NTS,...TNH->...SNH", of_products, query)
    of_values = np.einsum("...NTS,...TNH->...SNH", keep * weights, of_output)
    return results | {
        "gradient of query": np.einsum("...NTS,...SNH->...TNH", of_products, keys),
        "gradient of key": of_keys.reshape(*key.shape[:-1], group, -1).sum(axis=-2),
        "gradient of value": of_values.reshape(*value.shape[:-1], group, -1).sum(axis=-2),
        "gradient of scores": of_scores,
    }


def numerical_jvp(function: Callable[..., Results], inputs: Arrays, tangents: Arrays) -> Results:
    """Return the derivatives along tangents by central differences, exact to eight digits."""
    ahead, behind = (
        function(*(x + step * tangent for x, tangent in zip(inputs, tangents, strict=True)))
        for step in (1e-4, -1e-4)
    )
    return {name: (ahead[name] - behind[name]) / 2e-4 for name in ahead}


def assert_close(
    actual: Results, expected: Results, tolerance: float | np.ndarray = 0.0, prefix: str = ""
) -> None:
    """Compare results in the order of `RESULTS`; derivatives have five times the tolerance.

    Args:
        actual: name → array.
        expected: the right results, and possibly more; an infinity equals only itself.
        tolerance: absolute for numbers below one, relative above; 0 requires equality.
        prefix: of the names in the message.

    Raises:
        ContractError: another shape, or an error, of which the message has the largest.
    """
    for name in (name for name in RESULTS if name in actual):
        ours, right, what = actual[name], expected[name], prefix + name
        if ours.shape != right.shape:
            raise ContractError(f"{what} has shape {ours.shape}, should be {right.shape}")
        limit = 5 * tolerance if "gradient" in what or "derivative" in what else tolerance
        with np.errstate(invalid="ignore"):  # inf - inf
            error = np.abs(ours - right)
        close = np.isfinite(right) & (error <= limit * np.maximum(1, np.abs(right)))
        close |= ours == right
        if not close.all():
            error = np.where(close, -1, np.where(np.isnan(error), np.inf, error))
            index = np.unravel_index(np.argmax(error), error.shape)
            due = f"{right[index]:.4g}"
            due += f" (off by {error[index]:.2g})" if np.isfinite(error[index]) else ""
            axes = ("B" + RESULTS[name])[-ours.ndim :]  # there may be two batch axes, or none
            place = ", ".join(map("{} {}".format, (AXIS_NAMES[axis] for axis in axes), index))
            raise ContractError(f"{what} at {place} is {ours[index]:.4g}, should be {due}")
