"""The kernels as one function with derivatives of every kind and order.

Gradients come from the backward kernels. What else can be asked for no kernel computes: forward
mode, and whatever differentiates a gradient once more, are those of the tiled implementation.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array

from attention.primitives.kernels.backward import backward
from attention.primitives.kernels.forward import forward
from attention.primitives.kernels.layout import Fixed, Learned, joined
from attention.primitives.kernels.linear import linear_call
from attention.primitives.kernels.sizes import KernelSizes
from attention.primitives.tiled.attention import attend_in_tiles

Found = tuple[Array, Array]  # output and logsumexp


@dataclass(frozen=True)
class Settings:
    """How to compute.

    Attributes:
        sizes: of the tiles.
        interpret: whether kernels run as ordinary JAX, on any platform.
        counted: as in `Request`.
    """

    sizes: KernelSizes
    interpret: bool
    counted: bool


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def attention(settings: Settings, learned: Learned, fixed: Fixed) -> Found:
    """Output `[..., T, N, Hv]` and logsumexp `[..., N, T]`."""
    return forward(learned, fixed, settings.sizes.forward, settings.interpret)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def gradients(
    settings: Settings, learned: Learned, fixed: Fixed, found: Found, cotangents: Found
) -> Learned:
    """Cotangents of what is learned, given those of `attention`, which returned `found`."""
    size, interpret = settings.sizes.backward, settings.interpret
    return backward(learned, fixed, found, cotangents, size, interpret)


def _in_tiles(settings: Settings, fixed: Fixed, learned: Learned) -> Found:
    found = attend_in_tiles(joined(learned, fixed, settings.counted))
    return found["output"], found["logsumexp"]


@attention.defjvp
def _move_attention(
    settings: Settings, primals: tuple[Learned, Fixed], tangents: tuple[Learned, Any]
) -> tuple[Found, Found]:
    learned, fixed = primals
    found = attention(settings, learned, fixed)

    def function(known: tuple[Learned, Fixed, Found], moving: Learned) -> Found:
        learned, fixed, _ = known
        return jax.jvp(partial(_in_tiles, settings, fixed), (learned,), (moving,))[1]

    def transposed(known: tuple[Learned, Fixed, Found], cotangents: Found) -> Learned:
        return gradients(settings, *known, cotangents)

    known = learned, fixed, found
    return found, linear_call(function, transposed, known, tangents[0], like=found)


@gradients.defjvp
def _move_gradients(
    settings: Settings,
    primals: tuple[Learned, Fixed, Found, Found],
    tangents: tuple[Learned, Any, Found, Found],
) -> tuple[Learned, Learned]:
    learned, fixed, _, cotangents = primals

    # A function of what is learned and of cotangents: what `attention` found follows from these.
    def in_tiles(learned: Learned, cotangents: Found) -> Learned:
        return jax.vjp(partial(_in_tiles, settings, fixed), learned)[1](cotangents)[0]

    moved = jax.jvp(in_tiles, (learned, cotangents), (tangents[0], tangents[3]))[1]
    return gradients(settings, *primals), moved
