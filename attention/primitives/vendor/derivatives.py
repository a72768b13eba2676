"""All derivatives for a function of another library that has its gradient alone.

Gradients are those of the library. What else can be asked for, forward mode and whatever
differentiates a gradient once more, are those of the tiled implementation.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
from jax import Array

from attention.primitives.kernels.linear import linear_call
from attention.primitives.request import Request
from attention.primitives.tiled.attention import attend_in_tiles

Inputs = tuple[Array, Array, Array]  # query, key and value
Library = Callable[[Request], Array]
Pullback = Callable[[Array], tuple[Inputs]]


def with_all_derivatives(library: Library, request: Request) -> Array:
    """The output of a library, which can be differentiated by query, key and value.

    Args:
        library: hashable; returns `[..., T, N, Hv]`, and has reverse mode.
        request: whose query, key and value alone have a derivative.
    """
    inputs = request.query, request.key, request.value
    return _attention(library, inputs, jax.lax.stop_gradient(request))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attention(library: Library, inputs: Inputs, request: Request) -> Array:
    return library(_with(inputs, request))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _same_attention(library: Library, inputs: Inputs, request: Request, output: Array) -> Array:
    """The output that is there already, with the derivative of `_attention`."""
    del library, inputs, request
    return output


@jax.custom_jvp
def _gradients(inputs: Inputs, request: Request, pullback: Pullback, cotangent: Array) -> Inputs:
    """What the library sends back."""
    del inputs, request
    return pullback(cotangent)[0]


def _with(inputs: Inputs, request: Request) -> Request:
    query, key, value = inputs
    return replace(request, query=query, key=key, value=value)


def _in_tiles(request: Request, inputs: Inputs) -> Array:
    return attend_in_tiles(_with(inputs, request))["output"]


@_attention.defjvp
def _move_attention(
    library: Library, primals: tuple[Inputs, Request], tangents: tuple[Inputs, Request]
) -> tuple[Array, Array]:
    inputs, request = primals
    # The residuals of the library have no derivative of their own: `_gradients` has it.
    held = jax.lax.stop_gradient(inputs)
    output, pullback = jax.vjp(lambda inputs: library(_with(inputs, request)), held)
    output = _same_attention(library, inputs, request, output)

    def function(known: tuple[Inputs, Request, Pullback], moving: Inputs) -> Array:
        inputs, request, _ = known
        return jax.jvp(partial(_in_tiles, request), (inputs,), (moving,))[1]

    def transposed(known: tuple[Inputs, Request, Pullback], cotangent: Array) -> Inputs:
        return _gradients(*known, cotangent)

    known = inputs, request, pullback
    return output, linear_call(function, transposed, known, tangents[0], like=output)


@_same_attention.defjvp
def _move_same_attention(
    library: Library,
    primals: tuple[Inputs, Request, Array],
    tangents: tuple[Inputs, Request, Array],
) -> tuple[Array, Array]:
    inputs, request, output = primals

    def attention(inputs: Inputs) -> Array:
        return _attention(library, inputs, request)

    moved = jax.jvp(attention, (inputs,), (tangents[0],))[1]
    return _same_attention(library, inputs, request, output), moved


@_gradients.defjvp
def _move_gradients(
    primals: tuple[Inputs, Request, Pullback, Array],
    tangents: tuple[Inputs, Request, Pullback, Array],
) -> tuple[Inputs, Inputs]:
    inputs, request, _, cotangent = primals

    def in_tiles(inputs: Inputs, cotangent: Array) -> Inputs:
        return jax.vjp(partial(_in_tiles, request), inputs)[1](cotangent)[0]

    moved = jax.jvp(in_tiles, (inputs, cotangent), (tangents[0], tangents[3]))[1]
    return _gradients(*primals), moved
