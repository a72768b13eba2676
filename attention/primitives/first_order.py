"""Functions with a gradient of their own and no other derivatives, and the error for the others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax

Tree = Any


def first_order(
    name: str,
    function: Callable[[Tree, Tree], Tree],
    forward: Callable[[Tree, Tree], tuple[Tree, Tree]],
    backward: Callable[[Tree, Tree, Tree], Tree],
    inputs: Tree,
    constants: Tree,
) -> Tree:
    """Return `function(inputs, constants)`, with reverse-mode derivatives of first order.

    Args:
        name: of the implementation, for the error message.
        function: of (inputs, constants), to the outputs.
        forward: of (inputs, constants), to the outputs and residuals.
        backward: of (residuals, constants, cotangents of the outputs), to those of the inputs.
        inputs: floating-point arrays, which receive gradients.
        constants: arrays, which do not.
    """

    @jax.custom_vjp
    def call(inputs: Tree, constants: Tree) -> Tree:
        return function(inputs, constants)

    def call_forward(inputs: Tree, constants: Tree) -> tuple[Tree, Tree]:
        outputs, residuals = forward(_differentiate_once(name, inputs), constants)
        return outputs, (residuals, constants)

    def call_backward(saved: Tree, cotangents: Tree) -> tuple[Tree, None]:
        return backward(*saved, _differentiate_once(name, cotangents)), None

    call.defvjp(call_forward, call_backward)
    return call(inputs, constants)


def first_order_library(
    name: str, library: Callable[[Tree, Tree], Tree], inputs: Tree, constants: Tree
) -> Tree:
    """Return `library(inputs, constants)`, of which only the reverse mode of first order is used.

    Args:
        name: of the implementation, for the error message.
        library: of (inputs, constants), to the outputs; has a gradient of its own.
        inputs: floating-point arrays, which receive gradients.
        constants: arrays, which do not.
    """

    def forward(inputs: Tree, constants: Tree) -> tuple[Tree, Tree]:
        return jax.vjp(lambda inputs: library(inputs, constants), inputs)

    def backward(pullback: Tree, constants: Tree, cotangents: Tree) -> Tree:
        del constants
        return pullback(cotangents)[0]

    return first_order(name, library, forward, backward, inputs, constants)


def _differentiate_once(name: str, tree: Tree) -> Tree:
    """Return the tree; its derivatives raise, since the gradient already is one."""
    return _identity(name, tree)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _identity(name: str, tree: Tree) -> Tree:
    del name
    return tree


@_identity.defjvp
def _identity_jvp(name: str, primals: Tree, tangents: Tree) -> Tree:
    del primals, tangents
    raise NotImplementedError(_sentence(name))


@contextmanager
def forward_mode_refused(name: str) -> Iterator[None]:
    """Replace JAX's error about forward mode, which does not name the implementation.

    Under an outer `jax.jit` JAX raises its error after this function has returned.
    """
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise NotImplementedError(_sentence(name)) from error


def _sentence(name: str) -> str:
    return (
        f"implementation {name!r} has first-order reverse-mode derivatives only: use "
        "implementation='tiled' for forward mode and second derivatives"
    )
