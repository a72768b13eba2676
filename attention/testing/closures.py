"""Masks and score functions that close over traced arrays, at a small and a larger length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention.primitives import masks, scores
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import Check
from attention.testing.compare import TOLERANCE, difference, difference_of_gradients
from attention.testing.implementation import Implementation


def closures_in_masks(implementation: Implementation, case: Case) -> str | None:
    """Compare a mask that closes over traced document ids with the equation, with gradients."""
    documents = np.sort(case.random(13).integers(4, size=case.S)).astype(np.int32)
    allowed = (documents[:, None] == documents)[None]

    def call(documents: Array, *inputs: Array) -> Array:
        mask = masks.from_function(lambda query, key: documents[query] == documents[key])
        return implementation.function(*inputs, mask=mask)

    inputs, cotangents = case.query_key_value(), case.cotangents()
    output, gradients = _value_and_gradients(
        implementation, case, call, jnp.asarray(documents), inputs, cotangents, first=1
    )
    tolerance = TOLERANCE[case.dtype]
    expected = reference.attention(*inputs, allowed).output
    found = difference("output", "BTNH", output, expected, tolerance)
    if not found and gradients:
        expected = reference.gradients(*inputs, allowed, output=cotangents)[:3]
        found = difference_of_gradients("gradient", gradients, expected, 5 * tolerance)
    return found


def closures_in_scores(implementation: Implementation, case: Case) -> str | None:
    """Compare a score that closes over a traced array with the equation, with its gradient."""
    slopes = case.normal(14, case.N).astype(np.float32).astype(np.float64)
    position = np.arange(case.S)
    distance = np.abs(position[:, None] - position) / 32

    def call(slopes: Array, *inputs: Array) -> Array:
        def add_slope(score: Array, query: Array, key: Array, head: Array) -> Array:
            distance = jnp.abs(query - key).astype(score.dtype) / 32
            return score - slopes[head].astype(score.dtype) * distance

        return implementation.function(*inputs, score=(scores.from_function(add_slope),))

    def score(products: np.ndarray) -> np.ndarray:
        return products - slopes[:, None, None] * distance

    inputs, cotangents = case.query_key_value(), case.cotangents()
    given = jnp.asarray(slopes, jnp.float32)
    output, gradients = _value_and_gradients(
        implementation, case, call, given, inputs, cotangents, first=0
    )
    tolerance = TOLERANCE[case.dtype]
    expected = reference.attention(*inputs, score=score).output
    found = difference("output", "BTNH", output, expected, tolerance)
    if not found and gradients:
        expected = reference.gradients(*inputs, output=cotangents, score=score)
        of_slopes = -(expected.scores * distance).sum(axis=(0, 2, 3))
        found = difference("gradient of slopes", "N", gradients[0], of_slopes, 5 * tolerance)
        found = found or difference_of_gradients(
            "gradient", gradients[1:], expected[:3], 5 * tolerance
        )
    return found


def _value_and_gradients(
    implementation: Implementation,
    case: Case,
    call: Any,  # noqa: ANN401 - (array, query, key, value) -> output
    array: Array,
    inputs: tuple[np.ndarray, ...],
    cotangents: np.ndarray,
    *,
    first: int,
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Run `call` under jit; return the output, and gradients if supported.

    Args:
        implementation: the function under test.
        case: sizes and dtype.
        call: a function of an array, query, key and value.
        array: is closed over.
        inputs: query, key and value.
        cotangents: of the output.
        first: 0 to return the gradient of `array` before those of the inputs, 1 to leave it out.
    """

    def output_and_gradients(cotangents: Array, *arrays: Array) -> tuple[Array, ...]:
        constants = arrays[:first]
        output, pullback = jax.vjp(lambda *rest: call(*constants, *rest), *arrays[first:])
        return output, *pullback(cotangents.astype(output.dtype))

    given = implementation.convert(inputs, case.dtype)
    if not implementation.can("gradients"):
        return np.asarray(jax.jit(call)(array, *given), np.float64), ()
    cotangents = implementation.convert(cotangents, case.dtype)
    output, *gradients = jax.jit(output_and_gradients)(cotangents, array, *given)
    return np.asarray(output, np.float64), tuple(np.asarray(x, np.float64) for x in gradients)


CASES = tuple(Case(B=2, T=T, S=T, N=2, K=1, H=4, Hv=3) for T in (64, 300))

CHECKS = (
    Check(
        "closures in masks",
        closures_in_masks,
        CASES,
        ("closures", "jit", "predicates"),
        ("values", "mask", "gradients"),
    ),
    Check(
        "closures in scores",
        closures_in_scores,
        CASES,
        ("closures", "jit", "scores"),
        ("values", "gradients"),
    ),
)
