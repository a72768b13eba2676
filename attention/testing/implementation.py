"""The function under test: its capabilities, and calls of it with few compilations."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.arguments import check_names
from attention.primitives.choice import one_of
from attention.testing.capabilities import CAPABILITIES
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE

Arrays = tuple[np.ndarray, ...]
Tree = chex.ArrayTree  # an output, or a pair of an output and a dict


class Implementation:
    """A function `(query, key, value, **arguments)` and the capabilities that it claims."""

    def __init__(
        self,
        function: Callable[..., Any],
        supports: Collection[str],
        dtype: str = "float32",
        head_width: int | None = None,
    ) -> None:
        """Check the names; compile nothing.

        Raises:
            ValueError: an unknown capability or dtype.
        """
        check_names("supports", supports, tuple(CAPABILITIES))
        one_of("dtype", dtype, tuple(TOLERANCE))
        self.function = function
        self.supports = frozenset(supports)
        self.dtype = dtype
        self.head_width = head_width
        self._forward = self._compiled(self._run)
        self._pullback = self._compiled(self._pull)
        self._pushforward = self._compiled(self._push)
        self._second = self._compiled(self._push_pullback)

    def can(self, *names: str) -> bool:
        """Return whether the function claims all of these capabilities."""
        return self.supports.issuperset(names)

    def mask_of(self, case: Case) -> dict[str, np.ndarray]:
        """Return the mask of a case as an argument, if the function supports masks."""
        return {"mask": case.mask()} if self.can("mask") else {}

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

    def fits(self, case: Case) -> bool:
        """Return whether the function claims to support the case unchanged."""
        return case.N % case.K == 0 and self.fit(case) == case

    def __call__(self, inputs: Arrays, dtype: str, **arguments: object) -> Tree:
        """Return the results of the function as NumPy arrays of float64.

        Args:
            inputs: query, key and value.
            dtype: of the inputs of the function.
            arguments: those of `attention.attend`; the mask may be a NumPy array.
        """
        return _wide(self._forward(self.convert(inputs, dtype), **self._ready(arguments)))

    def pullback(
        self,
        inputs: Arrays,
        dtype: str,
        cotangents: Tree,
        **arguments: object,
    ) -> Arrays:
        """Return gradients of query, key and value for cotangents of the output."""
        cotangents = self.convert(cotangents, dtype)
        return _wide(
            self._pullback(self.convert(inputs, dtype), cotangents, **self._ready(arguments))
        )

    def pushforward(
        self, inputs: Arrays, dtype: str, tangents: Arrays, **arguments: object
    ) -> Tree:
        """Return the derivative of the output along tangents of the inputs."""
        given = self.convert(inputs, dtype), self.convert(tangents, dtype)
        return _wide(self._pushforward(*given, **self._ready(arguments)))

    def push_pullback(
        self,
        inputs: Arrays,
        dtype: str,
        cotangents: Tree,
        tangents: Arrays,
        **arguments: object,
    ) -> Arrays:
        """Return the derivative of the gradients along tangents: forward over reverse mode."""
        given = (self.convert(each, dtype) for each in (inputs, cotangents, tangents))
        return _wide(self._second(*given, **self._ready(arguments)))

    def convert(self, arrays: Tree, dtype: str) -> Tree:
        """Convert arrays to the dtype, and to jax arrays if the function supports jit.

        NumPy converts them: jax would compile a program for each shape.
        """
        arrays = jax.tree.map(lambda array: np.asarray(array, jnp.dtype(dtype)), arrays)
        return jax.device_put(arrays) if self.can("jit") else arrays

    def _ready(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if isinstance(arguments.get("mask"), np.ndarray) and self.can("jit"):
            arguments = arguments | {"mask": jax.device_put(arguments["mask"])}
        return arguments

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.can("jit"):
            return function
        return jax.jit(function, static_argnames=("scale", "returning"))

    def _run(self, inputs: Tree, **arguments: object) -> Tree:
        return self.function(*inputs, **arguments)

    def _pull(self, inputs: Tree, cotangents: Tree, **arguments: object) -> Tree:
        output, pullback = jax.vjp(lambda *inputs: self.function(*inputs, **arguments), *inputs)
        return pullback(
            jax.tree.map(lambda like, given: given.astype(like.dtype), output, cotangents)
        )

    def _push(self, inputs: Tree, tangents: Tree, **arguments: object) -> Tree:
        return jax.jvp(lambda *inputs: self.function(*inputs, **arguments), inputs, tangents)[1]

    def _push_pullback(
        self,
        inputs: Tree,
        cotangents: Tree,
        tangents: Tree,
        **arguments: object,
    ) -> Tree:
        def gradients(*inputs: Tree) -> Tree:
            return self._pull(inputs, cotangents, **arguments)

        return jax.jvp(gradients, inputs, tangents)[1]


def _wide(tree: Tree) -> Tree:
    return jax.tree.map(lambda array: np.asarray(array).astype(np.float64), tree)
