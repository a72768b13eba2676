"""Inputs sharded over two devices: results keep the sharding and need no communication."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from attention.primitives import masks
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import Check
from attention.testing.compare import TOLERANCE, difference, difference_of_gradients
from attention.testing.implementation import Implementation

COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def sharded(implementation: Implementation, case: Case, *, axis: int) -> str | None:
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
    if any(array.shape[axis] % 2 for array in inputs):
        return None  # a smaller case that two devices cannot share
    sharding = NamedSharding(
        Mesh(np.array(jax.devices()[:2]), ("devices",)), P(*[None] * axis, "devices")
    )
    arguments, allowed = {}, None
    if implementation.can("predicates"):
        arguments["mask"] = masks.causal()
        allowed = np.tri(case.T, dtype=bool)[None]

    def forward(first: Array, *inputs: Array) -> Array:
        given = dict(arguments)
        if implementation.can("predicates") and implementation.can("closures"):
            given["mask"] &= masks.from_function(lambda query, key: key >= first)
        return implementation.function(*inputs, **given)

    def gradients(first: Array, cotangents: Array, *inputs: Array) -> tuple[Array, ...]:
        output, pullback = jax.vjp(partial(forward, first), *inputs)
        return output, *pullback(cotangents)

    cotangents = case.cotangents()
    given = [
        jax.device_put(implementation.convert(array, case.dtype), sharding)
        for array in (cotangents, *inputs)
    ]
    differentiable = implementation.can("gradients")
    program = jax.jit(
        gradients if differentiable else lambda first, _, *inputs: (forward(first, *inputs),)
    )
    given.insert(0, jnp.int32(0))
    compiled = program.lower(*given).compile()
    collectives = [match[1] for match in COLLECTIVE.finditer(compiled.as_text())]
    if collectives:
        names = ", ".join(f"{collectives.count(name)} {name}" for name in sorted({*collectives}))
        return f"the compiled program has {names}"
    results = compiled(*given)
    for name, array in zip(("output", "query", "key", "value"), results, strict=False):
        if not array.sharding.is_equivalent_to(sharding, array.ndim):
            what = name if name == "output" else f"gradient of {name}"
            return f"the sharding of the {what} is {array.sharding}, should be {sharding}"
    output, *actual = (np.asarray(array, np.float64) for array in results)
    expected = reference.attention(*inputs, allowed).output
    found = difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])
    if not found and differentiable:
        expected = reference.gradients(*inputs, allowed, output=cotangents)[:3]
        tolerance = 5 * TOLERANCE[case.dtype]
        found = difference_of_gradients("gradient", tuple(actual), expected, tolerance)
    return found


CASES = tuple(Case(B=2, T=T, S=T, N=4, K=2, H=4, Hv=4) for T in (7, 300))

CHECKS = tuple(
    Check(name, partial(sharded, axis=axis), CASES, ("sharding", "jit"), ("values", "gradients"))
    for name, axis in (("sharded batch", 0), ("sharded heads", 2))
)
