"""Mixture of experts as the feed-forward layer of some blocks of a Transformer."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax import Array

from attention.modules import (
    ACTIVATIONS,
    Block,
    Context,
    Output,
    TransformerConfig,
    linear,
    transformer_block,
)
from experiments.config.parts import ExpertsPart

CHOSEN = 2  # experts of each token


class Experts(nnx.Module):
    """Feed-forward layers of which each token uses the two with the largest gates.

    Lepikhin et al. 2021, "GShard", section 2.2, without random dispatch. In training an expert
    takes a limited number of tokens from each row, the first ones; otherwise it takes all that
    choose it, so cached decoding equals a full pass. Padding is routed to no expert.
    """

    def __init__(self, experts: ExpertsPart, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        """Make the router and the matrices of the experts, each with `config.hidden` units.

        The gates are computed in float32 at least.
        """
        number, width, hidden = experts.number, config.width, config.hidden
        dtype, param_dtype = config.dtype, config.param_dtype
        init = nnx.initializers.lecun_normal(batch_axis=0)
        used = {"active": CHOSEN / number}  # share of the parameters that a token uses
        up = init(rngs.params(), (number, width, hidden), param_dtype)
        down = init(rngs.params(), (number, hidden, width), param_dtype)
        self.up = nnx.Param(up, axes=("experts", "embed", "hidden"), **used)
        self.down = nnx.Param(down, axes=("experts", "hidden", "embed"), **used)
        self.router = linear(
            {"embed": width},
            {"experts": number},
            use_bias=False,
            dtype=np.promote_types(param_dtype if dtype is None else dtype, np.float32),
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.activation, self.dtype, self.config = config.activation, dtype, experts

    def __call__(self, inputs: Array, *, context: Context) -> Output:
        """Map `[B, T, D]` to `[B, T, D]`, with the loss "balance"."""
        (rows, length, _), number = inputs.shape, self.config.number
        arrays = inputs, self.up[...], self.down[...]
        inputs, up, down = promote_dtype(arrays, dtype=self.dtype)
        valid = context.valid(length)
        valid = jnp.ones((rows, length), bool) if valid is None else valid
        inputs = jnp.where(valid[..., None], inputs, 0)
        gates = jax.nn.softmax(self.router(inputs))  # [B, T, E]
        weights, experts = jax.lax.top_k(gates, CHOSEN)
        weights /= weights.sum(axis=-1, keepdims=True)
        # All first choices are served before any second one. bfloat16 would count up to 256.
        chosen = jax.nn.one_hot(jnp.swapaxes(experts, 1, 2), number, dtype=jnp.int32)
        chosen *= valid[:, None, :, None].astype(jnp.int32)  # [B, 2, T, E]
        served = jnp.cumsum(chosen.reshape(rows, -1, number), axis=1).reshape(chosen.shape)
        slots = ((served - 1) * chosen).sum(axis=-1)  # [B, 2, T]
        capacity = length
        if context.rng is not None:
            share = self.config.capacity_factor * CHOSEN / number
            capacity = max(1, min(length, round(share * length)))
        slot = jax.nn.one_hot(slots, capacity, dtype=inputs.dtype)  # 0 where no slot is left
        used = chosen.astype(inputs.dtype)
        routed = jnp.einsum("bkte,bktc,btd->becd", used, slot, inputs)
        hidden = ACTIVATIONS[self.activation](jnp.einsum("becd,edf->becf", routed, up))
        outputs = jnp.einsum("becf,efd->becd", hidden, down)
        weights = weights.astype(inputs.dtype)
        features = jnp.einsum("becd,bkte,bktc,btk->btd", outputs, used, slot, weights)
        # Means over the valid tokens, of first choices and of gates.
        share = valid.astype(gates.dtype) / jnp.maximum(valid.sum(), 1).astype(gates.dtype)
        first = jnp.einsum("bt,bte->e", share, chosen[:, 0].astype(gates.dtype))
        loss = number * jnp.sum(first * jnp.einsum("bt,bte->e", share, gates))
        return Output(features, losses={"balance": self.config.balance * loss})


def make_layer(
    config: TransformerConfig, experts: ExpertsPart, index: int, rngs: nnx.Rngs
) -> Block:
    """Make a layer of a decoder; each `experts.every`-th one has experts in it."""
    config = config.layer(index)
    if (index + 1) % experts.every == 0:
        config = replace(config, feed_forward=partial(Experts, experts))
    return transformer_block(config, rngs=rngs)
