"""One step of a recurrent decoder: when it attends, and what it does with the context.

A decoder can use any class with the interface of `BahdanauStep`.
"""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.linear import linear
from attention.modules.recurrent.encoder import cell_output, named_cell

Cell = Callable[..., nnx.RNNCellBase]
Attend = Callable[[Array], Array]  # state [..., F] -> context [..., C]
Carry = TypeVar("Carry")


class BahdanauStep(nnx.Module):
    """Attention from the state before the step; the cell reads the context.

    Bahdanau et al. 2015, section 3.1, with the concatenation of state, embedding and context as
    features in place of their maxout layer; with a fixed context the decoder of Cho et al. 2014.

    Attributes:
        input_feed_width: of the array that one step passes to the next beside the carry.
        features_width: of the features.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        context_width: int,
        *,
        cell: Cell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the cell.

        Args:
            width: D, of the inputs.
            hidden: F, of the state.
            context_width: C, of the contexts.
            cell: class of the cell, as in `CELLS`.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.cell = named_cell(cell, width + context_width, hidden, rngs=rngs, **dtypes)
        self.input_feed_width, self.features_width = 0, hidden + width + context_width

    def __call__(
        self, carry: Carry, input_feed: Array, inputs: Array, attend: Attend
    ) -> tuple[Carry, Array, Array]:
        """Read one token.

        Args:
            carry: of the cell.
            input_feed: `[..., input_feed_width]`, from the step before.
            inputs: `[..., D]`, the token.
            attend: function from a state to its context.

        Returns:
            New carry, new input feed, features `[..., features_width]`.
        """
        cell_inputs = jnp.concatenate([inputs, attend(cell_output(carry))], axis=-1)
        carry, output = self.cell(carry, cell_inputs)
        return carry, input_feed, jnp.concatenate([output, cell_inputs], axis=-1)


class LuongStep(nnx.Module):
    """Attention from the state after the step; the features are fed to the next step.

    Luong et al. 2015, equation 5 and section 3.3 ("input feeding").
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        context_width: int,
        *,
        cell: Cell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the cell, and the layer that joins state and context; see `BahdanauStep`."""
        self.cell = named_cell(cell, width + hidden, hidden, rngs=rngs, **dtypes)
        self.join = linear(
            {"embed": context_width + hidden},
            {"hidden": hidden},
            use_bias=False,
            rngs=rngs,
            **dtypes,
        )
        self.input_feed_width = self.features_width = hidden

    def __call__(
        self, carry: Carry, input_feed: Array, inputs: Array, attend: Attend
    ) -> tuple[Carry, Array, Array]:
        """Read one token, as `BahdanauStep`; the new input feed equals the features."""
        carry, output = self.cell(carry, jnp.concatenate([inputs, input_feed], axis=-1))
        features = jnp.tanh(self.join(jnp.concatenate([attend(output), output], axis=-1)))
        return carry, features, features
