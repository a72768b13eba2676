"""Mixture of experts: routing, capacity, cached decoding, and the balance loss in training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention.modules import ACTIVATIONS, Context, LanguageModel, TransformerConfig
from configs import char_lm_moe
from experiments.config import Config
from experiments.config.parts import ExpertsPart
from experiments.data.pipeline import TextBatch
from experiments.data.tokenizers import CharacterTokenizer, Tokenizers
from experiments.describe import token_costs
from experiments.experts import Experts, make_layer
from experiments.tasks.language_model import LanguageModeling
from tests.attention.modules.inputs import filled

LETTERS = Tokenizers(CharacterTokenizer.of(["abcdefg"]), None)
INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 6)), jnp.float32)


def experts(number=3, dtype=None, **options):
    layers = {"decoder_layers": 1, "activation": "gelu", "dtype": dtype}
    config = TransformerConfig(width=6, num_heads=2, hidden=5, **layers)
    return filled(lambda: Experts(ExpertsPart(number=number, **options), config, nnx.Rngs(0)))


@jax.jit
def run(layer, inputs, context):
    return layer(inputs, context=context)


@jax.jit
def apart(layer, inputs):
    """Return the outputs of every expert, `[E, B, T, D]`."""
    hidden = jnp.einsum("btd,edf->ebtf", inputs, layer.up[...])
    return jnp.einsum("ebtf,efd->ebtd", ACTIVATIONS["gelu"](hidden), layer.down[...])


def test_output_is_the_weighted_mean_of_the_two_likeliest_experts():
    layer = experts()
    found = run(layer, INPUTS, Context()).features
    gates, outputs = np.array(jax.nn.softmax(layer.router(INPUTS))), apart(layer, INPUTS)
    for token in np.ndindex(2, 7):
        best = np.argsort(-gates[token])[:2]
        expected = sum(gates[token][e] * outputs[(e, *token)] for e in best)
        expected /= gates[token][best].sum()
        np.testing.assert_allclose(found[token], expected, rtol=1e-5, atol=1e-6)


def test_in_training_each_expert_takes_the_first_tokens():
    layer = experts(4, capacity_factor=0.5)
    training = Context(rng=jax.random.key(0))
    features = np.asarray(run(layer, np.ones((1, 8, 6), np.float32), training).features)
    assert features[0].any(axis=-1).tolist() == [True] * 2 + [False] * 6


def test_balance_loss_is_smallest_for_equal_gates():
    layer = experts(balance=0.5)
    assert run(layer, INPUTS, Context()).losses["balance"] > 0.5
    layer.router.kernel[...] = jnp.zeros_like(layer.router.kernel[...])
    np.testing.assert_allclose(run(layer, INPUTS, Context()).losses["balance"], 0.5, rtol=1e-6)


def test_padding_takes_no_capacity_and_has_no_balance_loss():
    layer = experts(4, capacity_factor=0.5)
    padded = INPUTS.repeat(2, axis=1)[:, :8].at[1, 3:].set(jnp.nan)
    training = Context(rng=jax.random.key(0), lengths=jnp.array([8, 3]))
    assert not run(layer, padded, training).features[1, 3:].any()
    alone = run(layer, padded[1:, :3], Context()).losses["balance"]
    loss = run(layer, padded[1:], Context(lengths=jnp.array([3]))).losses["balance"]
    np.testing.assert_allclose(loss, alone, rtol=1e-6)
    nothing = run(layer, padded, Context(lengths=jnp.array([0, 0])))
    assert not nothing.features.any() and nothing.losses["balance"] == 0


def test_second_choices_are_served_in_spite_of_padding():
    layer = experts(2, capacity_factor=0.5)  # each of two experts takes half of the 8 tokens
    layer.router.kernel[...] = jnp.zeros((6, 2)).at[0].set(jnp.array([1.0, -1.0]))
    tokens = jnp.ones((1, 8, 6)).at[:, 2:, 0].set(-1.0)  # padding chooses the other expert first
    context = Context(rng=jax.random.key(0), lengths=jnp.array([2]))
    found = run(layer, tokens, context).features[:, :2]
    expected = run(layer, tokens[:, :2], Context()).features
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def config(**changes):
    config = char_lm_moe.get_config("tiny")
    config.model.dropout = 0.0
    config.model.experts.update(changes)
    return Config.read(config.to_dict())


def language_model(**options):
    settings = TransformerConfig(width=8, num_heads=2, hidden=6, decoder_layers=2, **options)
    make = functools.partial(make_layer, settings, config().model.experts)
    return LanguageModel.from_config(settings, vocab_size=9, rngs=nnx.Rngs(0), make_layer=make)


def test_dtypes_of_the_config():
    def output():
        model = language_model(dtype="bfloat16", param_dtype="float32")
        return nnx.state(model, nnx.Param), model(jnp.zeros((2, 6), jnp.int32))

    parameters, found = jax.eval_shape(output)
    assert {leaf.dtype for leaf in jax.tree.leaves(parameters)} == {jnp.dtype("float32")}
    assert found.features.dtype == jnp.bfloat16
    assert found.losses["balance"].dtype == jnp.float32


def test_more_tokens_than_bfloat16_can_count():
    layer = experts(2, dtype="bfloat16")
    inputs = jnp.ones((1, 600, 6), jnp.bfloat16)
    features = run(layer, inputs, Context()).features
    np.testing.assert_array_equal(features[0], jnp.broadcast_to(features[0, :1], (600, 6)))


def test_cached_decoding_equals_full_pass():
    model = filled(language_model)
    tokens = jax.random.randint(jax.random.key(1), (2, 6), 0, 9)
    cache = model.new_cache((2,), 6)
    step = jax.jit(lambda model, token, cache: model(token, cache=cache))
    for place in range(6):
        output = step(model, tokens[:, place : place + 1], cache)
        cache = output.cache
    expected = jax.jit(lambda model: model(tokens).logits)(model)[:, 5]
    np.testing.assert_allclose(output.logits[:, 0], expected, rtol=2e-5, atol=1e-5)


def test_balance_loss_is_in_the_objective_and_in_the_metrics():
    learner = LanguageModeling(config(), LETTERS).learner
    state, tokens = learner.initial_state(), np.arange(24).reshape(2, 12) % 7
    batch = TextBatch(tokens, tokens, np.ones(tokens.shape, bool))
    measured = learner.losses(state.parameters, [batch])
    state, metrics = learner.train_step(state, batch)
    assert measured["loss"] == measured["nll"]
    assert 0 < measured["balance"] < 0.1 and metrics["balance"] > 0
    np.testing.assert_allclose(metrics["loss"], metrics["nll"] + metrics["balance"], rtol=1e-6)


def test_a_token_uses_the_parameters_of_two_experts():
    def flops(number):
        model = LanguageModeling(config(number=number), LETTERS).learner.abstract_model
        return token_costs(model, 24)["token"]["matrices"]

    router = 2 * 32 * 2  # FLOPs of two more columns of the router, in one layer
    assert flops(4) - flops(2) == router
