"""User functions with the arrays that they close over turned into arguments.

A closure over a traced array cannot cross `custom_jvp` or `scan`, and its array gets no gradient.
`HoistedFunction` stores such a function as a jaxpr, whose constants are ordinary arguments. A jaxpr
keeps the mesh and the shardings that it was traced with, and attention evaluates it inside
`shard_map` too, so `evaluate` interprets it anew in the context of the call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core
from jax.extend.core.primitives import jit_p

from attention.primitives.vectorize import varying_alike

INDEXING_ERRORS = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@dataclass(frozen=True, eq=False)
class HoistedFunction:
    """A function of scalars and arrays that closes over nothing.

    Two of them are equal if they run the same program, so that `jax.jit` does not compile again
    for a lambda that is defined anew with other arrays. Programs are compared by their text, and by
    identity if the text is incomplete. The function itself is kept only if it closes over nothing:
    caches of `jax.jit` would keep its traced arrays alive. It is called in place of the program as
    long as it is traced to the same one, since JAX adapts loops and `custom_jvp` in it to the mesh.
    A Python number that it reads may have changed since: then the program is evaluated.
    """

    function: Callable[..., Array] | None
    program: "Program"
    num_constants: int

    def __call__(self, arrays: tuple[Array, ...], *scalars: Array) -> Array:
        """Return `function(*scalars, *arrays)`; the first arrays are the constants."""
        if self._function_runs_program():
            return self.function(*scalars, *arrays)
        constants, rest = arrays[: self.num_constants], arrays[self.num_constants :]
        return evaluate(self.program, constants, (*scalars, *rest))[0]

    def _function_runs_program(self) -> bool:
        if self.function is None:
            return False
        avals = [var.aval for var in self.program.invars]
        return str(trace(self.function, avals).jaxpr) == self.program.text

    @cached_property
    def _identity(self) -> tuple[str, int]:
        owner = self if self.function is None else self.function
        is_complete = all(map(_in_text, self.program.eqns))
        return self.program.text, 0 if is_complete else id(owner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HoistedFunction) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


class Program(NamedTuple):
    """The parts of a jaxpr without its constants, which the jaxpr itself contains in jax 0.12."""

    text: str
    constvars: Sequence[core.Var]
    invars: Sequence[core.Var]
    eqns: Sequence[core.JaxprEqn]
    outvars: Sequence[core.Var | core.Literal]


def _in_text(part: object) -> bool:
    """Return whether the text of a jaxpr contains all of it, or of one parameter in it.

    It omits derivative rules, functions of parameters and the constants of inner jaxprs.
    """
    match part:
        case None | bool() | int() | float() | str() | Enum() | jnp.dtype():
            return True
        case tuple() | list():
            return all(map(_in_text, part))
        case core.ClosedJaxpr() | core.Jaxpr():  # one class in jax 0.12
            return not getattr(part, "consts", ()) and all(map(_in_text, part.eqns))
        case core.JaxprEqn():
            arrays = any(isinstance(x, core.Literal) and jnp.ndim(x.val) for x in part.invars)
            only_jaxpr = part.primitive is jit_p  # the rest is not evaluated
            params = [part.params["jaxpr"]] if only_jaxpr else [*part.params.values()]
            return not arrays and _in_text(params)
    return False


def trace(function: Callable[..., Array], arguments: Sequence[Any]) -> core.ClosedJaxpr:
    """Trace a function of arrays with these shapes and dtypes.

    JAX does not trace a function again that it knows, even if a Python number in it has changed.
    """
    structs = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
        for x in arguments
    ]
    return jax.make_jaxpr(lambda *arrays: function(*arrays))(*structs)


def evaluate(
    jaxpr: Program | core.Jaxpr, constants: Sequence[Array], arguments: Sequence[Array]
) -> list[Array]:
    """Evaluate a jaxpr in the current mesh, whatever the mesh it was traced in."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def read(atom: core.Var | core.Literal) -> Array:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = varying_alike([read(atom) for atom in equation.invars])
        if equation.primitive is jit_p:  # inlined: it contains the old mesh
            inner = equation.params["jaxpr"]
            results = evaluate(inner.jaxpr, inner.consts, operands)
        else:
            params = dict(equation.primitive.get_bind_params(equation.params))
            if "sharding" in params:
                params["sharding"] = None
            results = equation.primitive.bind(*operands, **params)
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def hoist(
    kind: str,
    function: Callable[..., Array],
    scalars: dict[str, Any],
    arrays: tuple[Any, ...],
) -> tuple[HoistedFunction, tuple[Array, ...]]:
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
        closed = trace(function, (*structs, *arrays))
    except jax.errors.ConcretizationTypeError as error:
        raise TypeError(
            f"{receives} as traced numbers, so it cannot branch on them with Python's if, and, or: "
            "use jax.numpy.where, & and |"
        ) from error
    except INDEXING_ERRORS as error:
        raise TypeError(
            f"{receives} as traced numbers, which range(...) does not accept and which cannot "
            "index a NumPy array or a list: use jax.numpy, and convert it with jax.numpy.asarray"
        ) from error
    except TypeError as error:
        raise TypeError(f"{receives}, and raised: {error}") from error
    found = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in closed.out_avals) or "None"
    if found != f"{expected}[]":
        raise TypeError(f"{receives} and must return one {expected} number, got {found}")
    constants = tuple(map(jnp.asarray, closed.consts))
    kept = None if constants else function
    jaxpr = closed.jaxpr
    program = Program(str(jaxpr), jaxpr.constvars, jaxpr.invars, jaxpr.eqns, jaxpr.outvars)
    return HoistedFunction(kept, program, len(constants)), constants
