"""Types of what is benchmarked (`Contender`) and checked for conformance (`Candidate`)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

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


@dataclass(frozen=True)
class Program:
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


@dataclass(frozen=True)
class Contender:
    """An attention function to measure.

    Attributes:
        name: library, or library:implementation.
        version: package and version; `LIBRARY` for ours.
        prepare: make it ready for a case, compiled where it is compiled.
    """

    name: str
    version: str
    prepare: Callable[[Case, Inputs], Program]


@dataclass(frozen=True)
class Candidate:
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
