"""Types of what is benchmarked (`Contender`) and checked for conformance (`Candidate`)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.benchmarks.cases import Case, Inputs

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


def first_line(error: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


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
    """An attention function to measure.

    Attributes:
        name: library, or library:implementation.
        version: package and version; `LIBRARY` for ours.
        prepare: make it ready for a case, compiled where it is compiled.
    """

    name: str
    version: str
    prepare: Callable[[Case, Inputs], Program]


class Candidate(NamedTuple):
    """A function to check against the contract.

    Attributes:
        name: full name of the function.
        version: package and version; `LIBRARY` for ours.
        function: with the signature of `attention.attend`.
        supports: the capabilities of `attention.testing` that its documentation claims.
    """

    name: str
    version: str
    function: Callable[..., Any]
    supports: Collection[str]


class Call(NamedTuple):
    """A function of jax arrays that computes a case.

    Attributes:
        function: of query, key and value `[B, T, N, H]` and of `masks`; returns the output.
        masks: or segments. They are arguments, because the compiler could compute with constants
            before the clock starts.
    """

    function: Callable[..., Array]
    masks: tuple[np.ndarray, ...] = ()


def jax_contender(name: str, version: str, call: Callable[[Case], Call]) -> Contender:
    """Return a contender that is a function of jax arrays."""
    return Contender(name, version, lambda case, inputs: compiled(case, inputs, call(case)))


def flags_or_mask(
    attend: Callable[..., Array], flags: Mapping[str, Mapping[str, Any]]
) -> Callable[[Case], Call]:
    """Return calls of a function with the fastest documented arguments for each pattern.

    Args:
        attend: a function with the arguments of `attention.attend`, and with flags.
        flags: pattern → keyword arguments. Other patterns are a dense mask `[1, 1, T, S]`.
    """

    def call(case: Case) -> Call:
        options = flags.get(case.pattern, {})

        def function(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
            return attend(query, key, value, mask=mask, **options)

        is_dense = case.pattern != "full" and not options
        return Call(function, (case.allowed()[None, None],) if is_dense else ())

    return call


def compiled(case: Case, inputs: Inputs, call: Call) -> Program:
    """Compile a call, with its gradients if the case includes them."""

    def gradient(
        cotangent: Array, query: Array, key: Array, value: Array, *masks: Array
    ) -> tuple[Array, ...]:
        output, pull = jax.vjp(lambda *args: call.function(*args, *masks), query, key, value)
        # Without the output, the compiler would drop a part of the forward pass.
        return output, *pull(cotangent)

    def forward(*arguments: Array) -> tuple[Array]:
        return (call.function(*arguments),)

    *arguments, cotangent = (jnp.asarray(array, case.dtype) for array in inputs)
    arguments += [jnp.asarray(array) for array in call.masks]
    if case.gradient:
        arguments = [cotangent, *arguments]
    program = jax.jit(gradient if case.gradient else forward).lower(*arguments).compile()
    memory = program.memory_analysis()
    return Program(
        run=lambda: jax.block_until_ready(program(*arguments)),
        arrays=lambda results: tuple(np.asarray(array, np.float64) for array in results),
        scratch=None if memory is None else memory.temp_size_in_bytes,
    )
