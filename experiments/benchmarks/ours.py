"""Every implementation of `attend`, to measure and to check."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention import attend, explain_attend
from attention.primitives.attend import IMPLEMENTATIONS, Choice
from attention.testing import EVERYTHING
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import (
    LIBRARY,
    Call,
    Candidate,
    Contender,
    RefusalError,
    jax_contender,
)

# What the adapter to tokamax claims; if it claimed more, rows that use several capabilities would
# be refused as a whole.
OF_TOKAMAX = {
    *("jit", "vmap", "gradients", "mask", "predicates", "scale", "cross", "grouped"),
    *("value_width", "leading_axes", "bfloat16"),
}


def contenders() -> Iterator[Contender]:
    """Yield a contender for each implementation."""
    for implementation in IMPLEMENTATIONS:
        name = implementation.name
        yield jax_contender(f"attend:{name}", LIBRARY, partial(_call, name))


def chosen(case: Case) -> str:
    """Return the name of the contender that `attend` chooses by default."""
    return f"attend:{_choice(case).implementation.name}"


def _call(name: str, case: Case) -> Call:
    try:
        _choice(case, name)
    except ValueError as refused:
        raise RefusalError(str(refused)) from refused

    def function(query: Array, key: Array, value: Array, *segments: Array) -> Array:
        return attend(query, key, value, mask=case.mask(*segments), implementation=name)

    return Call(function, _segments(case))


def _segments(case: Case) -> tuple[Array, ...]:
    return () if (segments := case.segments()) is None else (segments,)


def _choice(case: Case, name: str | None = None) -> Choice:
    """Return the choice for traced arguments, as `attend` makes it under jit."""
    choices = []

    def trace(query: Array, *segments: Array) -> None:
        mask = case.mask(*segments)
        choices.append(explain_attend(query, query, query, mask=mask, implementation=name))

    jax.eval_shape(trace, jax.ShapeDtypeStruct(case.shape, jnp.dtype(case.dtype)), *_segments(case))
    return choices[0]


def candidates() -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return a candidate for each implementation; (name, reason) for those that cannot run here."""
    array = jnp.ones((1, 16, 2, 64))
    usable, absent = [], []
    for name in (implementation.name for implementation in IMPLEMENTATIONS):
        try:
            explain_attend(array, array, array, implementation=name)
        except ValueError as refused:
            absent.append((f"attend, {name}", str(refused)))
        else:
            supports = OF_TOKAMAX if name.startswith("tokamax") else EVERYTHING
            usable.append(Candidate(f"attend, {name}", LIBRARY, _implementation(name), supports))
    return usable, absent


def _implementation(name: str) -> Callable[..., Any]:
    def function(*inputs: Any, **arguments: Any) -> Any:  # noqa: ANN401 - those of attend
        # The contract allows a refusal with its reason, but no wrong number.
        explain_attend(*inputs, **arguments)  # raises for wrong arguments
        try:
            explain_attend(*inputs, implementation=name, **arguments)
        except ValueError as refused:
            raise NotImplementedError(str(refused)) from refused
        return attend(*inputs, implementation=name, **arguments)

    return function
