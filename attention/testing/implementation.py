"""The function under test with its capabilities, and the cases that it is called with."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention.testing.reference import TOLERANCE, Arrays, Results

# What a function may claim; rows that need other capabilities are not checked.
CAPABILITIES = {
    "jit": "can be traced by jax.jit; without it, it is called with NumPy arrays",
    "vmap": "can be transformed by jax.vmap",
    "gradients": "reverse-mode derivatives",
    "jvp": "forward-mode derivatives",
    "second_derivatives": "forward over reverse mode",
    "mask": "mask= a bool array [..., 1, T, S], True = may attend",
    "predicates": "mask= a mask of attention.masks, and positions= a pair of integer arrays",
    "scores": "score= a tuple of attention.scores",
    "closures": "masks and scores made by from_function that close over traced arrays",
    "scale": "scale= a number",
    "cross": "different numbers of queries and keys",
    "grouped": "fewer key/value heads than query heads",
    "value_width": "values of another width than keys",
    "leading_axes": "no batch axis, or several batch axes",
    "weights": 'returning=("weights",), [..., N, T, S]',
    "logsumexp": 'returning=("logsumexp",), [..., N, T]',
    "dropout": "dropout= an attention.Dropout",
    "dropout_by_position": "drops the same pairs as attention.attend, for all sizes and positions",
    "sharding": "keeps shardings of batch and heads under jax.jit, without communication",
    "bfloat16": "inputs in bfloat16",
    "float16": "inputs in float16",
    "float64": "inputs in float64, where jax has it enabled",
}
EVERYTHING = frozenset(CAPABILITIES)
# The capabilities that arguments need.
ARGUMENTS = {"scale": "scale", "score": "scores", "positions": "predicates", "dropout": "dropout"}

AXES = ("B", "T", "S", "N", "K", "H", "Hv")
# Axes to shrink together, for functions that require equal sizes, and axes to shrink alone.
SHRINK = (("T", "S"), ("N", "K"), ("H", "Hv"), ("B",), ("T",), ("S",), ("N",), ("H",), ("Hv",))


@dataclass(frozen=True)
class Case:
    """The axis sizes of one example, its dtype, and the seed of all its random numbers."""

    B: int
    T: int
    S: int
    N: int
    K: int
    H: int
    Hv: int
    dtype: str = "float32"
    seed: int = 0

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={getattr(self, axis)}" for axis in AXES)
        return f"{sizes} {self.dtype} seed={self.seed}"

    @property
    def tolerance(self) -> float:
        """Return the largest allowed error of results of order one."""
        return TOLERANCE[self.dtype]

    def random(self, stream: int) -> np.random.Generator:
        """Return a random generator of this case; each stream gives different numbers."""
        return np.random.default_rng((self.seed, stream))

    def normal(self, stream: int, *shape: int) -> np.ndarray:
        """Return standard normal numbers in float64 that are exact in the dtype of the case."""
        numbers = self.random(stream).standard_normal(shape)
        return numbers.astype(jnp.dtype(self.dtype)).astype(np.float64)

    def query_key_value(self, stream: int = 0) -> Arrays:
        """Return query, key and value; or tangents of them, from another stream."""
        return (
            self.normal(stream, self.B, self.T, self.N, self.H),
            self.normal(stream + 1, self.B, self.S, self.K, self.H),
            self.normal(stream + 2, self.B, self.S, self.K, self.Hv),
        )

    def cotangents(self, *names: str) -> Results:
        """Return random cotangents of "output" and of the names, which may be "logsumexp"."""
        shapes = {
            "output": (self.B, self.T, self.N, self.Hv),
            "logsumexp": (self.B, self.N, self.T),
        }
        return {name: self.normal(10, *shapes[name]) for name in ("output", *names)}

    def mask(self) -> np.ndarray:
        """Return a random mask, bool `[B, T, S]`; every query may attend to at least one key."""
        random = self.random(3)
        mask = random.random((self.B, self.T, self.S)) < 0.6
        some = random.integers(self.S, size=(self.B, self.T, 1))
        return mask | (np.arange(self.S) == some)

    def smaller(self) -> Iterator["Case"]:
        """Yield cases with smaller axes, the smallest first."""
        ones = replace(self, **dict.fromkeys(AXES, 1))
        cases = [ones, replace(ones, T=min(self.T, 2), S=min(self.S, 2))]
        for axes in SHRINK:
            size = max(getattr(self, axis) for axis in axes)
            for fewer in sorted({1, 2, size // 2, size - 1} & set(range(1, size))):
                fewest = {axis: min(fewer, getattr(self, axis)) for axis in axes}
                cases.append(replace(self, **fewest))
        yield from (case for case in cases if case != self and case.N % case.K == 0)


class SkippedError(Exception):
    """A row or a capability that is needed has failed."""


@dataclass
class Implementation:
    """A function `(query, key, value, **arguments)` and the capabilities that it claims.

    Attributes:
        function: the function under test.
        supports: names of `CAPABILITIES`.
        dtype: of the cases that are not about a dtype.
        head_width: the only head width of all cases, or None.
        failed: names of rows that failed, and of capabilities that later rows do without.
    """

    function: Callable[..., Any]
    supports: Collection[str]
    dtype: str = "float32"
    head_width: int | None = None
    failed: set[str] = field(default_factory=set)

    def can(self, name: str) -> bool:
        """Return whether the function claims a capability that has not failed."""
        return name in self.supports and name not in self.failed

    def require(self, *names: str) -> None:
        """Check that capabilities are claimed, and that no row or capability of `names` failed.

        Raises:
            NotImplementedError: a capability is not claimed.
            SkippedError: a row or capability failed.
        """
        for name in names:
            if name in CAPABILITIES and name not in self.supports:
                raise NotImplementedError(f"without {name}")
            if name in self.failed:
                raise SkippedError(f"{name!r} failed")

    def fit(self, case: Case) -> Case:
        """Return the case, restricted to the capabilities of the function."""
        if not self.can("cross"):
            case = replace(case, S=case.T)
        if not self.can("grouped"):
            case = replace(case, K=case.N)
        if self.head_width is not None:
            wider = self.head_width if case.Hv != case.H else 0
            case = replace(case, H=self.head_width, Hv=self.head_width + wider)
        if not self.can("value_width"):
            case = replace(case, Hv=case.H)
        return replace(case, dtype=self.dtype) if case.dtype == "float32" else case

    @cached_property
    def program(self) -> Callable[..., dict[str, Array]]:
        """`differentiate` for this function; compiled if jit is supported."""
        program = partial(differentiate, self.function)
        jitted = jax.jit(program, static_argnames=("scale", "returning"))
        return jitted if self.can("jit") else program

    def results(
        self,
        inputs: Arrays,
        dtype: str,
        cotangents: Results | None = None,
        tangents: Arrays | None = None,
        **arguments: Any,  # noqa: ANN401 - those of attend
    ) -> Results:
        """Return what `differentiate` returns, in float64 NumPy; require what the call needs."""
        needs = [capability for name, capability in ARGUMENTS.items() if name in arguments]
        if isinstance(mask := arguments.get("mask"), np.ndarray):
            needs.append("mask")
            arguments["mask"] = mask[..., None, :, :]  # the same for all heads
        elif mask is not None:
            needs.append("predicates")
        if cotangents is not None:
            needs.append("gradients")
        if tangents is not None:
            needs.append("jvp" if cotangents is None else "second_derivatives")
        if dtype not in (self.dtype, "float32"):
            needs.append(dtype)
        self.require(*needs, *arguments.get("returning", ()), "values")
        arrays = convert((inputs, cotangents, tangents), dtype)
        with jax.enable_x64(jax.config.jax_enable_x64 or dtype == "float64"):
            results = self.program(*arrays, **arguments)
        return {name: np.asarray(array).astype(np.float64) for name, array in results.items()}


def convert(arrays: Any, dtype: str) -> Any:  # noqa: ANN401 - a pytree of arrays
    """Convert arrays to the dtype in NumPy: jax would compile a program for each shape."""
    return jax.tree.map(lambda array: np.asarray(array, jnp.dtype(dtype)), arrays)


def differentiate(
    function: Callable[..., Any],
    inputs: tuple[Array, ...],
    cotangents: dict[str, Array] | None = None,
    tangents: tuple[Array, ...] | None = None,
    **arguments: object,
) -> dict[str, Array]:
    """Return "output" and what `returning` names; with cotangents, the gradients of the inputs.

    With tangents of the inputs: the derivatives of all these along the tangents.
    """

    def forward(*inputs: Array) -> dict[str, Array]:
        found = function(*inputs, **arguments)
        output, extras = found if "returning" in arguments else (found, {})
        return {"output": output, **extras}

    def results(*inputs: Array) -> dict[str, Array]:
        if cotangents is None:
            return forward(*inputs)
        found, pullback = jax.vjp(forward, *inputs)
        gradients = pullback({name: cotangents[name].astype(found[name].dtype) for name in found})
        names = "query", "key", "value", "slopes"
        return found | {f"gradient of {name}": x for name, x in zip(names, gradients, strict=False)}

    return results(*inputs) if tangents is None else jax.jvp(results, inputs, tangents)[1]
