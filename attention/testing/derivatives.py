"""Derivatives against those of the equation in float64."""

from collections.abc import Callable

import numpy as np

from attention.testing import reference
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE, difference, difference_of_gradients
from attention.testing.promise import FULL, LONG, SQUARE, Promise
from attention.testing.subject import Subject


def gradients(subject: Subject, case: Case) -> str | None:
    """Reverse mode."""
    inputs, cotangents = case.query_key_value(), _cotangents(case)
    arguments = _mask(subject, case)
    actual = subject.pullback(inputs, case.dtype, cotangents, **arguments)
    expected = reference.gradients(*inputs, **arguments, output=cotangents)
    return difference_of_gradients("gradient", actual, expected[:3], _tolerance(case))


def forward_mode(subject: Subject, case: Case) -> str | None:
    """Forward mode, along a random direction."""
    inputs, arguments = case.query_key_value(), _mask(subject, case)
    tangents = _tangents(case)
    actual = subject.pushforward(inputs, case.dtype, tangents, **arguments)
    expected = _along(lambda *at: (reference.attention(*at, **arguments).output,), inputs, tangents)
    return difference("derivative of the output", "BTNH", actual, expected[0], _tolerance(case))


def second_derivatives(subject: Subject, case: Case) -> str | None:
    """Forward over reverse mode."""
    inputs, arguments = case.query_key_value(), _mask(subject, case)
    cotangents, tangents = _cotangents(case), _tangents(case)
    actual = subject.push_pullback(inputs, case.dtype, cotangents, tangents, **arguments)
    expected = _along(
        lambda *at: reference.gradients(*at, **arguments, output=cotangents)[:3], inputs, tangents
    )
    return difference_of_gradients("derivative of the gradient", actual, expected, _tolerance(case))


def gradients_of_logsumexp(subject: Subject, case: Case) -> str | None:
    """Reverse mode, of output and logsumexp together."""
    inputs, arguments = case.query_key_value(), _mask(subject, case)
    of_logsumexp = case.normal(11, case.B, case.N, case.T)
    cotangents = _cotangents(case), {"logsumexp": of_logsumexp}
    actual = subject.pullback(inputs, case.dtype, cotangents, returning=("logsumexp",), **arguments)
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
    """Central differences: in float64 they are right to eight digits."""
    ahead, behind = (
        function(*(array + way * tangent for array, tangent in zip(inputs, tangents, strict=True)))
        for way in (step, -step)
    )
    return tuple((one - other) / (2 * step) for one, other in zip(ahead, behind, strict=True))


def _mask(subject: Subject, case: Case) -> dict[str, np.ndarray]:
    return {"mask": case.mask()} if subject.can("mask") else {}


def _tolerance(case: Case) -> float:
    """Derivatives are sums over keys or queries of what is rounded."""
    return 5 * TOLERANCE[case.dtype]


def _cotangents(case: Case) -> np.ndarray:
    return case.normal(10, case.B, case.T, case.N, case.Hv)


def _tangents(case: Case) -> tuple[np.ndarray, ...]:
    return tuple(case.normal(20 + n, *x.shape) for n, x in enumerate(case.query_key_value()))


ROWS = (
    Promise("gradients", gradients, (SQUARE,), ("gradients",), ("mask",)),
    Promise(
        "gradients at lengths of no tile",
        gradients,
        (LONG[2], LONG[4]),
        ("gradients",),
        ("gradients", "lengths of no tile", "lengths of no tile, masked"),
    ),
    Promise("forward mode", forward_mode, (FULL,), ("jvp",), ("mask", "gradients")),
    Promise(
        "second derivatives",
        second_derivatives,
        (FULL,),
        ("gradients", "second_derivatives"),
        ("gradients", "forward mode"),
    ),
    Promise(
        "gradients of logsumexp",
        gradients_of_logsumexp,
        (FULL,),
        ("gradients", "logsumexp"),
        ("gradients", "logsumexp"),
    ),
)
