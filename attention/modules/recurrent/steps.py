"""One step of a decoder: what it looks at, when, and what it makes of it."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax import Array

from attention.modules.linear import Linear
from attention.modules.recurrent.cells import CELLS, Carry
from attention.modules.recurrent.config import RecurrentConfig

Look = Callable[[Array], Array]  # state [..., F] -> context [..., C]


class LookThenStep(nnx.Module):
    """The state before the step looks, and the context goes into the cell.

    Bahdanau et al. 2015, section 3.1, with a linear readout of state, context and embedding in
    place of their maxout; with a fixed context the decoder of Cho et al. 2014.
    """

    def __init__(self, config: RecurrentConfig, context_width: int, *, rngs: nnx.Rngs) -> None:
        """Makes the cell."""
        read = config.embedding_width + context_width
        self.cell = CELLS[config.cell].build(read, config.hidden, rngs=rngs)
        self.kind = config.cell
        self.fed_width = 0
        self.features_width = config.hidden + read

    def __call__(
        self, carry: Carry, fed: Array, inputs: Array, look: Look
    ) -> tuple[Carry, Array, Array]:
        """Reads one token.

        Args:
            carry: of the cell.
            fed: `[..., fed_width]`, what the step before hands on.
            inputs: `[..., D]`, the token.
            look: from a state to a context.

        Returns:
            The new carry, what is handed on, and the features `[..., features_width]`.
        """
        context = look(CELLS[self.kind].output(carry))
        read = jnp.concatenate([inputs, context], axis=-1)
        carry, output = self.cell(carry, read)
        return carry, fed, jnp.concatenate([output, read], axis=-1)


class StepThenLook(nnx.Module):
    """The state after the step looks; what comes of it is said, and fed to the next step.

    Luong et al. 2015, equation 5 and section 3.3 ("input feeding").
    """

    def __init__(self, config: RecurrentConfig, context_width: int, *, rngs: nnx.Rngs) -> None:
        """Makes the cell, and the layer that joins state and context."""
        self.fed_width = self.features_width = config.hidden
        read = config.embedding_width + self.fed_width
        self.cell = CELLS[config.cell].build(read, config.hidden, rngs=rngs)
        self.join = Linear(context_width + config.hidden, config.hidden, use_bias=False, rngs=rngs)

    def __call__(
        self, carry: Carry, fed: Array, inputs: Array, look: Look
    ) -> tuple[Carry, Array, Array]:
        """As `LookThenStep`; the features are handed on."""
        carry, output = self.cell(carry, jnp.concatenate([inputs, fed], axis=-1))
        features = jnp.tanh(self.join(jnp.concatenate([look(output), output], axis=-1)))
        return carry, features, features


STEPS = {"additive": LookThenStep, "multiplicative": StepThenLook, "none": LookThenStep}
