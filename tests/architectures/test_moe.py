"""Mixture of experts in every second layer: top-2 routing, capacity, balance loss (GShard)."""

import jax
import jax.numpy as jnp
from flax import nnx

from attention import modules
from tests.architectures.helpers import VOCAB, check_decoding, counting, next_token_loss, train

CONFIG = modules.TransformerConfig(width=16, hidden=32, decoder_layers=4, positions="rotary")


class Experts(nnx.Module):
    def __init__(self, width, hidden, num_experts, *, capacity_factor=1.5, rngs):
        init = nnx.initializers.lecun_normal(batch_axis=0)
        widen = init(rngs.params(), (num_experts, width, hidden))
        narrow = init(rngs.params(), (num_experts, hidden, width))
        self.widen = nnx.Param(widen, axes=("experts", "embed", "hidden"))
        self.narrow = nnx.Param(narrow, axes=("experts", "hidden", "embed"))
        self.router = modules.linear({"embed": width}, {"experts": num_experts}, rngs=rngs)
        self.num_experts, self.capacity_factor = num_experts, capacity_factor

    def __call__(self, inputs, *, context):
        probabilities = jax.nn.softmax(self.router(inputs))
        weights, experts = jax.lax.top_k(probabilities, 2)
        chosen = jax.nn.one_hot(jnp.swapaxes(experts, 1, 2), self.num_experts)  # [B, 2, T, E]
        served = jnp.cumsum(chosen.reshape(len(inputs), -1, self.num_experts), axis=1)
        number = ((served.reshape(chosen.shape) - 1) * chosen).sum(axis=-1).astype(int)
        # With dropout off, as in decoding, an expert takes every token that chooses it.
        share = 1.0 if context.rng is None else self.capacity_factor * 2 / self.num_experts
        slot = jax.nn.one_hot(number, int(share * inputs.shape[1]))  # 0 if none is left
        routed = jnp.einsum("bkte,bktc,btd->becd", chosen, slot, inputs)
        hidden = jax.nn.silu(jnp.einsum("becd,edf->becf", routed, self.widen[...]))
        mixed = hidden, self.narrow[...], chosen, slot, weights
        features = jnp.einsum("becf,efd,bkte,bktc,btk->btd", *mixed)
        balance = jnp.sum(chosen.mean(axis=(0, 1, 2)) * probabilities.mean(axis=(0, 1)))
        return modules.Output(features, losses={"balance": self.num_experts * balance})


def make_layer(index, rngs):
    block = modules.transformer_block(CONFIG, rngs=rngs)
    if index % 2:
        block.feed_forward.sublayer = Experts(16, 32, 4, rngs=rngs)
    return block


def test_learns_and_decodes():
    tokens, options = counting(), {"vocab_size": VOCAB, "make_layer": make_layer}
    model = modules.LanguageModel.from_config(CONFIG, **options, rngs=nnx.Rngs(0))
    model = train(model, next_token_loss, tokens)
    assert 1.5 < model(tokens).losses["balance"] < 2.5  # two layers; 1 each if balanced
    check_decoding(model, tokens)


def test_each_expert_takes_two_tokens():
    experts = Experts(16, 32, 4, capacity_factor=0.5, rngs=nnx.Rngs(0))
    training = modules.Context(rng=jax.random.key(0))
    features = experts(jnp.ones((1, 8, 16)), context=training).features
    assert features[0].any(axis=-1).tolist() == 2 * [True] + 6 * [False]
