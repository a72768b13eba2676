"""Mixture of experts in every second layer: top-2 routing, capacity, balance loss (GShard)."""

import jax
import jax.numpy as jnp
from flax import nnx

from attention import modules
from tests.architectures.helpers import VOCAB, check_decoding, counting, next_token_loss, train


class Experts(nnx.Module):
    def __init__(self, width, hidden, num_experts, *, capacity_factor=1.5, rngs):
        def make_expert(key):
            return modules.FeedForward(width, hidden, activation="silu", rngs=nnx.Rngs(key))

        experts = jax.vmap(make_expert)(jax.random.split(rngs.params(), num_experts))
        self.experts = modules.name_axis(experts, "experts")
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
        routed = jnp.einsum("bkte,bktc,btd->ebcd", chosen, slot, inputs)
        outputs = jax.vmap(lambda expert, tokens: expert(tokens))(self.experts, routed)
        features = jnp.einsum("ebcd,bkte,bktc,btk->btd", outputs, chosen, slot, weights)
        balance = jnp.sum(chosen.mean(axis=(0, 1, 2)) * probabilities.mean(axis=(0, 1)))
        return modules.Output(features, losses={"balance": self.num_experts * balance})


EXPERTS = {"feed_forward": lambda config, rngs: Experts(16, 32, 4, rngs=rngs)}
CONFIG = modules.TransformerConfig(width=16, hidden=32, decoder_layers=2, per_layer=[{}, EXPERTS])


def make_model(rngs):
    return modules.LanguageModel.from_config(CONFIG, vocab_size=VOCAB, rngs=rngs)


def test_learns_and_decodes():
    tokens = counting()
    model = train(make_model, next_token_loss, tokens)
    losses = jax.jit(lambda model: model(tokens).losses)(model)
    assert 0.75 < losses["balance"] < 1.25  # 1 if balanced
    check_decoding(model, tokens)


def test_each_expert_takes_two_tokens():
    experts = Experts(16, 32, 4, capacity_factor=0.5, rngs=nnx.Rngs(0))
    training = modules.Context(rng=jax.random.key(0))
    features = jax.jit(lambda tokens: experts(tokens, context=training).features)(
        jnp.ones((1, 8, 16))
    )
    assert features[0].any(axis=-1).tolist() == 2 * [True] + 6 * [False]
