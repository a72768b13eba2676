"""User functions with the arrays that they close over turned into explicit arguments.

A closure over a traced array cannot cross `custom_jvp` or `scan`, and its array gets no gradient.
`Explicit` stores the function as a jaxpr, whose constants are ordinary arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core


@dataclass(frozen=True, eq=False)
class Explicit:
    """A function of scalars and arrays that closes over nothing.

    Two of them are equal if they run the same program, so that `jax.jit` does not compile again
    for a lambda that is defined anew with other arrays.
    """

    jaxpr: core.Jaxpr
    num_constants: int

    def __call__(self, arrays: tuple[Array, ...], *scalars: Array) -> Array:
        """Return `function(*scalars, *explicit arrays)`; the first arrays are the constants."""
        constants, rest = arrays[: self.num_constants], arrays[self.num_constants :]
        return core.jaxpr_as_fun(core.ClosedJaxpr(self.jaxpr, list(constants)))(*scalars, *rest)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Explicit) and str(self.jaxpr) == str(other.jaxpr)

    def __hash__(self) -> int:
        return hash(str(self.jaxpr))


def explicit(
    kind: str,
    function: Callable[..., Array],
    scalars: dict[str, Any],
    arrays: tuple[Any, ...],
) -> tuple[Explicit, tuple[Array, ...]]:
    """Return the function without closures, and the arrays that it closed over.

    Args:
        kind: "mask" or "score", for error messages.
        function: takes the scalars, then the arrays; returns a bool for a mask, and a number of
            the dtype of the first scalar for a score.
        scalars: name → dtype.
        arrays: arrays, or their shapes and dtypes.

    Raises:
        TypeError: a function that does not take these arguments, branches on them in Python, or
            returns another shape or dtype.
    """
    expected = jnp.dtype(bool if kind == "mask" else next(iter(scalars.values())))
    receives = f"a {kind} function receives ({', '.join((*scalars, *['array'] * len(arrays)))})"
    if not callable(function):
        raise TypeError(f"a {kind} function must be callable, got {type(function).__name__}")
    structs = [jax.ShapeDtypeStruct((), dtype) for dtype in scalars.values()]
    try:
        closed = jax.make_jaxpr(function)(*structs, *arrays)
    except jax.errors.ConcretizationTypeError as error:
        raise TypeError(
            f"{receives} as traced numbers, so it cannot branch on them with Python's if, and, or: "
            "use jax.numpy.where, & and |"
        ) from error
    except TypeError as error:
        raise TypeError(f"{receives}, and raised: {error}") from error
    found = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in closed.out_avals)
    if found != f"{expected}[]":
        raise TypeError(f"{receives} and must return one {expected} number, got {found}")
    constants = tuple(map(jnp.asarray, closed.consts))
    return Explicit(closed.jaxpr, len(constants)), constants
