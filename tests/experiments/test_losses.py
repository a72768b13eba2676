"""The losses against optax and by hand, padding that counts nowhere, and tiles of logits."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from experiments.config.parts import MeshPart
from experiments.errors import UsageError
from experiments.losses import (
    cross_entropy,
    negative_sampling_losses,
    objective,
    per_token,
    tiled_token_losses,
    token_losses,
)
from experiments.sharding import constrain, make_mesh
from tests.attention.primitives.inputs import draw, jitted

B, T, V = 2, 5, 7
SMOOTHED = partial(cross_entropy, label_smoothing=0.1)
LOGITS = 3 * draw((B, T, V))[0]
LABELS = np.random.default_rng(1).integers(0, V, (B, T), dtype=np.int32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_it_is_the_cross_entropy_against_smoothed_labels(smoothing):
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, V), smoothing)
    expected = optax.softmax_cross_entropy(LOGITS, targets)
    np.testing.assert_allclose(cross_entropy(LOGITS, LABELS, smoothing), expected, rtol=1e-5)


def test_loss_that_is_no_loss_of_each_token_is_named():
    def mean(logits, labels):
        return cross_entropy(logits, labels).mean()

    with pytest.raises(UsageError, match=r"'mean' must return .* of shape \(2, 5\) .* shape \(\)"):
        jax.eval_shape(partial(token_losses, loss=partial(mean)), LOGITS, LABELS, LABELS > 0)


def test_z_loss_by_hand():
    """Scores ln 1, ln 2, ln 5 are probabilities 1/8, 2/8, 5/8."""
    found = cross_entropy(jnp.log(jnp.array([1.0, 2.0, 5.0])), jnp.int32(1), z_loss=0.5)
    np.testing.assert_allclose(found, np.log(4) + 0.5 * np.log(8) ** 2, rtol=1e-6)


def test_label_smoothing_and_z_loss_are_of_the_config_in_training_alone():
    def focal(logits, labels, epsilon=2.0, label_smoothing=0.0):
        return jnp.full(labels.shape, epsilon + label_smoothing)

    def normalizing(logits, labels, z_loss=0.0):
        return jnp.full(labels.shape, z_loss)

    train = ConfigDict({"label_smoothing": 0.25, "z_loss": 0.5, "epsilon": 1e-9})
    for loss, learned, measured in ((focal, 2.25, 2.0), (normalizing, 0.5, 0.0)):
        for training, expected in ((True, learned), (False, measured)):
            found = objective(loss, train, training=training)
            assert found(LOGITS, LABELS, jnp.ones((B, T), bool)).loss == expected * B * T
    plain = objective(focal, ConfigDict(), training=True)  # of a plugin without these fields
    assert plain(LOGITS, LABELS, jnp.ones((B, T), bool)).loss == 2.0 * B * T


def test_a_tie_is_not_correct():
    logits = jnp.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [3.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    assert token_losses(logits, jnp.array([0, 1, 2, 1]), jnp.ones(4, bool)).correct == 1


def test_padding_counts_in_no_sum_and_no_gradient():
    """NaN at padding reaches neither."""
    counts = np.arange(T)[None, :] < np.array([[3], [5]])
    poisoned = np.where(counts[..., None], LOGITS, np.float32(np.nan))
    losses = jitted(partial(token_losses, loss=SMOOTHED))
    clean = losses(LOGITS[:1, :3], LABELS[:1, :3], np.ones((1, 3), bool))
    other = losses(LOGITS[1:], LABELS[1:], np.ones((1, T), bool))
    together = losses(poisoned, LABELS, counts)
    chex.assert_trees_all_close(jax.tree.map(np.add, clean, other), together, rtol=1e-6)
    gradient = jitted(jax.grad(lambda logits: losses(logits, LABELS, counts).loss))(LOGITS)
    assert not gradient[~counts].any()


def test_means_are_per_token_and_an_empty_batch_is_zero():
    sums = token_losses(LOGITS, LABELS, jnp.ones((B, T), bool))
    loss, accuracy = cross_entropy(LOGITS, LABELS).mean(), (LOGITS.argmax(axis=-1) == LABELS).mean()
    expected = {"loss": loss, "nll": loss, "accuracy": accuracy, "tokens": B * T}
    chex.assert_trees_all_close(per_token(sums), expected, rtol=1e-6)
    nothing = per_token(token_losses(LOGITS, LABELS, jnp.zeros((B, T), bool)))
    assert not any(float(value) for value in nothing.values())


def test_loss_of_skip_grams_by_hand():
    """Scores ln 3 and -ln 3 are probabilities 3/4 and 1/4 of a neighbour."""
    log3 = np.log(3)
    scores = jnp.array([[log3, -log3, log3], [log3, -log3, -log3], [-1e4, 1e4, 1e4]])
    sums = negative_sampling_losses(scores, jnp.array([True, True, False]))
    np.testing.assert_allclose(sums.loss, 5 * np.log(4 / 3) + np.log(4), rtol=1e-6)
    assert sums.nll == sums.loss
    assert (sums.correct, sums.tokens) == (1, 2)


D, WORDS = 5, 11
HEAD = dict(zip(("table", "bias"), draw((WORDS, D), (WORDS,)), strict=True))
OBJECTIVE = partial(token_losses, loss=partial(SMOOTHED, z_loss=0.01))


def tiled_loss(head, features, tile, labels, counts, mesh=None):
    """Return the mean loss and the sums, of a model that scores words by products and a bias."""
    if mesh:
        features = constrain(mesh, features, ("batch", "sequence", "embed"))

    def logits(features):
        scores = jnp.einsum("...D,VD->...V", features, head["table"])
        return scores + jnp.broadcast_to(head["bias"], scores.shape)

    sums = tiled_token_losses(logits, features, labels, counts, OBJECTIVE, tile=tile)
    return sums.loss / sums.tokens, sums


@pytest.mark.parametrize("tile", [1, 5 * WORDS, 7 * WORDS])
def test_loss_and_gradients_do_not_depend_on_the_tile_size(tile):
    """One token at a time, tiles that are not all full, tiles that are; padding has no gradient."""
    features, labels = draw((3, 7, D))[0], np.arange(21).reshape(3, 7) % WORDS
    counts = labels % 4 > 0
    program = jax.jit(jax.value_and_grad(tiled_loss, (0, 1), has_aux=True), static_argnums=2)
    expected, result = (program(HEAD, features, size, labels, counts) for size in (10**6, tile))
    chex.assert_trees_all_close(result, expected, rtol=1e-5, atol=1e-6)
    assert not result[1][1][~counts].any()
    measured = jax.jit(tiled_loss, static_argnums=2)(HEAD, features, tile, labels, counts)
    chex.assert_trees_all_close(measured, expected[0], rtol=1e-5)


@pytest.mark.parametrize("sizes", [{"data": 2}, {"sequence": 2}, {"tensor": 2}, {"fsdp": 2}])
def test_devices_compute_tiles_of_their_own_tokens(sizes):
    """Tiles of four tokens; the gradient of the head is added up once, not for each tile."""
    mesh = make_mesh(MeshPart(**{"data": 1, **sizes}))
    labels = np.arange(24).reshape(4, 6) % WORDS
    arguments = HEAD, draw((4, 6, D))[0]

    def program(tile, mesh):
        loss = partial(tiled_loss, tile=tile, labels=labels, counts=labels > 0, mesh=mesh)
        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))

    tiles = program(4 * WORDS, mesh)
    found, expected = jax.device_get((tiles(*arguments), program(10**6, None)(*arguments)))
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)
    text = tiles.lower(*arguments).compile().as_text()
    assert text.count(" while(") == 1
    assert "tensor" in sizes or text.count(" all-reduce(") == 1


def test_tiles_take_less_than_half_the_memory_of_all_logits_and_no_second_pass():
    """4,096 tokens of a vocabulary of 10,000: the logits take 156 MiB."""
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((10_000, 128), (4_096, 128))]
    labels = jnp.zeros(4_096, jnp.int32)

    def loss(tile, table, features):
        arguments = features, labels, labels == 0
        return tiled_token_losses(lambda x: x @ table.T, *arguments, tile=tile).loss

    def compiled(function):
        return jax.jit(function).lower(*arrays).compile()

    tiles, whole = (compiled(jax.grad(partial(loss, tile), (0, 1))) for tile in (2**22, 10**9))
    memory = [program.memory_analysis().temp_size_in_bytes for program in (tiles, whole)]
    assert memory[0] < memory[1] / 2
    measured = compiled(partial(loss, 2**22)).as_text()
    assert measured.count(" dot(") == 1  # the gradients are not computed
    assert tiles.as_text().count(" dot(") == 3


def test_narrow_head_is_added_up_in_float32():
    """In bfloat16, a sum stops growing once it is 256 times what is added."""
    number = 2_048
    features, labels = jnp.ones((number, D), jnp.bfloat16), jnp.zeros(number, jnp.int32)

    def loss(table, tile):
        arguments = features, labels, labels == 0
        return tiled_token_losses(lambda x: x @ table.T, *arguments, tile=tile).loss

    table = jnp.zeros((WORDS, D), jnp.bfloat16)
    slopes = [jax.jit(jax.grad(loss), static_argnums=1)(table, t) for t in (4 * WORDS, 10**6)]
    assert slopes[0].dtype == jnp.bfloat16
    chex.assert_trees_all_close(*(slope.astype("float32") for slope in slopes), rtol=0.01)
