import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis.attribution import (
    METHODS,
    RANDOM,
    agreement_table,
    deletion_drops,
    gradient_times_input,
    integrated_gradients,
    occlusion,
    rank_correlations,
    rollout,
)

GENERATOR = np.random.default_rng(0)
WEIGHTS = jnp.asarray(GENERATOR.normal(size=(2, 3, 4)), jnp.float32)  # [T, S, D]
VECTORS, BASELINE = (jnp.asarray(GENERATOR.normal(size=(3, 4)), jnp.float32) for _ in range(2))


def linear(vectors):
    return jnp.einsum("tsd,sd->t", WEIGHTS, vectors)


def test_methods_agree_on_a_linear_score():
    expected = jnp.einsum("tsd,sd->ts", WEIGHTS, VECTORS - BASELINE)
    for method in (occlusion, gradient_times_input, integrated_gradients):
        attributions = method(linear, VECTORS, BASELINE)
        np.testing.assert_allclose(attributions, expected, rtol=1e-4, atol=1e-5)


def test_integrated_gradients_sum_to_the_difference_of_scores():
    def curved(vectors):
        return jnp.tanh(3 * linear(vectors)) * vectors.sum()

    integrated = integrated_gradients(curved, VECTORS, BASELINE)
    difference = curved(VECTORS) - curved(BASELINE)
    np.testing.assert_allclose(integrated.sum(axis=-1), difference, rtol=0.01)


def test_rollout_of_two_layers_by_hand():
    first, second = np.array([[0.0, 1], [1, 0]]), np.array([[1.0, 0], [0.5, 0.5]])
    # (second + I) / 2 = [[1, 0], [0.25, 0.75]] after (first + I) / 2 = [[0.5, 0.5], [0.5, 0.5]].
    np.testing.assert_allclose(rollout(np.stack([first, second])), [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("attributions", "drops"),
    [([9.0, 5, 1], [4, 6, 7, 7, 7]), ([-jnp.inf, 1, 5], [1, 3, 3, 3, 3])],
)
def test_deletion_of_the_largest_first(attributions, drops):
    vectors = jnp.array([[4.0], [2], [1]])
    lost = deletion_drops(lambda x: x.sum(0), vectors, 0 * vectors, jnp.array([attributions]))
    np.testing.assert_allclose(lost, [drops])


def test_agreement_of_equal_maps():
    # Two sentences: rows are the target tokens, columns the source words and the end.
    maps = [np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.9]]), np.array([[0.1, 0.8, 0.1, 0.9]])]
    drops = [np.array([0.5, 1.5]), np.array([4.0])]
    names = (*METHODS, "attention")
    explained = [
        (dict.fromkeys(names, values), dict.fromkeys((*names, RANDOM), drop))
        for values, drop in zip(maps, drops, strict=True)
    ]
    *rows, random = agreement_table(explained)
    assert [row["map"] for row in rows] == [*names]
    assert [row[f"rank correlation with {METHODS[0]}"] for row in rows] == pytest.approx([1] * 4)
    assert random["map"] == RANDOM and random["drop by deletion, nats"] == 2
    # Ranks 1.5, 1.5, 3 and 1, 2, 3.
    correlation = rank_correlations(np.array([[0, 0, 1]]), np.array([[1, 2, 3]]))
    assert correlation == pytest.approx([1.5 / np.sqrt(1.5 * 2)])
    assert np.isnan(rank_correlations(np.ones((1, 3)), np.array([[1, 2, 3]]))).all()
