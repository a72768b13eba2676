"""The loss against optax, its KL form, and padding that counts nowhere."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads
from ml_collections import ConfigDict

from experiments.errors import UsageError
from experiments.losses import (
    add_auxiliary,
    cross_entropy,
    objective,
    per_token,
    token_losses,
)
from tests.attention.primitives.inputs import draw, jitted

B, T, V = 2, 5, 7
SMOOTHED = partial(cross_entropy, label_smoothing=0.1)
LOGITS = 3 * draw((B, T, V))[0]
LABELS = np.random.default_rng(1).integers(0, V, (B, T), dtype=np.int32)


def smoothed_targets(smoothing):
    return optax.smooth_labels(jax.nn.one_hot(LABELS, V), smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_it_is_the_cross_entropy_against_smoothed_labels(smoothing):
    expected = optax.softmax_cross_entropy(LOGITS, smoothed_targets(smoothing))
    ours = cross_entropy(LOGITS, LABELS, smoothing)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_a_loss_that_is_no_loss_of_each_token_is_named():
    def mean(logits, labels):
        return cross_entropy(logits, labels).mean()

    with pytest.raises(UsageError, match=r"'mean' must return .* of shape \(2, 5\) .* shape \(\)"):
        jax.eval_shape(partial(token_losses, loss=partial(mean)), LOGITS, LABELS, LABELS > 0)


@pytest.mark.parametrize("smoothing", [0.1, 0.7])
def test_it_is_a_kl_divergence_and_an_entropy_that_no_model_can_change(smoothing):
    targets = smoothed_targets(smoothing)
    divergence = optax.losses.kl_divergence(jax.nn.log_softmax(LOGITS), targets)
    entropy = -(targets * jnp.log(targets)).sum(axis=-1)
    ours = cross_entropy(LOGITS, LABELS, smoothing)
    np.testing.assert_allclose(ours, divergence + entropy, rtol=1e-5)


def test_a_loss_by_hand():
    """Scores ln 1, ln 2, ln 5 are probabilities 1/8, 2/8, 5/8."""
    logits = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(cross_entropy(logits, jnp.int32(1), 0.0), np.log(4), rtol=1e-6)
    smoothed = 0.7 * np.log(4) + 0.1 * (np.log(8) + np.log(4) + np.log(8 / 5))
    np.testing.assert_allclose(cross_entropy(logits, jnp.int32(1), 0.3), smoothed, rtol=1e-6)


def test_a_z_loss_is_the_square_of_the_normalizer():
    """By hand: scores ln 1, ln 2, ln 5 have the sum 8 before they are normalized."""
    logits = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    found = cross_entropy(logits, jnp.int32(1), z_loss=0.5)
    np.testing.assert_allclose(found, np.log(4) + 0.5 * np.log(8) ** 2, rtol=1e-6)


def test_derivatives_in_jit_and_in_scan():
    """In jit, in a scan and rematerialized, forwards and twice: as the same sum written plainly."""

    def plain(logits, labels):
        targets = optax.smooth_labels(jax.nn.one_hot(labels, V), 0.1)
        return optax.softmax_cross_entropy(logits, targets).sum()

    def summed(logits, labels):
        return SMOOTHED(logits, labels).sum()

    def scanned(logits, labels):
        add = jax.checkpoint(lambda total, row: (total + summed(*row), None))
        return jax.lax.scan(add, 0.0, (logits, labels))[0]

    @jax.jit
    def derivatives(function, logits, labels):
        along = jnp.cos(logits)
        slope = jax.grad(function)
        forwards = jax.jvp(lambda logits: function(logits, labels), (logits,), (along,))
        _, curved = jax.jvp(lambda logits: slope(logits, labels), (logits,), (along,))
        return slope(logits, labels), forwards, curved

    expected = derivatives(jax.tree_util.Partial(plain), LOGITS, LABELS)
    for function in (jax.jit(summed), scanned):
        found = derivatives(jax.tree_util.Partial(function), LOGITS, LABELS)
        chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)
    outside = jax.grad(jax.jit(summed))(LOGITS, LABELS)
    np.testing.assert_allclose(outside, expected[0], rtol=1e-4, atol=1e-5)


def test_measured_loss_has_no_smoothing_and_no_z_loss():
    train = ConfigDict({"label_smoothing": 0.1, "z_loss": 0.5})
    learned, measured = (
        objective(cross_entropy, train, training=training)(LOGITS, LABELS, jnp.ones((B, T), bool))
        for training in (True, False)
    )
    assert measured.loss == measured.nll == learned.nll != learned.loss


def test_registered_loss_takes_only_label_smoothing_and_z_loss_from_the_config():
    def focal(logits, labels, epsilon=2.0, label_smoothing=0.0):
        return jnp.full(labels.shape, epsilon + label_smoothing)

    train = ConfigDict({"label_smoothing": 0.25, "z_loss": 0.5, "epsilon": 1e-9})
    for training, expected in ((True, 2.25), (False, 2.0)):
        found = objective(focal, train, training=training)
        assert found(LOGITS, LABELS, jnp.ones((B, T), bool)).loss == expected * B * T


def test_a_tie_is_not_correct():
    logits = jnp.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [3.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    assert token_losses(logits, jnp.array([0, 1, 2, 1]), jnp.ones(4, bool)).correct == 1


def test_gradient_is_that_of_finite_differences():
    check_grads(lambda logits: cross_entropy(logits, LABELS, 0.1).sum(), (LOGITS,), 1, rtol=1e-2)


def test_padding_counts_in_no_sum_and_no_gradient():
    counts = np.arange(T)[None, :] < np.array([[3], [5]])
    poisoned = np.where(counts[..., None], LOGITS, np.float32(np.nan))
    losses = jitted(partial(token_losses, loss=SMOOTHED))
    clean = losses(LOGITS[:1, :3], LABELS[:1, :3], np.ones((1, 3), bool))
    other = losses(LOGITS[1:], LABELS[1:], np.ones((1, T), bool))
    together = losses(poisoned, LABELS, counts)
    total = jax.tree.map(np.add, clean, other)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), total, together)
    gradient = jitted(jax.grad(lambda logits: losses(logits, LABELS, counts).loss))(LOGITS)
    assert not gradient[~counts].any()


def test_means_are_per_token_and_an_empty_batch_is_zero():
    sums = token_losses(LOGITS, LABELS, jnp.ones((B, T), bool))
    means = per_token(sums)
    np.testing.assert_allclose(means["loss"], cross_entropy(LOGITS, LABELS, 0.0).mean())
    np.testing.assert_allclose(means["loss"], means["nll"])
    expected = (LOGITS.argmax(axis=-1) == LABELS).mean()
    np.testing.assert_allclose(means["accuracy"], expected)
    nothing = per_token(token_losses(LOGITS, LABELS, jnp.zeros((B, T), bool)))
    assert not any(float(value) for value in nothing.values())


@pytest.mark.parametrize("to_objective", [True, False])
def test_auxiliary_losses_are_added_per_token(to_objective):
    counts = jnp.ones((B, T), bool)
    sums = token_losses(LOGITS, LABELS, counts)
    found = add_auxiliary(sums, {"balance": jnp.float32(0.25)}, to_objective=to_objective)
    both, plain = (per_token(jax.tree.map(jnp.add, each, each)) for each in (found, sums))
    assert both["balance"] == 0.25
    added = 0.25 if to_objective else 0.0
    np.testing.assert_allclose(both["loss"], plain["loss"] + added, rtol=1e-6)
    assert both["nll"] == plain["nll"]
