"""An attention function that is measured and checked for conformance (`Contender`)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from experiments.benchmarks.cases import Case

LIBRARY = "this library"

# Capabilities of `attention.testing` that all peers written in jax claim.
COMMON = frozenset(
    {
        *("jit", "vmap", "gradients", "jvp", "second_derivatives", "mask", "cross"),
        *("bfloat16", "float16", "float64", "sharding"),
    }
)


class RefusalError(Exception):
    """A contender cannot compute a case; the message is the reason, without a name."""


class Program(NamedTuple):
    """A contender prepared for one case.

    Attributes:
        run: compute the output, or output and gradients, and wait until they are complete.
        arrays: convert the result of `run` to arrays `[B, T, N, H]`: the output, then the gradients
            of query, key and value.
        scratch: bytes of memory beside inputs and outputs; None if unknown.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], tuple[np.ndarray, ...]]
    scratch: int | None = None


class Contender(NamedTuple):
    """An attention function.

    Attributes:
        name: library, or library:implementation.
        version: package and version; `LIBRARY` for ours.
        prepare: make it ready for a case, compiled where it is compiled.
        function: with the signature of `attention.attend`; None if it takes no arrays of jax.
        supports: the capabilities of `attention.testing` that its documentation claims.
    """

    name: str
    version: str
    prepare: Callable[[Case, np.ndarray], Program]
    function: Callable[..., Any] | None = None
    supports: Collection[str] = ()


def jax_peer(
    name: str,
    version: str,
    function: Callable[..., Any],
    flags: Mapping[str, Mapping[str, Any]],
    supports: Collection[str],
) -> Contender:
    """Return a contender that gets the fastest documented arguments for each pattern.

    Args:
        name: as in `Contender`, like version, function and supports.
        version: package and version.
        function: measured and checked.
        flags: pattern → keyword arguments. Other patterns are a dense mask `[1, 1, T, S]`.
        supports: capabilities beside `COMMON`.
    """

    def prepare(case: Case, inputs: np.ndarray) -> Program:
        options = flags.get(case.pattern, {})
        is_dense = case.pattern != "full" and not options

        def attend(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
            return function(query, key, value, mask=mask, **options)

        return compiled(case, inputs, attend, *([case.allowed()[None, None]] if is_dense else []))

    return Contender(name, version, prepare, function, {*COMMON, *supports})


def compiled(
    case: Case, inputs: np.ndarray, function: Callable[..., Array], *masks: ArrayLike
) -> Program:
    """Compile a function of query, key, value and masks, with its gradients if the case has them.

    Masks are arguments, because the compiler could compute with constants before the clock starts.
    """

    def gradient(
        cotangent: Array, query: Array, key: Array, value: Array, *masks: Array
    ) -> tuple[Array, ...]:
        output, pull = jax.vjp(lambda *args: function(*args, *masks), query, key, value)
        # Without the output, the compiler would drop a part of the forward pass.
        return output, *pull(cotangent)

    def forward(*arguments: Array) -> tuple[Array]:
        return (function(*arguments),)

    *arguments, cotangent = (jnp.asarray(array, case.dtype) for array in inputs)
    arguments += map(jnp.asarray, masks)
    if case.gradient:
        arguments = [cotangent, *arguments]
    program = jax.jit(gradient if case.gradient else forward).lower(*arguments).compile()
    memory = program.memory_analysis()
    return Program(
        run=lambda: jax.block_until_ready(program(*arguments)),
        arrays=lambda results: tuple(np.asarray(array, np.float64) for array in results),
        scratch=None if memory is None else memory.temp_size_in_bytes,
    )
