"""Derivatives, compared with those of the equation in float64."""

from collections.abc import Callable

import numpy as np

from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import FULL, SQUARE, UNALIGNED, Check
from attention.testing.compare import TOLERANCE, difference, difference_of_gradients
from attention.testing.implementation import Implementation
from attention.testing.values import softcap_and_bias


def gradients(implementation: Implementation, case: Case) -> str | None:
    """Compare reverse-mode gradients of the output."""
    inputs, cotangents = case.query_key_value(), case.cotangents()
    arguments = implementation.mask_of(case)
    actual = implementation.pullback(inputs, case.dtype, cotangents, **arguments)
    expected = reference.gradients(*inputs, **arguments, output=cotangents)
    return difference_of_gradients("gradient", actual, expected[:3], _tolerance(case))


def gradients_of_scores(implementation: Implementation, case: Case) -> str | None:
    """Compare reverse-mode gradients through a soft cap and a bias."""
    inputs, allowed, (given, score) = case.query_key_value(), case.mask(), softcap_and_bias(case)
    cotangents = case.cotangents()
    actual = implementation.pullback(inputs, case.dtype, cotangents, mask=allowed, score=given)
    expected = reference.gradients(*inputs, allowed, output=cotangents, score=score)
    return difference_of_gradients("gradient", actual, expected[:3], _tolerance(case))


def forward_mode(implementation: Implementation, case: Case) -> str | None:
    """Compare the forward-mode derivative along a random direction."""
    inputs, arguments = case.query_key_value(), implementation.mask_of(case)
    tangents = _tangents(case)
    actual = implementation.pushforward(inputs, case.dtype, tangents, **arguments)
    expected = _along(lambda *at: (reference.attention(*at, **arguments).output,), inputs, tangents)
    return difference("derivative of the output", "BTNH", actual, expected[0], _tolerance(case))


def second_derivatives(implementation: Implementation, case: Case) -> str | None:
    """Compare second derivatives: forward over reverse mode."""
    inputs, arguments = case.query_key_value(), implementation.mask_of(case)
    cotangents, tangents = case.cotangents(), _tangents(case)
    actual = implementation.push_pullback(inputs, case.dtype, cotangents, tangents, **arguments)
    expected = _along(
        lambda *at: reference.gradients(*at, **arguments, output=cotangents)[:3], inputs, tangents
    )
    return difference_of_gradients("derivative of the gradient", actual, expected, _tolerance(case))


def gradients_of_logsumexp(implementation: Implementation, case: Case) -> str | None:
    """Compare reverse-mode gradients of output and logsumexp together."""
    inputs, arguments = case.query_key_value(), implementation.mask_of(case)
    of_logsumexp = case.normal(11, case.B, case.N, case.T)
    cotangents = case.cotangents(), {"logsumexp": of_logsumexp}
    actual = implementation.pullback(
        inputs, case.dtype, cotangents, returning=("logsumexp",), **arguments
    )
    expected = reference.gradients(
        *inputs, **arguments, output=cotangents[0], logsumexp=of_logsumexp
    )
    return difference_of_gradients("gradient", actual, expected[:3], _tolerance(case))


def _along(
    function: Callable[..., tuple[np.ndarray, ...]],
    inputs: tuple[np.ndarray, ...],
    tangents: tuple[np.ndarray, ...],
    step: float = 1e-4,
) -> tuple[np.ndarray, ...]:
    """Return central differences; in float64 they are exact to eight digits."""
    ahead, behind = (
        function(*(array + sign * tangent for array, tangent in zip(inputs, tangents, strict=True)))
        for sign in (step, -step)
    )
    return tuple((one - other) / (2 * step) for one, other in zip(ahead, behind, strict=True))


def _tolerance(case: Case) -> float:
    """Return the tolerance for derivatives, which are sums of rounded products."""
    return 5 * TOLERANCE[case.dtype]


def _tangents(case: Case) -> tuple[np.ndarray, ...]:
    return tuple(case.normal(20 + n, *x.shape) for n, x in enumerate(case.query_key_value()))


CHECKS = (
    Check("gradients", gradients, (SQUARE,), ("gradients",), ("mask",)),
    Check(
        "gradients at unaligned lengths",
        gradients,
        (UNALIGNED[2], UNALIGNED[4]),
        ("gradients",),
        ("gradients", "unaligned lengths", "unaligned lengths, masked"),
    ),
    Check(
        "gradients of scores",
        gradients_of_scores,
        (FULL,),
        ("gradients", "scores", "mask"),
        ("gradients", "order of operations"),
    ),
    Check("forward mode", forward_mode, (FULL,), ("jvp",), ("mask", "gradients")),
    Check(
        "second derivatives",
        second_derivatives,
        (FULL,),
        ("gradients", "second_derivatives"),
        ("gradients", "forward mode"),
    ),
    Check(
        "gradients of logsumexp",
        gradients_of_logsumexp,
        (FULL,),
        ("gradients", "logsumexp"),
        ("gradients", "logsumexp"),
    ),
)
