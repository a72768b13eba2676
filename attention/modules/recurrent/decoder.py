"""Recurrent decoder with attention over an encoder output."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from attention.modules.context import DEFAULT_CONTEXT, CacheSpec, Context, Output
from attention.modules.linear import linear
from attention.modules.recurrent.attention import AdditiveAttention
from attention.modules.recurrent.encoder import initial_carry, select_rows, time_first, valid_tokens
from attention.modules.recurrent.steps import BahdanauStep
from attention.primitives.cache import Constant


class RecurrentCache(NamedTuple):
    """State of a decoder between steps; its size does not depend on the number of tokens.

    Attributes:
        carry: of the cell, leaves `[..., F]`.
        input_feed: `[..., input_feed_width]`, as in `LuongStep`.
        lengths: int32 `[...]`, number of tokens read.
        encoder_output: what the attention has precomputed of it, and its positions `[..., S]`.
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

    def __call__(self, inputs: Array, *, context: Context = DEFAULT_CONTEXT) -> Output:
        """Map inputs `[..., T, D]` to features `[..., T, features_width]`.

        Args:
            inputs: `[..., T, D]`.
            context: with an encoder output `[..., S, E]`, or a cache, which contains it. After its
                `lengths` the state stays as it is.

        Returns:
            Features, `({"cross_attention": {name: array}},)` for the results in
            `context.returning`, and the new cache if one was given.

        Raises:
            ValueError: a mask; neither encoder output nor cache, or both; a cache of another model;
                lengths outside [0, T].
            TypeError: lengths that are not integers.
        """
        if context.mask is not None:
            raise ValueError(
                "a recurrent decoder cannot mask target tokens: its state depends on them"
            )
        context.check_source()
        *batch, num_tokens, _ = inputs.shape
        state = context.cache
        if state is None:
            state = self._initial_state(context.encoder_output, context.encoder_positions)
        expected = (*batch, self.hidden)
        shapes = {leaf.shape for leaf in jax.tree.leaves(getattr(state, "carry", ()))}
        if shapes != {expected}:
            raise ValueError(
                f"this decoder needs a RecurrentCache with a carry of shape {expected}"
            )
        names = tuple(name for name in context.returning if name != "hidden_states")
        constant = state.encoder_output
        precomputed, key_positions = constant.value

        def step(
            state: RecurrentCache, token: tuple[Array, Array | None]
        ) -> tuple[RecurrentCache, tuple[Array, dict[str, Array]]]:
            vector, valid = token
            results = {}

            def attend(query: Array) -> Array:
                result = self.attention(
                    query,
                    precomputed,
                    mask=context.encoder_mask,
                    positions=(state.lengths[..., None], key_positions),
                    returning=names,
                )
                attended, found = result if names else (result, {})
                results.update(found)
                return jnp.squeeze(attended, (-3, -2))

            carry, input_feed, features = self.step(state.carry, state.input_feed, vector, attend)
            after = RecurrentCache(carry, input_feed, state.lengths + 1, None)
            return select_rows(valid, after, state), (features, results)

        valid = valid_tokens(context.lengths, batch, num_tokens)
        tokens = time_first(inputs, -2), time_first(valid, -1)
        state = state._replace(encoder_output=None)  # not a carry of the loop
        state, (features, results) = jax.lax.scan(step, state, tokens)
        features = jnp.moveaxis(features, 0, -2)
        axis = len(batch) + 1  # of T, after the batch axes and N
        results = jax.tree.map(lambda x: jnp.moveaxis(jnp.squeeze(x, axis + 1), 0, axis), results)
        has_states = "hidden_states" in context.returning
        return Output(
            features,
            attention=({"cross_attention": results} if names else {},),
            hidden_states=(inputs, features) if has_states else (),
            cache=context.cache and state._replace(encoder_output=constant),
        )

    def new_cache(self, spec: CacheSpec) -> RecurrentCache:
        """Return the state before the first token; the size of `spec` has no effect.

        Raises:
            ValueError: no encoder output.
        """
        state = self._initial_state(spec.encoder_output, spec.encoder_positions)
        precomputed, positions = state.encoder_output.value
        if spec.dtype is not None:
            precomputed = jax.tree.map(lambda array: array.astype(spec.dtype), precomputed)
        positions = jnp.broadcast_to(positions, spec.encoder_output.shape[:-1])
        return state._replace(encoder_output=Constant((precomputed, positions)))

    def _initial_state(
        self, encoder_output: Array | None, encoder_positions: Array | None
    ) -> RecurrentCache:
        """Return the state before the first token.

        The summary is computed from the final state of each direction of a `RecurrentEncoder`,
        which the last and the first position contain.
        """
        if encoder_output is None:
            raise ValueError("a recurrent decoder needs an encoder output or a cache of one")
        *batch, num_keys, width = encoder_output.shape
        final = encoder_output[..., -1, : width // 2], encoder_output[..., 0, width // 2 :]
        summary = jnp.tanh(self.summary(jnp.concatenate(final, axis=-1)))
        precomputed = self.attention.precompute(encoder_output, summary)
        if encoder_positions is None:
            encoder_positions = jnp.arange(num_keys, dtype=jnp.int32)
        return RecurrentCache(
            carry=initial_carry(self.step.cell, summary),
            input_feed=jnp.zeros((*batch, self.step.input_feed_width), summary.dtype),
            lengths=jnp.zeros(batch, jnp.int32),
            encoder_output=Constant((precomputed, encoder_positions)),
        )
