import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis.attribution import (
    completeness_error,
    deletion_drops,
    gradient_times_input,
    integrated_gradients,
    occlusion,
    rank_correlations,
    rollout,
)

RANDOM = np.random.default_rng(0)
WEIGHTS = jnp.asarray(RANDOM.normal(size=(2, 3, 4)), jnp.float32)  # [T, S, D]
VECTORS, BASELINE = (jnp.asarray(RANDOM.normal(size=(3, 4)), jnp.float32) for _ in range(2))


def linear(vectors):
    return jnp.einsum("tsd,sd->t", WEIGHTS, vectors)


def curved(vectors):
    return jnp.tanh(linear(vectors)) * vectors.sum()


def steep(vectors):
    return jnp.tanh(300 * linear(vectors))


def test_methods_agree_on_a_linear_score():
    expected = jnp.einsum("tsd,sd->ts", WEIGHTS, VECTORS - BASELINE)
    for found in (
        occlusion(linear, VECTORS, BASELINE),
        gradient_times_input(linear, VECTORS, BASELINE),
        integrated_gradients(linear, VECTORS, BASELINE),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_integrated_gradients_are_complete():
    found = integrated_gradients(curved, VECTORS, BASELINE)
    assert (completeness_error(found, curved, VECTORS, BASELINE) < 0.01).all()
    coarse = integrated_gradients(steep, VECTORS, BASELINE, most_parts=1)
    assert (completeness_error(coarse, steep, VECTORS, BASELINE) > 0.01).any()
    fine = integrated_gradients(steep, VECTORS, BASELINE)
    assert (completeness_error(fine, steep, VECTORS, BASELINE) < 0.01).all()
    plain = gradient_times_input(curved, VECTORS, BASELINE)
    assert (completeness_error(plain, curved, VECTORS, BASELINE) > 0.01).any()


def test_rollout_of_two_layers_by_hand():
    first, second = np.array([[0.0, 1], [1, 0]]), np.array([[1.0, 0], [0.5, 0.5]])
    found = rollout(jnp.asarray(np.stack([first, second]), jnp.float32))
    # (second + I) / 2 = [[1, 0], [0.25, 0.75]] after (first + I) / 2 = [[0.5, 0.5], [0.5, 0.5]].
    np.testing.assert_allclose(found, [[0.5, 0.5], [0.5, 0.5]])
    found = rollout(jnp.asarray(second[None], jnp.float32))
    np.testing.assert_allclose(found, [[1, 0], [0.25, 0.75]])


def test_deletion_of_the_largest_first():
    def score(vectors):
        return jnp.stack([vectors.sum()])

    vectors = jnp.array([[4.0], [2], [1]])
    drops = deletion_drops(score, vectors, jnp.zeros((3, 1)), jnp.array([[9.0, 5, 1]]), most=2)
    np.testing.assert_allclose(drops, [[4, 6]])
    drops = deletion_drops(score, vectors, jnp.zeros((3, 1)), jnp.array([[-jnp.inf, 1, 5]]), most=2)
    np.testing.assert_allclose(drops, [[1, 3]])


def test_rank_correlation():
    assert rank_correlations(np.array([[1, 2, 3]]), np.array([[10, 20, 90]])) == [1]
    assert rank_correlations(np.array([[1, 2, 3]]), np.array([[3, 2, 1]])) == [-1]
    # Ranks 1.5, 1.5, 3 and 1, 2, 3.
    found = rank_correlations(np.array([[0, 0, 1]]), np.array([[1, 2, 3]]))
    assert found == pytest.approx([1.5 / np.sqrt(1.5 * 2)])
    assert np.isnan(rank_correlations(np.ones((1, 3)), np.array([[1, 2, 3]]))).all()
