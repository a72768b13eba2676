"""Mixture of experts as the feed-forward layer of some blocks of a Transformer."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from attention.modules import (
    ACTIVATIONS,
    Block,
    Context,
    Output,
    TransformerConfig,
    linear,
    transformer_block,
)
from experiments.errors import check_at_least, check_positive

CHOSEN = 2  # experts of each token


class Experts(nnx.Module):
    """Feed-forward layers of which each token uses the two with the largest gates.

    Lepikhin et al. 2021, "GShard", section 2.2, without random dispatch. In training an expert
    takes a limited number of tokens from each row, the first ones; otherwise it takes all that
    choose it, so cached decoding equals a full pass.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        number: int,
        *,
        activation: str = "gelu",
        capacity_factor: float = 1.25,
        balance: float = 0.01,
        rngs: nnx.Rngs,
    ) -> None:
        """Make the router and the matrices of the experts.

        Args:
            width: D.
            hidden: F, of each expert.
            number: E, number of experts, at least 2.
            activation: a name in `ACTIVATIONS`.
            capacity_factor: ratio of the tokens that an expert takes in training to its share.
            balance: factor of the loss that is smallest if all experts take equally many tokens.
            rngs: source of the initial parameters.
        """
        init = nnx.initializers.lecun_normal(batch_axis=0)
        used = {"active": CHOSEN / number}  # share of the parameters that a token uses
        widen = init(rngs.params(), (number, width, hidden))
        narrow = init(rngs.params(), (number, hidden, width))
        self.widen = nnx.Param(widen, axes=("experts", "embed", "hidden"), **used)
        self.narrow = nnx.Param(narrow, axes=("experts", "hidden", "embed"), **used)
        self.router = linear({"embed": width}, {"experts": number}, use_bias=False, rngs=rngs)
        self.activation = activation
        self.number, self.capacity_factor, self.balance = number, capacity_factor, balance

    def __call__(self, inputs: Array, *, context: Context) -> Output:
        """Map `[B, T, D]` to `[B, T, D]`, with the loss "balance"."""
        rows, length, _ = inputs.shape
        gates = jax.nn.softmax(self.router(inputs))  # [B, T, E]
        weights, experts = jax.lax.top_k(gates, CHOSEN)
        weights /= weights.sum(axis=-1, keepdims=True)
        # All first choices are served before any second one.
        chosen = jax.nn.one_hot(jnp.swapaxes(experts, 1, 2), self.number, dtype=inputs.dtype)
        served = jnp.cumsum(chosen.reshape(rows, -1, self.number), axis=1).reshape(chosen.shape)
        place = ((served - 1) * chosen).sum(axis=-1).astype(jnp.int32)  # [B, 2, T]
        share = 1.0 if context.rng is None else self.capacity_factor * CHOSEN / self.number
        capacity = max(1, min(length, round(share * length)))
        slot = jax.nn.one_hot(place, capacity, dtype=inputs.dtype)  # 0 where no slot is left
        routed = jnp.einsum("bkte,bktc,btd->becd", chosen, slot, inputs)
        widen, narrow = (part[...].astype(inputs.dtype) for part in (self.widen, self.narrow))
        hidden = ACTIVATIONS[self.activation](jnp.einsum("becd,edf->becf", routed, widen))
        outputs = jnp.einsum("becf,efd->becd", hidden, narrow)
        features = jnp.einsum("becd,bkte,bktc,btk->btd", outputs, chosen, slot, weights)
        first = chosen[:, 0].mean(axis=(0, 1))  # share of the tokens whose first choice it is
        loss = self.number * jnp.sum(first * gates.mean(axis=(0, 1)))
        return Output(features, losses={"balance": self.balance * loss})


def make_layer(config: TransformerConfig, experts: ConfigDict, index: int, rngs: nnx.Rngs) -> Block:
    """Make a layer of a decoder; experts are the feed-forward layer of some.

    Args:
        config: of the decoder.
        experts: number, every (n for each n-th layer), capacity_factor and balance.
        index: of the layer.
        rngs: source of the initial parameters.
    """
    config = config.layer(index)
    if (index + 1) % experts.every == 0:
        config = replace(config, feed_forward=partial(_make_experts, experts))
    return transformer_block(config, rngs=rngs)


def _make_experts(experts: ConfigDict, config: TransformerConfig, rngs: nnx.Rngs) -> Experts:
    return Experts(
        config.width,
        config.hidden,
        experts.number,
        activation=config.activation,
        capacity_factor=experts.capacity_factor,
        balance=experts.balance,
        rngs=rngs,
    )


def check_experts(experts: ConfigDict) -> None:
    """Check the fields of `experts` in a config.

    Raises:
        ValueError: in one sentence.
    """
    for name, least in (("number", CHOSEN), ("every", 1), ("balance", 0)):
        check_at_least(f"experts.{name}", experts[name], least)
    check_positive("experts.capacity_factor", experts.capacity_factor)
