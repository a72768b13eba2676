"""User functions as programs: traced once, with the arrays that they close over as arguments.

A closure over a traced array cannot cross `custom_jvp` or `scan`, its array gets no gradient, and
`jax.jit` compiles again for a lambda that is defined anew. A program has none of these limits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core
from jax.extend.core.primitives import jit_p
from jax.typing import ArrayLike

from attention.primitives.pytree_dataclass import pytree_dataclass, static
from attention.primitives.vectorize import varying_alike

UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@dataclass(frozen=True)
class Program:
    """A jaxpr without its constants; equal to another one of the same text.

    The text of loops, derivative rules and inner constants is incomplete: a program that contains
    them is only equal to itself, or to one of the same function if that closes over no arrays.
    """

    text: str
    owner: int = field(repr=False)  # id of `kept`
    kept: object = field(compare=False, repr=False)  # the function, if its text is incomplete
    num_constants: int = field(compare=False, repr=False)
    parts: tuple[Sequence[Any], ...] = field(compare=False, repr=False)

    def __call__(self, arrays: Sequence[Array], *scalars: Array) -> list[Array]:
        """Return the results of the function; the first arrays are the constants.

        In a mesh, JAX adapts loops and derivative rules only where it traces them. So a function
        that contains them, and closes over no arrays, is called again there.
        """
        constants, rest = arrays[: self.num_constants], arrays[self.num_constants :]
        if callable(self.kept) and not jax.typeof(scalars[0]).sharding.mesh.empty:
            return jax.tree.leaves(self.kept(*scalars, *rest))
        return evaluate(self.parts, constants, (*scalars, *rest))


def _parts(jaxpr: core.Jaxpr) -> tuple[Sequence[Any], ...]:
    return jaxpr.constvars, jaxpr.invars, jaxpr.eqns, jaxpr.outvars  # no constants in jax 0.12


def _in_text(part: object) -> bool:
    """Return whether the text of a jaxpr contains all of its equations, or of a parameter."""
    match part:
        case tuple() | list():
            return all(map(_in_text, part))
        case core.JaxprEqn() if part.primitive is jit_p:  # its other parameters are not evaluated
            return not part.params["jaxpr"].consts and _in_text(part.params["jaxpr"].eqns)
        case core.JaxprEqn():
            literals = [x.val for x in part.invars if isinstance(x, core.Literal)]
            return not any(map(jnp.ndim, literals)) and _in_text([*part.params.values()])
    return part is None or isinstance(part, int | float | str | Enum | jnp.dtype)


def evaluate(
    parts: tuple[Sequence[Any], ...], constants: Sequence[Array], arguments: Sequence[Array]
) -> list[Array]:
    """Evaluate a jaxpr in the current mesh, whatever the mesh it was traced in."""
    constvars, invars, eqns, outvars = parts
    values = dict(zip((*constvars, *invars), (*constants, *arguments), strict=True))

    def read(atoms: Sequence[core.Var | core.Literal]) -> list[Array]:
        return [x.val if isinstance(x, core.Literal) else values[x] for x in atoms]

    for equation in eqns:
        operands = varying_alike(read(equation.invars))
        if equation.primitive is jit_p:  # inlined: it contains the old mesh
            inner = equation.params["jaxpr"]
            results = evaluate(_parts(inner.jaxpr), inner.consts, operands)
        else:
            params = dict(equation.primitive.get_bind_params(equation.params))
            params |= {"sharding": None} if "sharding" in params else {}
            results = equation.primitive.bind(*operands, **params)
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return read(outvars)


@pytree_dataclass
class Closure:
    """A program with its arrays: the constants that it closes over, then those that it is given.

    They may have batch axes in front of the axes that they had when it was traced.
    """

    arrays: tuple[Array, ...]
    program: Program = static()
    ranks: tuple[int, ...] = static()

    def __call__(self, *numbers: ArrayLike) -> tuple[Array, ...]:
        """Return the results of the function, elementwise over numbers that broadcast."""
        function = jnp.vectorize(lambda *scalars: tuple(self.program(self.arrays, *scalars)))
        return function(*numbers)


def hoist(
    kind: str, function: Callable, scalars: dict[str, Any], arrays: Sequence[Any], returns: str
) -> Closure:
    """Trace a function of scalars (name → dtype) and arrays.

    Raises:
        TypeError: it takes other arguments, branches on them in Python, or does not return this.
    """
    receives = f"a {kind} function receives ({', '.join((*scalars, *['array'] * len(arrays)))})"
    structs = [jax.ShapeDtypeStruct((), dtype) for dtype in scalars.values()]
    try:
        # A new lambda, because a Python number that a known function reads may have changed.
        closed = jax.make_jaxpr(lambda *arguments: function(*arguments))(*structs, *arrays)
    except UNTRACEABLE as error:
        raise TypeError(
            f"{receives} as traced numbers, which Python's if, and, or and range(...) do not accept"
            " and which cannot index a NumPy array or a list: use jax.numpy.where, & and |, and "
            "convert it with jax.numpy.asarray"
        ) from error
    except TypeError as error:
        raise TypeError(f"{receives}, and raised: {error}") from error
    found = ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in closed.out_avals)
    if found != returns:
        raise TypeError(f"{receives} and must return {returns}, got {found or None}")
    constants = tuple(map(jnp.asarray, closed.consts))
    kept = object() if constants else function  # the function would keep traced arrays alive
    kept = None if _in_text(closed.jaxpr.eqns) else kept
    program = Program(str(closed.jaxpr), id(kept), kept, len(constants), _parts(closed.jaxpr))
    arrays = *constants, *arrays
    return Closure(arrays, program, tuple(array.ndim for array in arrays))
