"""The loss of skip-grams by hand and against a plain formula."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.training.loss import negative_sampling_losses, per_token


def test_a_loss_by_hand():
    """Scores ln 3 and -ln 3 are probabilities 3/4 and 1/4 of a neighbour."""
    log3 = np.log(3)
    sums = negative_sampling_losses(jnp.array([[log3, -log3, log3], [log3, -log3, -log3]]))
    first = np.log(4 / 3) + np.log(4 / 3) + np.log(4)
    second = 3 * np.log(4 / 3)
    np.testing.assert_allclose(sums.loss, first + second, rtol=1e-6)
    np.testing.assert_allclose(sums.nll, sums.loss)
    assert (sums.correct, sums.tokens) == (1, 2)
    np.testing.assert_allclose(per_token(sums)["accuracy"], 0.5)


def test_the_gradient_raises_the_neighbour_and_lowers_the_others_by_their_errors():
    scores = jax.random.normal(jax.random.key(0), (3, 5, 4))
    gradient = jax.grad(lambda scores: negative_sampling_losses(scores).loss)(scores)
    expected = np.array(jax.nn.sigmoid(scores))
    expected[..., 0] -= 1
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_scores_far_out_make_no_nan():
    scores = jnp.array([[-1e4, 1e4]])
    loss, gradient = jax.value_and_grad(lambda scores: negative_sampling_losses(scores).loss)(
        scores
    )
    np.testing.assert_allclose(loss, 2e4)
    assert np.isfinite(gradient).all()


def test_narrow_scores_are_counted_wide():
    """bfloat16 has no 1,001."""
    assert negative_sampling_losses(jnp.zeros((1_001, 2), jnp.bfloat16)).tokens == 1_001
