"""Recurrent decoder with attention over an encoder output."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from attention.modules.context import Output
from attention.modules.linear import linear
from attention.modules.recurrent.attention import AdditiveAttention
from attention.modules.recurrent.encoder import initial_carry, select_rows, time_first, valid_tokens
from attention.modules.recurrent.steps import BahdanauStep
from attention.primitives.constant import Constant
from attention.primitives.masks import Mask


class RecurrentCache(NamedTuple):
    """State of a decoder between steps; its size does not depend on the number of tokens.

    Attributes:
        carry: of the cell, leaves `[..., F]`.
        input_feed: `[..., input_feed_width]`, as in `LuongStep`.
        lengths: int32 `[...]`, number of tokens read.
        encoder_output: what the attention has precomputed from the encoder output.
    """

    carry: Any
    input_feed: Array
    lengths: Array
    encoder_output: Constant


class RecurrentDecoder(nnx.Module):
    """A recurrent cell whose initial state is a summary of the source."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        encoder_width: int,
        attention: Callable[..., nnx.Module] = AdditiveAttention,
        step: Callable[..., nnx.Module] = BahdanauStep,
        cell: Callable[..., nnx.RNNCellBase] = nnx.GRUCell,
        rngs: nnx.Rngs,
        **dtypes: DTypeLike | None,
    ) -> None:
        """Make the layer of the initial state, the attention and the step.

        Args:
            width: D, of the inputs.
            hidden: F, of the state.
            encoder_width: E, of the encoder output: both directions of `RecurrentEncoder`.
            attention: class with the interface of `AdditiveAttention`.
            step: class with the interface of `BahdanauStep`.
            cell: class of the cell, as in `CELLS`.
            rngs: source of the initial parameters.
            dtypes: `dtype` and `param_dtype`, as in flax.
        """
        self.summary = linear({"embed": encoder_width}, {"hidden": hidden}, rngs=rngs, **dtypes)
        self.attention = attention(hidden, encoder_width, rngs=rngs, **dtypes)
        context_width = self.attention.context_width
        self.step = step(width, hidden, context_width, cell=cell, rngs=rngs, **dtypes)
        self.features_width = self.step.features_width
        self.hidden = hidden

    def __call__(
        self,
        inputs: Array,
        encoder_output: Array | None = None,
        *,
        encoder_mask: Mask | None = None,
        cache: RecurrentCache | None = None,
        lengths: ArrayLike | None = None,
        returning: Collection[str] = (),
    ) -> Output:
        """Map inputs `[..., T, D]` to features `[..., T, features_width]`.

        Args:
            inputs: `[..., T, D]`.
            encoder_output: `[..., S, E]`; None with a cache, which contains it.
            encoder_mask: of the attention over the encoder output; None allows all, padding too.
            cache: state after the tokens before the inputs, at first from `new_cache`.
            lengths: with a cache, integers `[...]`, number of valid tokens per row.
            returning: as in `attention.attend`, and "hidden_states".

        Returns:
            Features, `({"cross_attention": {name: array}},)` and the new cache if one was given.

        Raises:
            ValueError: both or neither of encoder output and cache; a cache of another model;
                lengths without a cache or outside [0, T].
            TypeError: lengths that are not integers.
        """
        if (cache is None) == (encoder_output is None):
            raise ValueError("a recurrent decoder needs either an encoder output or a cache")
        *batch, num_tokens, _ = inputs.shape
        if lengths is not None and cache is None:
            raise ValueError("lengths need a cache, got none")
        state = self.new_cache(encoder_output) if cache is None else cache
        expected = (*batch, self.hidden)
        shapes = {leaf.shape for leaf in jax.tree.leaves(getattr(state, "carry", ()))}
        if shapes != {expected}:
            raise ValueError(
                f"this decoder needs a RecurrentCache with a carry of shape {expected}"
            )
        names = tuple(name for name in returning if name != "hidden_states")
        options = {"mask": encoder_mask, "returning": names}
        precomputed = state.encoder_output

        def step(
            state: RecurrentCache, token: tuple[Array, Array | None]
        ) -> tuple[RecurrentCache, tuple[Array, dict[str, Array]]]:
            vector, valid = token
            results = {}

            def attend(query: Array) -> Array:
                result = self.attention(query, precomputed.value, state.lengths, **options)
                context, found = result if names else (result, {})
                results.update(found)
                return jnp.squeeze(context, (-3, -2))

            carry, input_feed, features = self.step(state.carry, state.input_feed, vector, attend)
            after = RecurrentCache(carry, input_feed, state.lengths + 1, None)
            return select_rows(valid, after, state), (features, results)

        valid = valid_tokens(lengths, batch, num_tokens)
        tokens = time_first(inputs, -2), time_first(valid, -1)
        state = state._replace(encoder_output=None)  # not a carry of the loop
        state, (features, results) = jax.lax.scan(step, state, tokens)
        features = jnp.moveaxis(features, 0, -2)
        axis = len(batch) + 1  # of T, after the batch axes and N
        results = jax.tree.map(lambda x: jnp.moveaxis(jnp.squeeze(x, axis + 1), 0, axis), results)
        return Output(
            features,
            attention=({"cross_attention": results},) if names else None,
            hidden_states=(inputs, features) if "hidden_states" in returning else (),
            cache=None if cache is None else state._replace(encoder_output=precomputed),
        )

    def new_cache(self, encoder_output: Array, *, dtype: DTypeLike | None = None) -> RecurrentCache:
        """Return the state before the first token.

        Args:
            encoder_output: `[..., S, E]` of `RecurrentEncoder`. The summary is computed from the
                final state of each direction, at the last and at the first position.
            dtype: of the precomputed keys and values; that of the computation if None.
        """
        half = encoder_output.shape[-1] // 2
        final_states = encoder_output[..., -1, :half], encoder_output[..., 0, half:]
        summary = jnp.tanh(self.summary(jnp.concatenate(final_states, axis=-1)))
        precomputed = self.attention.precompute(encoder_output, summary)
        *batch, _ = summary.shape
        return RecurrentCache(
            carry=initial_carry(self.step.cell, summary),
            input_feed=jnp.zeros((*batch, self.step.input_feed_width), summary.dtype),
            lengths=jnp.zeros(batch, jnp.int32),
            encoder_output=Constant(
                jax.tree.map(lambda x: x.astype(dtype or x.dtype), precomputed)
            ),
        )
