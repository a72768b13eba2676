"""NaN and infinity: without effect where masked, NaN in output and gradients where visible."""

from collections.abc import Iterator

import numpy as np

from attention.testing.case import Case
from attention.testing.check import SQUARE, Check
from attention.testing.compare import at, difference, difference_of_gradients
from attention.testing.implementation import Implementation

NONFINITE = (np.nan, np.inf, -np.inf)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def masked_nonfinite(implementation: Implementation, case: Case) -> str | None:
    """Check that outputs have the same bits for a masked NaN or infinity as for a masked 0."""
    inputs = case.query_key_value()
    mask = _without_key_0(case)
    mask[:, -1, 0] = True
    masked = np.arange(case.T)[:, None, None] < case.T - 1
    for what, zero, nonfinite in _replaced_at_key_0(inputs) if case.S > 1 else ():
        output, expected = (
            np.where(masked, implementation(array, case.dtype, mask=mask), 0)
            for array in (nonfinite, zero)
        )
        found = difference("output", "BTNH", output, expected)
        if found:
            return f"with {what} 0, which only the last query may attend to: {found}"
    return None


def gradients_with_masked_nonfinite(implementation: Implementation, case: Case) -> str | None:
    """Check that gradients have the same bits for a masked NaN or infinity as for a masked 0."""
    inputs = case.query_key_value()
    mask = _without_key_0(case)
    cotangents = case.cotangents()
    for what, zero, nonfinite in _replaced_at_key_0(inputs) if case.S > 1 else ():
        actual, expected = (
            implementation.pullback(array, case.dtype, cotangents, mask=mask)
            for array in (nonfinite, zero)
        )
        found = difference_of_gradients("gradient", actual, expected, 0)
        if found:
            return f"with {what} 0, which no query may attend to: {found}"
    return None


def visible_nan(implementation: Implementation, case: Case) -> str | None:
    """Check that a query that may attend to a NaN, or contains one, has output NaN."""
    for what, mask, inputs in _with_visible_nan(case):
        output = implementation(inputs, case.dtype, mask=mask)
        finite = ~np.isnan(output[:, -1]).all(axis=-1)
        if finite.any():
            index = np.unravel_index(np.argmax(finite), finite.shape)
            place = at("BN", index)
            return f"with NaN in {what}, the output of the last query is not NaN at {place}"
    return None


def gradients_of_visible_nan(implementation: Implementation, case: Case) -> str | None:
    """Check that a NaN output row gives a NaN gradient to its query, and finite ones elsewhere.

    The cotangent of that row is random, then 0: 0 · NaN is NaN. Gradients of the keys and values
    that the row attends to may be NaN.
    """
    random = case.cotangents()
    last = np.broadcast_to(np.arange(case.T) == case.T - 1, (case.B, case.T))
    zero = np.where(last[..., None, None], 0, random)
    for what, mask, inputs in _with_visible_nan(case):
        for kind, cotangents in (("a random", random), ("a zero", zero)):
            gradients = implementation.pullback(inputs, case.dtype, cotangents, mask=mask)
            fault = _nan_elsewhere(gradients, last, mask[:, -1])
            if fault:
                return f"with NaN in {what} and {kind} cotangent of the last query, {fault}"
    return None


def _nan_elsewhere(gradients: Arrays, queries: np.ndarray, keys: np.ndarray) -> str | None:
    """Check that gradients are NaN for these queries, and finite for others and for other keys.

    Args:
        gradients: of query, key and value.
        queries: bool `[B, T]`, queries of NaN rows.
        keys: bool `[B, S]`, keys that these rows attend to.
    """
    of_query, of_key, of_value = (np.isnan(gradient) for gradient in gradients)
    for name, axes, wrong, what in (
        ("query", "BTN", queries[..., None] & ~of_query.all(axis=-1), "not NaN"),
        ("query", "BTN", ~queries[..., None] & of_query.any(axis=-1), "NaN"),
        ("key", "BSK", ~keys[..., None] & of_key.any(axis=-1), "NaN"),
        ("value", "BSK", ~keys[..., None] & of_value.any(axis=-1), "NaN"),
    ):
        if wrong.any():
            index = np.unravel_index(np.argmax(wrong), wrong.shape)
            return f"the gradient of {name} is {what} at {at(axes, index)}"
    return None


def _without_key_0(case: Case) -> np.ndarray:
    """Return a random mask in which key 0 is masked for all queries, unless it is the only key."""
    mask = case.mask()
    mask[..., -1] = True
    mask[..., 0] = case.S == 1
    return mask


def _replaced_at_key_0(inputs: Arrays) -> Iterator[tuple[str, Arrays, Arrays]]:
    """Yield a name, inputs with key or value 0 set to zero, and to NaN or infinity."""
    query, key, value = inputs
    first = (np.arange(key.shape[1]) == 0)[:, None, None]
    for number in NONFINITE:
        keys = [(query, np.where(first, new, key), value) for new in (0, number)]
        yield f"{number} in key", keys[0], keys[1]
        values = [(query, key, np.where(first, new, value)) for new in (0, number)]
        yield f"{number} in value", values[0], values[1]


def _with_visible_nan(case: Case) -> Iterator[tuple[str, np.ndarray, Arrays]]:
    """Yield a name, a mask, and inputs with a NaN that only the last query may attend to."""
    query, key, value = case.query_key_value()
    mask = _without_key_0(case)
    mask[:, -1, 0] = True
    first = (np.arange(case.S) == 0)[:, None, None]
    last = (np.arange(case.T) == case.T - 1)[:, None, None]
    yield "a key", mask, (query, np.where(first, np.nan, key), value)
    yield "a value", mask, (query, key, np.where(first, np.nan, value))
    yield "a query", mask, (np.where(last, np.nan, query), key, value)


CHECKS = (
    Check("masked NaN and infinity", masked_nonfinite, (SQUARE,), ("mask",), ("mask",)),
    Check(
        "gradients with masked NaN and infinity",
        gradients_with_masked_nonfinite,
        (SQUARE,),
        ("mask", "gradients"),
        ("mask", "gradients", "masked NaN and infinity"),
    ),
    Check("visible NaN", visible_nan, (SQUARE,), ("mask",), ("mask",)),
    Check(
        "gradients of visible NaN",
        gradients_of_visible_nan,
        (SQUARE,),
        ("mask", "gradients"),
        ("mask", "gradients", "visible NaN"),
    ),
)
