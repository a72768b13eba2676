"""The position-wise layer between two attentions."""

import jax
from flax import nnx
from jax import Array

from attention.modules.linear import Linear
from attention.primitives.choice import one_of

ACTIVATIONS = {
    "relu": jax.nn.relu,
    # Its derivative would read eight arrays of the forward pass: one, and some sums, cost less.
    "gelu": jax.checkpoint(jax.nn.gelu),
    "gated": jax.nn.silu,
}


class FeedForward(nnx.Module):
    """Widens each position to F, applies a nonlinearity, and narrows it again.

    "relu" is Vaswani et al. (2017), section 3.3; "gelu" Hendrycks and Gimpel (2016); "gated"
    multiplies a SiLU gate with a linear branch (SwiGLU, Shazeer 2020) and so has a third matrix.
    """

    def __init__(
        self, width: int, hidden: int, *, activation: str, use_bias: bool = True, rngs: nnx.Rngs
    ) -> None:
        """Makes the two or three matrices.

        Args:
            width: D.
            hidden: F.
            activation: "relu", "gelu" or "gated".
            use_bias: whether the linear layers add a bias.
            rngs: source of the initial parameters.

        Raises:
            ValueError: an unknown activation.
        """
        one_of("activation", activation, tuple(ACTIVATIONS))
        self.activation = activation
        self.widen = Linear(width, hidden, use_bias=use_bias, rngs=rngs)
        if activation == "gated":
            self.gate = Linear(width, hidden, use_bias=use_bias, rngs=rngs)
        self.narrow = Linear(hidden, width, use_bias=use_bias, rngs=rngs)

    def __call__(self, inputs: Array) -> Array:
        """Maps `[..., D]` to `[..., D]`."""
        nonlinearity = ACTIVATIONS[self.activation]
        if self.activation == "gated":
            return self.narrow(nonlinearity(self.gate(inputs)) * self.widen(inputs))
        return self.narrow(nonlinearity(self.widen(inputs)))
