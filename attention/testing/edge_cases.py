"""Fully masked rows: queries that may attend to no key."""

import numpy as np

from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import SQUARE, Check
from attention.testing.compare import TOLERANCE, difference, difference_of_gradients
from attention.testing.implementation import Implementation


def fully_masked_rows(implementation: Implementation, case: Case) -> str | None:
    """Check that a fully masked query has output 0, weights 0 and logsumexp -inf."""
    inputs, mask = case.query_key_value(), _with_fully_masked_rows(case)
    expected = reference.attention(*inputs, mask)
    tolerance = TOLERANCE[case.dtype]
    output = implementation(inputs, case.dtype, mask=mask)
    found = difference("output", "BTNH", output, expected.output, tolerance)
    for name, axes in (("weights", "BNTS"), ("logsumexp", "BNT")):
        if not found and implementation.can(name):
            _, extras = implementation(inputs, case.dtype, mask=mask, returning=(name,))
            found = difference(name, axes, extras[name], getattr(expected, name), tolerance)
    return found


def gradients_of_fully_masked_rows(implementation: Implementation, case: Case) -> str | None:
    """Check that gradients from and to a fully masked query are 0."""
    inputs, mask = case.query_key_value(), _with_fully_masked_rows(case)
    empty = ~mask.any(axis=-1)
    cotangents = case.cotangents()
    of_empty = np.where(empty[..., None, None], cotangents, 0)
    for what, given in (("fully masked rows", of_empty), ("all rows", cotangents)):
        actual = implementation.pullback(inputs, case.dtype, given, mask=mask)
        expected = reference.gradients(*inputs, mask, output=given)
        tolerance = 0 if given is of_empty else 5 * TOLERANCE[case.dtype]
        found = difference_of_gradients(f"gradient from {what}", actual, expected[:3], tolerance)
        if found:
            return found
    return None


def _with_fully_masked_rows(case: Case) -> np.ndarray:
    """Return a random mask with one masked query per example, and a masked last example."""
    mask = case.mask()
    mask[:, case.T // 2] = False
    if case.B > 1:
        mask[-1] = False
    return mask


CHECKS = (
    Check(
        "fully masked rows",
        fully_masked_rows,
        (SQUARE,),
        ("mask",),
        ("mask", "weights", "logsumexp"),
    ),
    Check(
        "gradients of fully masked rows",
        gradients_of_fully_masked_rows,
        (SQUARE,),
        ("mask", "gradients"),
        ("mask", "gradients", "fully masked rows"),
    ),
)
