"""Learning rates at the steps where they can be checked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.training.optimizer import optimizer, schedule

NAMES = ("constant", "plateau", "linear", "cosine", "inverse_sqrt")


def rates(name, steps):
    rate = schedule(name, peak=0.5, warmup_steps=4, total_steps=20)
    return [float(rate(jnp.int32(step))) for step in steps]


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_rises_in_a_line_to_its_peak(name):
    np.testing.assert_allclose(rates(name, range(5)), [0, 0.125, 0.25, 0.375, 0.5], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_may_be_a_number_of_python(name):
    rate = schedule(name, peak=0.5, warmup_steps=4, total_steps=20)
    assert float(rate(0)) == 0.0


@pytest.mark.parametrize(
    "name, expected",
    [
        ("constant", [0.5, 0.5]),
        ("linear", [0.25, 0.0]),
        ("cosine", [0.25, 0.0]),
        ("inverse_sqrt", [0.5 * (4 / 12) ** 0.5, 0.5 * (4 / 20) ** 0.5]),
    ],
)
def test_what_comes_after_the_peak(name, expected):
    """Half-way down, and at the end."""
    np.testing.assert_allclose(rates(name, [12, 20]), expected, atol=1e-6)


def test_a_training_without_warmup_starts_at_the_peak():
    rate = schedule("cosine", peak=0.5, warmup_steps=0, total_steps=20)
    np.testing.assert_allclose(rate(jnp.int32(0)), 0.5)


def test_an_unknown_schedule_is_named():
    with pytest.raises(ValueError, match="got 'cosin'; did you mean 'cosine'"):
        schedule("cosin", peak=1.0, warmup_steps=1, total_steps=2)


@pytest.mark.parametrize("warmup", [-1, 20, 21])
def test_a_warmup_that_never_ends_is_refused(warmup):
    with pytest.raises(ValueError, match=rf"\[0, train.steps=20\), got {warmup}"):
        schedule("linear", peak=1.0, warmup_steps=warmup, total_steps=20)


def test_gradients_are_clipped_before_adam():
    """Adam forgets the scale of a constant gradient, but not that one step was clipped."""

    def second_update(clip_norm):
        config = ConfigDict(
            {
                "schedule": "constant",
                "learning_rate": 1.0,
                "warmup_steps": 0,
                "steps": 9,
                "clip_norm": clip_norm,
                "beta1": 0.9,
                "beta2": 0.9,
                "epsilon": 1e-9,
                "weight_decay": 0.0,
            }
        )
        transformation = optimizer(config)
        parameters = jnp.zeros(1)
        state = transformation.init(parameters)
        _, state = transformation.update(jnp.array([100.0]), state, parameters)
        update, _ = transformation.update(jnp.array([1.0]), state, parameters)
        return float(update[0])

    np.testing.assert_allclose(second_update(1.0), -1.0, rtol=1e-5)
    assert abs(second_update(1000.0) + 1.0) > 0.1
