"""Learning rates at the steps where they can be checked by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.optimizer import optimizer, schedule
from flax import nnx

from attention.modules import LanguageModel
from experiments.config.parts import DecoderModel, TrainPart

NAMES = ("constant", "linear", "cosine", "inverse_sqrt")


def rates(name, steps):
    rate = schedule(TrainPart(schedule=name, learning_rate=0.5, warmup_steps=4, steps=20))
    return [float(rate(jnp.int32(step))) for step in steps]


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_rises_in_a_line_to_its_peak(name):
    np.testing.assert_allclose(rates(name, range(5)), [0, 0.125, 0.25, 0.375, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("constant", [0.5, 0.5]),
        ("linear", [0.25, 0.0]),
        ("cosine", [0.25, 0.0]),
        ("inverse_sqrt", [0.5 * (4 / 12) ** 0.5, 0.5 * (4 / 20) ** 0.5]),
    ],
)
def test_learning_rate_after_the_peak(name, expected):
    """Half-way down, and at the end."""
    np.testing.assert_allclose(rates(name, [12, 20]), expected, atol=1e-6)


def test_gradients_are_clipped_before_adam():
    """Adam forgets the scale of a constant gradient, but not that one step was clipped."""

    def second_update(clip_norm):
        config = TrainPart(
            schedule="constant",
            learning_rate=1.0,
            warmup_steps=0,
            clip_norm=clip_norm,
            beta2=0.9,
            weight_decay=0.0,
        )
        parameters = nnx.Param(jnp.zeros(1))
        transformation = optimizer(config, parameters)
        state = transformation.init(parameters)
        _, state = transformation.update(nnx.Param(jnp.array([100.0])), state, parameters)
        update, _ = transformation.update(nnx.Param(jnp.array([1.0])), state, parameters)
        return float(update[0])

    np.testing.assert_allclose(second_update(1.0), -1.0, rtol=1e-5)
    assert abs(second_update(1000.0) + 1.0) > 0.1


@pytest.fixture(scope="module")
def parameters():
    """Return ones for a model with parameters of every kind."""
    config = DecoderModel(width=8, num_heads=2, hidden=5, positions="learned", decoder_layers=1)
    make = partial(LanguageModel.from_config, config, vocab_size=7)
    abstract = nnx.state(jax.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    return jax.tree.map(lambda leaf: jnp.array(np.ones(leaf.shape, leaf.dtype)), abstract)


EVERY = {"kernel", "bias", "scale", "tokens", "table"}


@pytest.mark.parametrize("decay_all, changed", [(False, {"kernel"}), (True, EVERY)])
def test_without_a_gradient_only_decaying_parameters_change(parameters, decay_all, changed):
    config = TrainPart(warmup_steps=0, schedule="constant", decay_all=decay_all)
    transformation = optimizer(config, parameters)

    @jax.jit
    def update(parameters):
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return transformation.update(zeros, transformation.init(parameters), parameters)[0]

    updates = update(parameters)
    found = {path[-1] for path, update in nnx.to_flat_state(updates) if np.any(update[...] != 0)}
    assert found == changed
