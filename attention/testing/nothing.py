"""The edges of the mask: queries that see nothing, and NaN or infinity that nobody may see."""

import numpy as np

from attention.testing import reference
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE, difference, difference_of_gradients
from attention.testing.promise import SQUARE, Promise
from attention.testing.subject import Subject

POISONS = (np.nan, np.inf, -np.inf)


def empty_rows(subject: Subject, case: Case) -> str | None:
    """A query that may see nothing: output and weights 0, logsumexp -inf."""
    inputs, mask = case.query_key_value(), _with_empty_rows(case)
    expected = reference.attention(*inputs, mask)
    tolerance = TOLERANCE[case.dtype]
    output = subject(inputs, case.dtype, mask=mask)
    found = difference("output", "BTNH", output, expected.output, tolerance)
    for name, axes in (("weights", "BNTS"), ("logsumexp", "BNT")):
        if not found and subject.can(name):
            _, extras = subject(inputs, case.dtype, mask=mask, returning=(name,))
            found = difference(name, axes, extras[name], getattr(expected, name), tolerance)
    return found


def gradients_of_empty_rows(subject: Subject, case: Case) -> str | None:
    """A query that may see nothing gives and gets no gradient."""
    inputs, mask = case.query_key_value(), _with_empty_rows(case)
    empty = ~mask.any(axis=-1)
    cotangents = case.normal(10, case.B, case.T, case.N, case.Hv)
    of_empty = np.where(empty[..., None, None], cotangents, 0)
    for what, given in (("the empty rows", of_empty), ("all rows", cotangents)):
        actual = subject.pullback(inputs, case.dtype, given, mask=mask)
        expected = reference.gradients(*inputs, mask, output=given)
        tolerance = 0 if given is of_empty else 5 * TOLERANCE[case.dtype]
        found = difference_of_gradients(f"gradient from {what}", actual, expected[:3], tolerance)
        if found:
            return found
    return None


def hidden_poison(subject: Subject, case: Case) -> str | None:
    """A NaN or an infinity changes no output that may not see it."""
    inputs = case.query_key_value()
    mask = _without_key_0(case)
    mask[:, -1, 0] = True
    unseen = np.arange(case.T)[:, None, None] < case.T - 1
    clean = np.where(unseen, subject(inputs, case.dtype, mask=mask), 0)
    for what, poisoned in _poisoned(inputs) if case.S > 1 else ():
        output = np.where(unseen, subject(poisoned, case.dtype, mask=mask), 0)
        found = difference("output", "BTNH", output, clean)
        if found:
            return f"with {what} 0, which the last query alone may see: {found}"
    return None


def gradients_past_poison(subject: Subject, case: Case) -> str | None:
    """A NaN or an infinity that nobody may see changes no gradient, and has none."""
    inputs = case.query_key_value()
    mask = _without_key_0(case)
    cotangents = case.normal(10, case.B, case.T, case.N, case.Hv)
    clean = subject.pullback(inputs, case.dtype, cotangents, mask=mask)
    for what, poisoned in _poisoned(inputs) if case.S > 1 else ():
        actual = subject.pullback(poisoned, case.dtype, cotangents, mask=mask)
        found = difference_of_gradients("gradient", actual, clean, TOLERANCE[case.dtype])
        if found:
            return f"with {what} 0, which nobody may see: {found}"
    return None


def _with_empty_rows(case: Case) -> np.ndarray:
    """A random mask: one query, and in a larger batch all of the last example, see nothing."""
    mask = case.mask()
    mask[:, case.T // 2] = False
    if case.B > 1:
        mask[-1] = False
    return mask


def _without_key_0(case: Case) -> np.ndarray:
    """A random mask that hides one key from everybody, and of a single key nothing."""
    mask = case.mask()
    mask[..., -1] = True
    mask[..., 0] = case.S == 1
    return mask


def _poisoned(
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> list[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    query, key, value = inputs
    here = (np.arange(key.shape[1]) == 0)[:, None, None]
    found = []
    for poison in POISONS:
        found.append((f"{poison} in key", (query, np.where(here, poison, key), value)))
        found.append((f"{poison} in value", (query, key, np.where(here, poison, value))))
    return found


ROWS = (
    Promise("empty rows", empty_rows, (SQUARE,), ("mask",), ("mask", "weights", "logsumexp")),
    Promise(
        "gradients of empty rows",
        gradients_of_empty_rows,
        (SQUARE,),
        ("mask", "gradients"),
        ("mask", "gradients", "empty rows"),
    ),
    Promise("hidden NaN and infinity", hidden_poison, (SQUARE,), ("mask",), ("mask",)),
    Promise(
        "gradients past NaN and infinity",
        gradients_past_poison,
        (SQUARE,),
        ("mask", "gradients"),
        ("mask", "gradients", "hidden NaN and infinity"),
    ),
)
