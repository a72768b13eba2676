"""Functions of jax as programs: compiled before the clock starts, with the memory they need."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.benchmarks.cases import Case, Inputs
from experiments.benchmarks.contender import Contender, Program


class Call(NamedTuple):
    """How a library is asked for a case.

    Attributes:
        function: of query, key and value `[B, T, N, H]` and what is given; returns the output.
        given: masks or segments, arguments like the others: as constants the compiler could
            compute with them before the clock starts.
    """

    function: Callable[..., Array]
    given: tuple[np.ndarray, ...] = ()


def jax_contender(name: str, version: str, call: Callable[[Case], Call]) -> Contender:
    """A contender that is a function of jax arrays."""
    return Contender(name, version, lambda case, inputs: compiled(case, inputs, call(case)))


def compiled(case: Case, inputs: Inputs, call: Call) -> Program:
    """Compiles a call, with its gradients if the case wants them."""

    def gradient(
        cotangent: Array, query: Array, key: Array, value: Array, *given: Array
    ) -> tuple[Array, ...]:
        output, pull = jax.vjp(lambda *args: call.function(*args, *given), query, key, value)
        return output, *pull(cotangent)  # with the output, or half of the forward pass is dropped

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
