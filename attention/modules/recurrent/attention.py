"""Attention from one decoder state over an encoder output.

A decoder can use any class with the interface of `AdditiveAttention`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.linear import linear
from attention.primitives.additive import additive_attention
from attention.primitives.attend import attend

Result = Array | tuple[Array, dict[str, Array]]


class AdditiveAttention(nnx.Module):
    """Scores vᵀ tanh(W s + U h) (Bahdanau et al. 2015, appendix A.1.2).

    Attributes:
        context_width: C, of the contexts.
    """

    def __init__(
        self, hidden: int, encoder_width: int, *, rngs: nnx.Rngs, **dtypes: DTypeLike | None
    ) -> None:
        """Make W, U and v.

        Args:
            hidden: F, of the decoder state.
            encoder_width: E, of the encoder output.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        units = {"hidden": hidden}
        self.query = linear({"embed": hidden}, units, use_bias=False, rngs=rngs, **dtypes)
        self.key = linear({"embed": encoder_width}, units, rngs=rngs, **dtypes)
        initial = jax.nn.initializers.normal(hidden**-0.5)
        vector = initial(rngs.params(), (1, hidden), dtypes.get("param_dtype", jnp.float32))
        self.vector = nnx.Param(vector, axes=("heads", "hidden"))
        self.context_width = encoder_width

    def precompute(self, encoder_output: Array, summary: Array) -> tuple[Array, Array]:
        """Return arrays that are the same in every step: keys `[..., S, F]` and values.

        Args:
            encoder_output: `[..., S, E]`.
            summary: `[..., F]`, of the source.
        """
        del summary
        return self.key(encoder_output), encoder_output

    def __call__(self, state: Array, precomputed: tuple[Array, Array], **options: object) -> Result:
        """Compute the context `[..., T, N, C]` of a state, with T = N = 1.

        Args:
            state: `[..., F]`.
            precomputed: result of `precompute`.
            options: mask, positions and returning, as in `attention.attend`.

        Returns:
            As `attention.attend`.
        """
        query, key, value = _with_head(self.query(state), *precomputed)
        return additive_attention(query, key, value, self.vector[...], **options)


class MultiplicativeAttention(nnx.Module):
    """Scores sᵀ W h (Luong et al. 2015, equation 8, "general")."""

    def __init__(
        self, hidden: int, encoder_width: int, *, rngs: nnx.Rngs, **dtypes: DTypeLike | None
    ) -> None:
        """Make W; see `AdditiveAttention`."""
        self.query = linear(
            {"embed": hidden}, {"hidden": encoder_width}, use_bias=False, rngs=rngs, **dtypes
        )
        self.context_width = encoder_width

    def precompute(self, encoder_output: Array, summary: Array) -> Array:
        """Return the encoder output, which is both keys and values."""
        del summary
        return encoder_output

    def __call__(self, state: Array, precomputed: Array, **options: object) -> Result:
        """Compute the context of a state; see `AdditiveAttention`."""
        query, key, value = _with_head(self.query(state), precomputed, precomputed)
        return attend(query, key, value, scale=1.0, **options)


class NoAttention(nnx.Module):
    """The context of every state is the summary of the source (Cho et al. 2014)."""

    def __init__(
        self, hidden: int, encoder_width: int, *, rngs: nnx.Rngs, **dtypes: DTypeLike | None
    ) -> None:
        """Make no parameters; see `AdditiveAttention`."""
        del encoder_width, rngs, dtypes
        self.context_width = hidden

    def precompute(self, encoder_output: Array, summary: Array) -> Array:
        """Return the summary."""
        del encoder_output
        return summary

    def __call__(self, state: Array, precomputed: Array, **options: object) -> Result:
        """Return the summary, which depends neither on the state nor on the mask.

        Raises:
            ValueError: `returning` is not empty.
        """
        if options.get("returning"):
            names = ", ".join(options["returning"])
            raise ValueError(f"a decoder without attention cannot return {names}")
        return precomputed[..., None, None, :].astype(state.dtype)


def _with_head(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Add axes T = 1 of the query and N = K = 1 of all."""
    return query[..., None, None, :], key[..., None, :], value[..., None, :]
