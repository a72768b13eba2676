"""The position-wise feed-forward layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.context import DEFAULT_CONTEXT, Context
from attention.modules.linear import linear, named

Activation = Callable[[Array], Array]

ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    # The tanh form (Hendrycks and Gimpel 2016). Its derivative would read eight arrays of the
    # forward pass; recomputing them costs less.
    "gelu": jax.checkpoint(jax.nn.gelu),
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activation_of(given: str | Activation) -> Activation:
    """Return an activation by its name in `ACTIVATIONS`, or the function that was given.

    Raises:
        ValueError: an unknown name.
    """
    return named("activation", given, "ACTIVATIONS", ACTIVATIONS)


class FeedForward(nnx.Module):
    """Project each position to F, apply an activation, and project back to D.

    Vaswani et al. 2017, section 3.3; with `gated`, the activation of one projection is
    multiplied with another (Shazeer 2020: SwiGLU with "silu", GEGLU with "gelu").
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str | Activation = "relu",
        gated: bool = False,
        **options: Any,  # noqa: ANN401 - of several types
    ) -> None:
        """Make the two matrices, or three if gated.

        Args:
            width: D.
            hidden: F.
            activation: a function, or a name in `ACTIVATIONS`.
            gated: whether to multiply with a second projection to F.
            options: of `linear`: `use_bias`, `kernel_init`, `dtype`, `param_dtype` and `rngs`.

        Raises:
            ValueError: an unknown activation.
        """
        make = partial(linear, **options)
        activation_of(activation)  # raises for an unknown name
        self.activation = activation  # by name: most functions of jax cannot be copied or pickled
        self.up = make({"embed": width}, {"hidden": hidden})
        self.gate = make({"embed": width}, {"hidden": hidden}) if gated else None
        self.down = make({"hidden": hidden}, {"embed": width})

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Array:
        """Map `[..., D]` to `[..., D]`."""
        hidden, activation = self.up(inputs), activation_of(self.activation)
        hidden = activation(hidden) if self.gate is None else activation(self.gate(inputs)) * hidden
        return self.down(context.shard(hidden, "sequence", "hidden"))
