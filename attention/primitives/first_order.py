"""Functions with first-order reverse mode only, and an error for derivatives of gradients."""

from collections.abc import Callable
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
    """Return `function(inputs, constants)`; only `inputs`, floats, get gradients, of first order.

    `forward` maps (inputs, constants) to the outputs and residuals, `backward` maps (residuals,
    constants, cotangents of the outputs) to those of the inputs; errors contain the `name`.
    """
    call = jax.custom_vjp(function)

    def call_forward(inputs: Tree, constants: Tree) -> tuple[Tree, Tree]:
        outputs, residuals = forward(_differentiate_once(name, inputs), constants)
        return outputs, (residuals, constants)

    def call_backward(saved: Tree, cotangents: Tree) -> tuple[Tree, None]:
        return backward(*saved, _differentiate_once(name, cotangents)), None

    call.defvjp(call_forward, call_backward)
    return call(inputs, constants)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiate_once(name: str, tree: Tree) -> Tree:
    """Return the tree; its derivatives raise, since the caller computes a gradient of it."""
    return tree


@_differentiate_once.defjvp
def _differentiate_once_jvp(name: str, primals: Tree, tangents: Tree) -> Tree:
    raise NotImplementedError(
        f"implementation {name!r} has first-order reverse-mode derivatives only: use "
        "implementation='tiled' of attend for second derivatives"
    )
