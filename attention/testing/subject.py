"""The function under test: what it claims, and how it is called with few compilations."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.checks import names
from attention.primitives.choice import one_of
from attention.testing.capabilities import CAPABILITIES
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE

Arrays = tuple[np.ndarray, ...]
Tree = chex.ArrayTree  # an output, or a pair of it and a dict of what was asked for


class Subject:
    """A function `(query, key, value, **arguments)` with what it claims to support."""

    def __init__(
        self,
        function: Callable[..., Any],
        supports: Collection[str],
        dtype: str = "float32",
        head_width: int | None = None,
    ) -> None:
        """Compiles nothing yet.

        Raises:
            ValueError: an unknown capability or dtype.
        """
        names("supports", supports, tuple(CAPABILITIES))
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
        """Whether it claims all of these."""
        return self.supports.issuperset(names)

    def fit(self, case: Case) -> Case:
        """The case, without what the function does not claim."""
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
        """Whether the function claims a case as it is."""
        return case.N % case.K == 0 and self.fit(case) == case

    def __call__(self, inputs: Arrays, dtype: str, **arguments: object) -> Tree:
        """What the function returns, in NumPy arrays of float64.

        Args:
            inputs: query, key and value.
            dtype: in which it gets them.
            arguments: those of `attention.attend`; the mask may be a NumPy array.
        """
        return _wide(self._forward(self.given(inputs, dtype), **self._ready(arguments)))

    def pullback(
        self,
        inputs: Arrays,
        dtype: str,
        cotangents: Tree,
        **arguments: object,
    ) -> Arrays:
        """Gradients of query, key and value for cotangents like the output."""
        cotangents = self.given(cotangents, dtype)
        return _wide(
            self._pullback(self.given(inputs, dtype), cotangents, **self._ready(arguments))
        )

    def pushforward(
        self, inputs: Arrays, dtype: str, tangents: Arrays, **arguments: object
    ) -> Tree:
        """The derivative of the output along tangents like the inputs."""
        given = self.given(inputs, dtype), self.given(tangents, dtype)
        return _wide(self._pushforward(*given, **self._ready(arguments)))

    def push_pullback(
        self,
        inputs: Arrays,
        dtype: str,
        cotangents: Tree,
        tangents: Arrays,
        **arguments: object,
    ) -> Arrays:
        """The derivative of the gradients along tangents: forward over reverse mode."""
        given = (self.given(each, dtype) for each in (inputs, cotangents, tangents))
        return _wide(self._second(*given, **self._ready(arguments)))

    def given(self, arrays: Tree, dtype: str) -> Tree:
        """Arrays as the function gets them."""
        numpy = not self.can("jit")
        return jax.tree.map(
            lambda array: (
                np.asarray(array, jnp.dtype(dtype)) if numpy else jnp.asarray(array, dtype)
            ),
            arrays,
        )

    def _ready(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if isinstance(arguments.get("mask"), np.ndarray) and self.can("jit"):
            arguments = arguments | {"mask": jnp.asarray(arguments["mask"])}
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
