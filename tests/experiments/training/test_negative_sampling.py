"""The loss of skip-grams by hand and against a plain formula."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.config.train import MeshPart
from experiments.data.skip_grams import SkipGramBatch
from experiments.losses import negative_sampling_losses, per_token
from experiments.sharding import accumulated, make_mesh
from experiments.tasks.word_vectors import SkipGram


def test_a_loss_by_hand():
    """Scores ln 3 and -ln 3 are probabilities 3/4 and 1/4 of a neighbour."""
    log3 = np.log(3)
    scores = jnp.array([[log3, -log3, log3], [log3, -log3, -log3]])
    sums = negative_sampling_losses(scores, jnp.array([True, True]))
    first = np.log(4 / 3) + np.log(4 / 3) + np.log(4)
    second = 3 * np.log(4 / 3)
    np.testing.assert_allclose(sums.loss, first + second, rtol=1e-6)
    np.testing.assert_allclose(sums.nll, sums.loss)
    assert (sums.correct, sums.tokens) == (1, 2)
    np.testing.assert_allclose(per_token(sums)["accuracy"], 0.5)


def test_the_gradient_raises_the_neighbour_and_lowers_the_others_by_their_errors():
    scores = jax.random.normal(jax.random.key(0), (3, 5, 4))
    counts = jax.random.bernoulli(jax.random.key(1), 0.5, (3, 5))
    gradient = jax.grad(lambda scores: negative_sampling_losses(scores, counts).loss)(scores)
    expected = np.array(jax.nn.sigmoid(scores))
    expected[..., 0] -= 1
    expected[~counts] = 0
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_scores_far_out_make_no_nan():
    scores = jnp.array([[-1e4, 1e4]])
    loss, gradient = jax.value_and_grad(
        lambda scores: negative_sampling_losses(scores, jnp.array([True])).loss
    )(scores)
    np.testing.assert_allclose(loss, 2e4)
    assert np.isfinite(gradient).all()


def test_narrow_scores_are_counted_wide():
    """bfloat16 has no 1,001."""
    scores, counts = jnp.zeros((1_001, 2), jnp.bfloat16), jnp.ones(1_001, bool)
    assert negative_sampling_losses(scores, counts).tokens == 1_001


def test_parts_that_do_not_divide_a_batch_learn_the_same():
    """Of seven skip-grams the first of three parts has three; the others have a row of zeros."""
    model = SkipGram(11, 5, rngs=nnx.Rngs(0))
    definition, parameters = nnx.split(model)
    random = np.random.default_rng(0)
    batch = SkipGramBatch(
        random.integers(11, size=7), random.integers(11, size=(7, 4)), np.full(7, True)
    )

    def learned(parameters, part, key):
        del key  # nothing is dropped

        def summed(parameters):
            scores = nnx.merge(definition, parameters)(part.center, part.others)
            sums = negative_sampling_losses(scores, part.counted)
            return sums.loss, sums

        return jax.grad(summed, has_aux=True)(parameters)

    mesh = make_mesh(MeshPart(data=1))
    whole, parts = (
        accumulated(learned, parameters, batch, jax.random.key(0), number, mesh)
        for number in (1, 3)
    )
    assert parts[1].tokens == 7
    chex.assert_trees_all_close(parts, whole, rtol=1e-5)


def test_scores_are_products_of_a_center_and_a_neighbour():
    """An id out of range scores NaN."""
    model = SkipGram(7, 3, rngs=nnx.Rngs(0))
    center, others = np.array([2, 7]), np.array([[1, -1], [6, 3]])
    scores = model(center, others)
    expected = np.dot(model.centers[2], model.neighbours[1])
    np.testing.assert_allclose(scores[0, 0], expected, rtol=1e-5)
    assert np.isnan(scores).tolist() == [[False, True], [True, True]]
