"""The cost of `jax.vmap`: transformed code must not do more work than the same batch.

The cost is computed from the traced program (jaxpr), so the result is the same on every machine:

- sequential steps: iterations of loops, nested loops multiplied. A batching rule that maps over
  the examples one at a time shows here.
- multiply-adds of matrix products, times the iterations of the loops around them. A `cond` counts
  as the mean of its branches. One that becomes a `select` under vmap, because its predicate differs
  per example, counts as the sum, since both branches run.

A loop counts as one iteration if the number of iterations is unknown when the program is traced.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives import masks
from attention.testing.case import Case
from attention.testing.check import Check
from attention.testing.implementation import Implementation

LIMIT = 1.5


class Cost(NamedTuple):
    """The work of a traced program."""

    steps: float
    products: float


def cost_of_vmap(implementation: Implementation, case: Case) -> str | None:
    """Compare the cost of vmap over the examples with the cost of the batch."""
    inputs = [
        jax.ShapeDtypeStruct(array.shape, jnp.dtype(case.dtype)) for array in case.query_key_value()
    ]
    cotangents = jax.ShapeDtypeStruct((case.B, case.T, case.N, case.Hv), jnp.dtype(case.dtype))
    arguments: dict[str, Any] = {}
    if implementation.can("predicates"):
        arguments["mask"] = masks.causal()

    def gradients(cotangents: Array, *inputs: Array) -> tuple[Array, ...]:
        output, pullback = jax.vjp(lambda *args: forward(*args)[0], *inputs)
        return output, *pullback(cotangents)

    def forward(*inputs: Array) -> tuple[Array]:
        return (implementation.function(*inputs, **arguments),)

    programs = {"forward": (forward, inputs)}
    if implementation.can("gradients"):
        programs["forward and backward"] = (gradients, [cotangents, *inputs])
    for name, (function, given) in programs.items():
        batch = _cost(function, given)
        # Each example keeps a batch axis of 1, for functions that require one.
        examples = [jax.ShapeDtypeStruct((case.B, 1, *x.shape[1:]), x.dtype) for x in given]
        mapped = _cost(jax.vmap(function), examples)
        for kind, actual, expected in zip(
            ("sequential steps", "multiply-adds"), mapped, batch, strict=True
        ):
            if actual > LIMIT * max(1, expected):
                return (
                    f"vmap over {case.B} examples needs {actual:.0f} {kind} {name}, and a batch of "
                    f"{case.B} needs {expected:.0f}"
                )
    return None


def _cost(function: Callable[..., Any], inputs: list[jax.ShapeDtypeStruct]) -> Cost:
    return _cost_of(jax.make_jaxpr(function)(*inputs).jaxpr)


def _cost_of(jaxpr: Any) -> Cost:  # noqa: ANN401 - jax.extend.core.Jaxpr
    steps = products = 0.0
    for equation in jaxpr.eqns:
        inner = [_cost_of(each) for each in _inner_jaxprs(equation.params)]
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            products += math.prod(equation.outvars[0].aval.shape) * math.prod(
                shape[axis] for axis in contracted
            )
        elif equation.primitive.name in ("scan", "while"):
            length = equation.params.get("length", 1)
            steps += length * max(1.0, sum(cost.steps for cost in inner))
            products += length * sum(cost.products for cost in inner)
        elif equation.primitive.name == "cond":
            steps += statistics.mean(cost.steps for cost in inner)
            products += statistics.mean(cost.products for cost in inner)
        else:
            steps += sum(cost.steps for cost in inner)
            products += sum(cost.products for cost in inner)
    return Cost(steps, products)


def _inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    for leaf in jax.tree.leaves(list(params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        if hasattr(leaf, "eqns"):
            yield getattr(leaf, "jaxpr", leaf)


CASES = tuple(Case(B=8, T=T, S=T, N=4, K=2, H=4, Hv=4) for T in (7, 300))

CHECKS = (Check("cost of vmap", cost_of_vmap, CASES, ("vmap", "jit"), ("vmap",)),)
