"""Mixture of experts: routing, capacity, cached decoding, and the balance loss in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.modules import ACTIVATIONS, Context, LanguageModel, TransformerConfig
from configs import char_lm_moe
from experiments.analysis.description import Description
from experiments.data.corpus import language_of
from experiments.data.text import Characters, TextBatch
from experiments.experts import Experts, check_experts, make_layer
from experiments.language_model import Task

INPUTS = jax.random.normal(jax.random.key(0), (2, 7, 6))


def experts(number=3, **options):
    return Experts(6, 5, number, **options, rngs=nnx.Rngs(0))


def apart(layer, inputs):
    """Return the outputs of every expert, `[E, B, T, D]`."""
    hidden = jnp.einsum("btd,edf->ebtf", inputs, layer.widen[...])
    return jnp.einsum("ebtf,efd->ebtd", ACTIVATIONS["gelu"](hidden), layer.narrow[...])


def test_output_is_the_weighted_mean_of_the_two_likeliest_experts():
    layer = experts()
    found = layer(INPUTS, context=Context()).features
    gates, outputs = np.array(jax.nn.softmax(layer.router(INPUTS))), apart(layer, INPUTS)
    for place in np.ndindex(2, 7):
        best = np.argsort(-gates[place])[:2]
        expected = sum(gates[place][e] * outputs[(e, *place)] for e in best)
        expected /= gates[place][best].sum()
        np.testing.assert_allclose(found[place], expected, rtol=1e-5, atol=1e-6)


def test_in_training_each_expert_takes_the_first_tokens():
    layer = experts(4, capacity_factor=0.5)
    training = Context(rng=jax.random.key(0))
    features = layer(jnp.ones((1, 8, 6)), context=training).features
    assert features[0].any(axis=-1).tolist() == [True] * 2 + [False] * 6


def test_balance_loss_is_smallest_for_equal_gates():
    layer = experts(balance=0.5)
    assert layer(INPUTS, context=Context()).losses["balance"] > 0.5
    layer.router.kernel[...] = jnp.zeros_like(layer.router.kernel[...])
    np.testing.assert_allclose(layer(INPUTS, context=Context()).losses["balance"], 0.5, rtol=1e-6)


def config(**changes):
    config = char_lm_moe.get_config("tiny")
    config.train.microbatches = 1
    config.model.dropout = 0.0
    config.experts.update(changes)
    return config


def test_cached_decoding_equals_full_pass():
    settings = TransformerConfig(width=8, num_heads=2, hidden=6, decoder_layers=2)
    model = LanguageModel.from_config(
        settings,
        vocab_size=9,
        rngs=nnx.Rngs(0),
        make_layer=lambda index, rngs: make_layer(settings, config().experts, index, rngs),
    )
    tokens = jax.random.randint(jax.random.key(1), (2, 6), 0, 9)
    cache = model.new_cache((2,), 6)
    for place in range(6):
        output = model(tokens[:, place : place + 1], cache=cache)
        cache = output.cache
    np.testing.assert_allclose(
        output.logits[:, 0], model(tokens).logits[:, 5], rtol=2e-5, atol=1e-5
    )


@pytest.fixture(scope="module")
def task():
    with jax.numpy_dtype_promotion("standard"):
        return Task(config(), language_of("characters", Characters.of("abcdefg")))


def test_balance_loss_is_in_the_objective_and_in_the_metrics(task):
    with jax.numpy_dtype_promotion("standard"):
        state = task.learner.initial_state()
        parameters = jax.tree.map(jnp.copy, state.parameters)
        tokens = np.arange(24).reshape(2, 12) % 7
        batch = TextBatch(tokens, tokens, np.ones(tokens.shape, bool))
        measured = task.learner.losses(parameters, [batch])
        state, metrics = task.learner.train_step(state, batch)
    assert measured["loss"] == measured["nll"]
    assert 0 < measured["balance"] < 0.1
    assert metrics["balance"] > 0
    np.testing.assert_allclose(metrics["loss"], metrics["nll"] + metrics["balance"], rtol=1e-6)


def test_a_token_uses_the_parameters_of_two_experts():
    def flops(number):
        language = language_of("characters", Characters.of("abcdefg"))
        model = Task(config(number=number), language).learner.abstract_model
        return Description.of(model, context=24).costs[0].matrix_flops

    router = 2 * 32 * 2  # FLOPs of two more columns of the router, in one layer
    assert flops(4) - flops(2) == router


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        ("number", 1, "experts.number must be at least 2, got 1"),
        ("every", 0, "experts.every must be at least 1, got 0"),
        ("capacity_factor", 0.0, "experts.capacity_factor must be a number above 0"),
        ("balance", -1.0, "experts.balance must be at least 0, got -1.0"),
    ],
)
def test_a_mistake_is_one_sentence(field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_experts(config(**{field: value}).experts)
