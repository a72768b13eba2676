"""Every implementation of `attend`, by name."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import Array

from attention import attend, explain
from attention.primitives.attend import IMPLEMENTATIONS, Choice
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import Contender, RefusalError
from experiments.benchmarks.jax_program import Call, jax_contender

LIBRARY = "attend"


def contenders() -> Iterator[Contender]:
    """Yield a contender for each implementation."""
    for implementation in IMPLEMENTATIONS:
        yield _named(implementation.name)


def chosen(case: Case) -> str:
    """Return the name of the contender that `attend` chooses by default."""
    return f"{LIBRARY}:{_choice(case).implementation.name}"


def _named(name: str) -> Contender:
    def call(case: Case) -> Call:
        if why := _choice(case).refusals.get(name):
            raise RefusalError(why)

        def function(query: Array, key: Array, value: Array, *segments: Array) -> Array:
            return attend(query, key, value, mask=case.mask(*segments), implementation=name)

        return Call(function, _segments(case))

    return jax_contender(f"{LIBRARY}:{name}", "this library", call)


def _segments(case: Case) -> tuple[Array, ...]:
    return () if (segments := case.segments()) is None else (segments,)


def _choice(case: Case) -> Choice:
    """Return the choice for traced arguments, as `attend` makes it under jit."""
    choices = []

    def trace(query: Array, *segments: Array) -> None:
        choices.append(explain(query, query, query, mask=case.mask(*segments)))

    jax.eval_shape(trace, jax.ShapeDtypeStruct(case.shape, jnp.dtype(case.dtype)), *_segments(case))
    return choices[0]
