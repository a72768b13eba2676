"""Language models: local and global attention, a hybrid with a recurrence, a mixture of experts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention import modules
from attention.decoding import generate
from tests.architectures.helpers import VOCAB, counting, cross_entropy, train

WIDTH = 16
PROMPT = 4  # tokens


def local_or_global_layer(index, rngs):
    """Two rotary bases, softcaps and four norms, as in Gemma 2 and 3."""
    is_global = index % 2 == 1
    attention = modules.SelfAttention(
        WIDTH,
        num_heads=4,
        num_kv_heads=2,
        use_bias=False,
        qk_norm="rms",
        softcap=50.0,
        rotary=modules.Rotary(base=1e6 if is_global else 1e4),
        window=None if is_global else 2,
        rngs=rngs,
    )
    gelu = {"activation": "gelu", "gated": True}
    feed_forward = modules.FeedForward(WIDTH, 2 * WIDTH, **gelu, use_bias=False, rngs=rngs)

    def residual(sublayer):
        norm, output_norm = (modules.rms_norm(WIDTH, rngs=rngs) for _ in range(2))
        return modules.Residual(norm, sublayer, output_norm=output_norm)

    return modules.Block(self_attention=residual(attention), feed_forward=residual(feed_forward))


def local_and_global(rngs):
    layers = modules.Layers(local_or_global_layer, 2, rngs=rngs)
    decoder = modules.Decoder(layers, norm=modules.rms_norm(WIDTH, rngs=rngs))
    embedding = modules.Embedding(VOCAB, WIDTH, logit_softcap=30.0, rngs=rngs)
    return modules.LanguageModel(embedding=embedding, decoder=decoder)


class Recurrence(nnx.Module):
    """h[t] = keep[t] h[t - 1] + (1 - keep[t]) new[t]; keep and new are functions of input t."""

    def __init__(self, rngs):
        self.inputs = modules.linear({"embed": WIDTH}, {"gates": 2, "hidden": WIDTH}, rngs=rngs)
        self.output = modules.linear({"hidden": WIDTH}, {"embed": WIDTH}, rngs=rngs)

    def __call__(self, inputs, *, context):
        keep, new = jnp.moveaxis(self.inputs(inputs), -2, 0)
        keep, new = jax.nn.sigmoid(keep), jax.nn.sigmoid(-keep) * new
        if context.lengths is not None:  # padding does not change the state
            valid = context.valid(inputs.shape[-2])[..., None]
            keep, new = jnp.where(valid, keep, 1), jnp.where(valid, new, 0)
        kept, states = jax.lax.associative_scan(  # composes functions h -> keep h + new
            lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]), (keep, new), axis=inputs.ndim - 2
        )
        if context.cache is not None:
            states += kept * context.cache[..., None, :]
        return modules.Output(self.output(states), cache=states[..., -1, :])

    def new_cache(self, spec):
        return jnp.zeros((*spec.batch, WIDTH))


def attention_or_recurrence(index, rngs):
    def residual(sublayer):
        return modules.Residual(modules.rms_norm(WIDTH, rngs=rngs), sublayer)

    if index % 3 == 2:
        mixer = {"recurrence": residual(Recurrence(rngs))}
    else:
        attention = modules.SelfAttention(WIDTH, num_heads=4, rotary=modules.Rotary(), rngs=rngs)
        mixer = {"self_attention": residual(attention)}
    feed_forward = modules.FeedForward(WIDTH, 2 * WIDTH, activation="silu", gated=True, rngs=rngs)
    return modules.Block(**mixer, feed_forward=residual(feed_forward))


def hybrid(rngs):
    layers = modules.Layers(attention_or_recurrence, 6, rngs=rngs)
    assert layers.period == 3  # scanned in groups of three
    decoder = modules.Decoder(layers, norm=modules.rms_norm(WIDTH, rngs=rngs))
    embedding = modules.Embedding(VOCAB, WIDTH, rngs=rngs)
    return modules.LanguageModel(embedding=embedding, decoder=decoder)


class Experts(nnx.Module):
    """Top-2 routing, capacity, balance loss (GShard)."""

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


def mixture_of_experts(rngs):
    experts = {"feed_forward": lambda config, rngs: Experts(WIDTH, 32, 4, rngs=rngs)}
    config = modules.TransformerConfig(
        width=WIDTH, hidden=32, decoder_layers=2, per_layer=[{}, experts]
    )
    return modules.LanguageModel(config, vocab_size=VOCAB, rngs=rngs)


def next_token_loss(model, rng, tokens):
    return cross_entropy(model(tokens[:, :-1], rng=rng), tokens[:, 1:])


@pytest.mark.parametrize("make_model", [local_and_global, hybrid, mixture_of_experts])
def test_learns_and_decodes(make_model):
    """Prompts of two lengths are continued correctly, with the logits of a full pass."""
    tokens = counting()
    model = train(make_model, next_token_loss, tokens)
    full = jax.jit(lambda model: model(tokens))(model)
    assert 0.75 < full.losses.get("balance", 1) < 1.25  # 1 if balanced
    lengths = PROMPT - np.arange(len(tokens), dtype=np.int32) % 2
    rest = np.add.outer(lengths - 1, np.arange(tokens.shape[1] - PROMPT))  # positions
    answer = generate(
        model,
        tokens[:, :PROMPT],
        lengths=lengths,
        max_tokens=rest.shape[1],
        observe=lambda output: output.logits,
    )
    np.testing.assert_array_equal(answer.tokens, np.take_along_axis(tokens, rest + 1, axis=1))
    logits = np.take_along_axis(np.asarray(full.logits), rest[..., None], axis=1)
    chex.assert_trees_all_close(np.asarray(answer.observed), logits, rtol=1e-4, atol=1e-4)
