"""Rows about traced and compiled programs: the cost of `jax.vmap`, and sharded inputs.

The cost of a traced program (jaxpr) is the same on every machine:

- sequential steps: iterations of loops, nested loops multiplied. A batching rule that maps over
  the examples one at a time has a large number of them.
- multiply-adds of matrix products, times the iterations of the loops around them. A `cond` counts
  as the mean of its branches. One that becomes a `select` under vmap, because its predicate differs
  per example, counts as the sum, since both branches run.

A loop counts as one iteration if the number of iterations is unknown when the program is traced.
"""

import math
import re
import statistics
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from attention.primitives import masks
from attention.testing.case import Case
from attention.testing.implementation import Implementation, convert, differentiate
from attention.testing.reference import (
    TOLERANCE,
    ContractError,
    assert_close,
    reference_attention,
)

COST_LIMIT = 1.5  # of vmap, as a multiple of the cost of a batch
COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def cost_of_vmap(implementation: Implementation, case: Case) -> None:
    """Compare the cost of vmap over the examples with the cost of the batch."""
    mask = {"mask": masks.causal()} if implementation.can("predicates") else {}
    run = partial(differentiate, implementation.function, **mask)
    passes = {"forward": None}
    if implementation.can("gradients"):
        passes["forward and backward"] = case.cotangents()
    for name, cotangents in passes.items():
        arrays = convert((case.query_key_value(), cotangents), case.dtype)
        # Each example keeps a batch axis of 1, for functions that require one.
        examples = jax.tree.map(lambda array: array[:, None], arrays)
        mapped = _cost(jax.make_jaxpr(jax.vmap(run))(*examples).jaxpr)
        batch = _cost(jax.make_jaxpr(run)(*arrays).jaxpr)
        kinds = "sequential steps", "multiply-adds"
        for kind, actual, expected in zip(kinds, mapped, batch, strict=True):
            if actual > COST_LIMIT * max(1, expected):
                raise ContractError(
                    f"vmap over {case.B} examples needs {actual:.0f} {kind} {name}, and a batch of "
                    f"{case.B} needs {expected:.0f}"
                )


def _cost(jaxpr: Any) -> tuple[float, float]:  # noqa: ANN401 - jax.extend.core.Jaxpr
    """Return the sequential steps and the multiply-adds of a traced program."""
    steps = products = 0.0
    for equation in jaxpr.eqns:
        params = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
        inner = [_cost(getattr(each, "jaxpr", each)) for each in params if _is_jaxpr(each)]
        inner_steps, inner_products = zip(*inner, strict=True) if inner else ((), ())
        name = equation.primitive.name
        if name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            lengths = (equation.invars[0].aval.shape[axis] for axis in contracted)
            products += math.prod(equation.outvars[0].aval.shape) * math.prod(lengths)
        elif name == "cond":
            steps += statistics.mean(inner_steps)
            products += statistics.mean(inner_products)
        else:
            times = equation.params.get("length", 1) if name == "scan" else 1
            steps += times * max(sum(inner_steps), name in ("scan", "while"))
            products += times * sum(inner_products)
    return steps, products


def _is_jaxpr(param: object) -> bool:
    return hasattr(param, "eqns")


def sharded(implementation: Implementation, case: Case, *, axis: int) -> None:
    """Check values, gradients, shardings and the compiled program for inputs on two devices.

    Args:
        implementation: the function under test.
        case: sizes; the sharded axis is even.
        axis: the sharded axis of query, key and value: 0 for the batch, 2 for heads.

    Raises:
        NotImplementedError: there is one device.
    """
    if len(jax.devices()) < 2:
        raise NotImplementedError("one device")
    inputs = case.query_key_value()
    cotangents = case.cotangents() if implementation.can("gradients") else None
    if any(array.shape[axis] % 2 for array in inputs):
        return  # a smaller case that two devices cannot share
    with_mask = implementation.can("predicates")

    def function(*inputs: Array, first: Array) -> Array:
        mask = masks.causal()
        if implementation.can("closures"):
            mask &= masks.from_function(lambda query, key: key >= first)
        return implementation.function(*inputs, **({"mask": mask} if with_mask else {}))

    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))
    sharding = NamedSharding(mesh, P(*[None] * axis, "devices"))
    given = jax.device_put(convert((inputs, cotangents), case.dtype), sharding)
    first = jnp.int32(0)  # of the keys; traced
    compiled = jax.jit(partial(differentiate, function)).lower(*given, first=first).compile()
    if collectives := COLLECTIVE.findall(compiled.as_text()):
        raise ContractError(f"the compiled program has {', '.join(collectives)}")
    results = compiled(*given, first=first)
    for name, array in results.items():
        if not array.sharding.is_equivalent_to(sharding, array.ndim):
            raise ContractError(
                f"the sharding of the {name} is {array.sharding}, should be {sharding}"
            )
    mask = np.tri(case.T, dtype=bool) if with_mask else True
    expected = reference_attention(*inputs, mask, cotangents=cotangents)
    actual = {name: np.asarray(array, np.float64) for name, array in results.items()}
    assert_close(actual, expected, TOLERANCE[case.dtype])
