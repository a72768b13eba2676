"""A mixture of experts in every second layer: top-2 routing, capacity and a balance loss."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from attention import modules
from tests.architectures.helpers import VOCAB, check_decoding, counting, next_token_loss, train

CONFIG = modules.TransformerConfig(
    width=16, hidden=32, decoder_layers=4, norm="rms", positions="rotary"
)


class Experts(nnx.Module):
    """Map each token by two of E experts (GShard, Lepikhin et al. 2021, section 2.2)."""

    def __init__(self, width, hidden, num_experts, *, capacity_factor=1.5, rngs):
        self.router = modules.linear({"embed": width}, {"experts": num_experts}, rngs=rngs)
        init = nnx.initializers.lecun_normal(batch_axis=0)
        for name, axes in ("widen", ("embed", "hidden")), ("narrow", ("hidden", "embed")):
            shape = (num_experts, *({"embed": width, "hidden": hidden}[axis] for axis in axes))
            setattr(self, name, nnx.Param(init(rngs.params(), shape), axes=("experts", *axes)))
        self.num_experts, self.capacity_factor = num_experts, capacity_factor

    def __call__(self, inputs, *, context):
        probabilities = jax.nn.softmax(self.router(inputs))
        weights, experts = jax.lax.top_k(probabilities, 2)
        chosen = jax.nn.one_hot(experts, self.num_experts)  # [..., T, 2, E]
        capacity = num_tokens = inputs.shape[-2]
        if context.rng is not None:  # in training only: decoding drops no token
            capacity = math.ceil(self.capacity_factor * 2 * num_tokens / self.num_experts)
        choices = jnp.swapaxes(chosen, -3, -2)  # all first choices are served before the second
        order = jnp.cumsum(choices.reshape(*choices.shape[:-3], -1, self.num_experts), axis=-2)
        order = jnp.swapaxes(order.reshape(choices.shape), -3, -2)
        slot = ((order - 1) * chosen).sum(axis=-1).astype(int)
        slot = jax.nn.one_hot(slot, capacity)  # 0 if the expert has no slot left
        taken = jnp.einsum("...tke,...tkc,...td->...ecd", chosen, slot, inputs)
        hidden = jax.nn.silu(jnp.einsum("...ecd,edf->...ecf", taken, self.widen[...]))
        outputs = jnp.einsum("...ecf,efd->...ecd", hidden, self.narrow[...])
        features = jnp.einsum("...ecd,...tke,...tkc,...tk->...td", outputs, chosen, slot, weights)
        shares = (x.reshape(-1, self.num_experts).mean(axis=0) for x in (chosen, probabilities))
        return modules.Output(
            features, losses={"balance": self.num_experts * math.prod(shares).sum()}
        )


def make_layer(index, rngs):
    block = modules.transformer_block(CONFIG, rngs=rngs)
    if index % 2:
        block.feed_forward.sublayer = Experts(16, 32, 4, rngs=rngs)
    return block


def test_mixture_of_experts():
    model = modules.LanguageModel.from_config(
        CONFIG, vocab_size=VOCAB, make_layer=make_layer, rngs=nnx.Rngs(0)
    )
    tokens = counting()
    model = train(model, next_token_loss, tokens)
    assert 2 <= model(tokens).losses["balance"] < 2.5  # of two layers, 1 each if balanced
    check_decoding(model, tokens)
