"""What is measured: a function of others or of ours, made ready for one case."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.benchmarks.cases import Case, Inputs


class RefusalError(Exception):
    """Why a contender cannot compute a case, in half a sentence."""


@dataclass(frozen=True)
class Program:
    """A contender that has its inputs and needs only to be started.

    Attributes:
        run: computes output, or output and gradients, and returns when they are there.
        arrays: what `run` returned, as arrays `[B, T, N, H]`: the output, and then the gradients of
            query, key and value.
        scratch: bytes that it needs beside inputs and outputs; None where nobody can say.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], tuple[np.ndarray, ...]]
    scratch: int | None = None


@dataclass(frozen=True)
class Contender:
    """An attention function.

    Attributes:
        name: library, or library:implementation.
        version: the package that it comes from, and its version.
        prepare: makes it ready for a case, compiled where it is compiled.
    """

    name: str
    version: str
    prepare: Callable[[Case, Inputs], Program]
