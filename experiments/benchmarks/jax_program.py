"""Contenders that are functions of jax arrays, compiled before they are timed."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.benchmarks.cases import Case, Inputs
from experiments.benchmarks.contender import Contender, Program


class Call(NamedTuple):
    """A function that computes a case.

    Attributes:
        function: of query, key and value `[B, T, N, H]` and of `given`; returns the output.
        given: masks or segments. They are arguments, because the compiler could compute with
            constants before the clock starts.
    """

    function: Callable[..., Array]
    given: tuple[np.ndarray, ...] = ()


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

        dense = case.pattern != "full" and not options
        return Call(function, (case.allowed()[None, None],) if dense else ())

    return call


def compiled(case: Case, inputs: Inputs, call: Call) -> Program:
    """Compile a call, with its gradients if the case includes them."""

    def gradient(
        cotangent: Array, query: Array, key: Array, value: Array, *given: Array
    ) -> tuple[Array, ...]:
        output, pull = jax.vjp(lambda *args: call.function(*args, *given), query, key, value)
        # Without the output, the compiler would drop a part of the forward pass.
        return output, *pull(cotangent)

    def forward(*arguments: Array) -> tuple[Array]:
        return (call.function(*arguments),)

    *arguments, cotangent = (jnp.asarray(array, case.dtype) for array in inputs)
    arguments += [jnp.asarray(array) for array in call.given]
    if case.gradient:
        arguments = [cotangent, *arguments]
    program = jax.jit(gradient if case.gradient else forward).lower(*arguments).compile()
    memory = program.memory_analysis()
    return Program(
        run=lambda: jax.block_until_ready(program(*arguments)),
        arrays=lambda found: tuple(np.asarray(array, np.float64) for array in found),
        scratch=None if memory is None else memory.temp_size_in_bytes,
    )
