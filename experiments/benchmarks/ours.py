"""Every implementation of `attend`, to measure and to check."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention import attend, explain_attend
from attention.primitives.attend import IMPLEMENTATIONS
from attention.testing import EVERYTHING
from experiments.benchmarks.cases import Case
from experiments.benchmarks.contender import (
    LIBRARY,
    Contender,
    Program,
    RefusalError,
    compiled,
)

# What the adapter to tokamax claims; if it claimed more, rows that use several capabilities would
# be refused as a whole.
OF_TOKAMAX = {
    *("jit", "vmap", "gradients", "mask", "predicates", "scale", "cross", "grouped"),
    *("value_width", "leading_axes", "bfloat16"),
}


def contenders() -> Iterator[Contender]:
    """Yield a contender for each implementation."""
    for name in (implementation.name for implementation in IMPLEMENTATIONS):
        prepare, function = partial(_prepare, name), partial(_attend, name)
        supports = OF_TOKAMAX if name.startswith("tokamax") else EVERYTHING
        yield Contender(f"attend:{name}", LIBRARY, prepare, function, supports)


def chosen(case: Case, name: str | None = None) -> str:
    """Return the name of the contender that `attend` chooses by default under jit.

    A named implementation is itself, or a ValueError if it cannot compute the case.
    """
    choices = []

    def trace(query: Array, *segments: Array) -> None:
        mask = case.mask(*segments)
        choices.append(explain_attend(query, query, query, mask=mask, implementation=name))

    query = jax.ShapeDtypeStruct(case.shape, jnp.dtype(case.dtype))
    jax.eval_shape(trace, query, *case.segments())
    return f"attend:{choices[0].implementation.name}"


def _prepare(name: str, case: Case, inputs: np.ndarray) -> Program:
    try:
        chosen(case, name)
    except ValueError as refused:
        raise RefusalError(str(refused)) from refused

    def function(query: Array, key: Array, value: Array, *segments: Array) -> Array:
        return attend(query, key, value, mask=case.mask(*segments), implementation=name)

    return compiled(case, inputs, function, *case.segments())


def _attend(name: str, *inputs: Any, **arguments: Any) -> Any:  # noqa: ANN401 - those of attend
    # The contract allows a refusal with its reason, but no wrong number.
    explain_attend(*inputs, **arguments)  # raises for wrong arguments
    try:
        explain_attend(*inputs, implementation=name, **arguments)
    except ValueError as refused:
        raise NotImplementedError(str(refused)) from refused
    return attend(*inputs, implementation=name, **arguments)
