"""Every implementation of `attend` that can run here."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp

import attention
from attention import explain
from attention.primitives.attend import IMPLEMENTATIONS
from attention.testing import EVERYTHING
from experiments.conformance.candidate import Candidate

LIBRARY = "this library"

# Capabilities that an implementation refuses; without these, other rows would be refused too.
REFUSED = {
    "jax": {
        *("value_width", "scores", "weights", "logsumexp", "dropout", "dropout_by_position"),
        *("float16", "float64"),
    }
}


def candidates() -> Iterator[Candidate | tuple[str, str]]:
    """Yield a candidate for each implementation; (name, reason) for those that cannot run here."""
    for implementation in IMPLEMENTATIONS:
        name, function = f"attend, {implementation.name}", _named(implementation.name)
        array = jnp.ones((1, 16, 2, 64))
        try:
            explain(array, array, array, implementation=implementation.name)
        except ValueError as error:
            yield name, str(error)
            continue
        refused = REFUSED.get(implementation.name, set())
        yield Candidate(name, LIBRARY, function, EVERYTHING - refused)


def _named(name: str) -> Callable[..., Any]:
    def attend(*inputs: Any, **arguments: Any) -> Any:  # noqa: ANN401 - those of attend
        try:
            return attention.attend(*inputs, implementation=name, **arguments)
        except ValueError as error:
            if not str(error).startswith(f"implementation {name!r} cannot compute this"):
                raise
            # The contract allows a refusal with its reason, but no wrong number.
            raise NotImplementedError(str(error)) from error

    return attend
