"""Tiny tasks, a training loop and a test of caches that the architectures have in common."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attention.decoding import generate
from tests.attention.modules.inputs import filled

VOCAB, START = 12, 11  # the tokens of the task are 0 to 10
PROMPT = 4  # tokens


def counting(rows=12, length=12):
    """Return sequences that count up in steps of 1 to 3, modulo 11: int32 `[rows, length]`."""
    row, column = np.indices((rows, length), np.int32)
    return (row + (1 + row % 3) * column) % START


def bright_quadrants(rows=32, size=8):
    """Return noisy images `[rows, size, size, 1]`, and the number of the bright quadrant."""
    labels = np.arange(rows, dtype=np.int32) % 4
    bright = np.eye(4, dtype=np.float32)[labels].reshape(rows, 2, 2)
    bright = bright.repeat(size // 2, axis=1).repeat(size // 2, axis=2)
    noise = np.random.default_rng(2).normal(size=bright.shape).astype(np.float32)
    return (bright + noise / 2)[..., None], labels


def cross_entropy(output, labels):
    """Return the mean over all labels plus a hundredth of the losses of the layers."""
    each = optax.softmax_cross_entropy_with_integer_labels(output.logits, labels)
    return each.mean() + 0.01 * sum(output.losses.values())


def next_token_loss(model, rng, tokens):
    return cross_entropy(model(tokens[:, :-1], rng=rng), tokens[:, 1:])


def translation_loss(model, rng, source, target):
    return cross_entropy(model(source, shifted(target), rng=rng), target)


def classification_loss(model, rng, inputs, labels):
    return cross_entropy(model(inputs, rng=rng), labels)


def shifted(target):
    """Return the inputs of a decoder `[B, T]`: the start token and all but the last target."""
    return jnp.concatenate([jnp.full_like(target[:, :1], START), target[:, :-1]], axis=1)


def train(make_model, loss, *data, steps=60, learning_rate=1e-2):
    """Return `make_model(rngs)` after some steps of Adam on `loss(model, rng, *data)`.

    The loss must fall to a quarter. The first parameters are made by NumPy: to compile their
    initialization takes as long as to compile a layer.
    """
    optimizer = optax.flatten(optax.adam(learning_rate))  # one array compiles faster than many

    def step(carry, rng):
        model, state = carry
        value, gradients = jax.value_and_grad(loss)(model, rng, *data)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, state = optimizer.update(gradients, state)
        return (optax.apply_updates(model, updates), state), value

    @jax.jit
    def run(model):
        keys = jax.random.split(jax.random.key(1), steps)
        (model, _), losses = jax.lax.scan(step, (model, optimizer.init(model)), keys)
        return model, losses

    model, losses = run(filled(lambda: make_model(nnx.Rngs(0))))
    assert losses[-1] < losses[0] / 4
    return model


def check_decoding(model, tokens):
    """Check that prompts are continued correctly, with the logits of a full pass.

    Half of the prompts are one token shorter than the others.
    """
    lengths = PROMPT - np.arange(len(tokens), dtype=np.int32) % 2
    rest = np.add.outer(lengths - 1, np.arange(tokens.shape[1] - PROMPT))  # positions
    answer = generate(
        model,
        tokens[:, :PROMPT],
        lengths=lengths,
        max_tokens=rest.shape[1],
        observe=lambda output: output.logits,
    )
    np.testing.assert_array_equal(answer.tokens, np.take_along_axis(tokens, rest + 1, axis=1))
    full = np.asarray(jax.jit(lambda model: model(tokens).logits)(model))
    full = np.take_along_axis(full, rest[..., None], axis=1)
    chex.assert_trees_all_close(np.asarray(answer.observed), full, rtol=1e-4, atol=1e-4)


def check_translation(model, source, target):
    """Check that sources are translated correctly, with the logits of a full pass."""
    given = {"start": START, "max_tokens": target.shape[1]}
    answer = generate(model, source, **given, observe=lambda output: output.logits)
    np.testing.assert_array_equal(answer.tokens, target)
    full = jax.jit(lambda model: model(source, shifted(target)).logits)(model)
    chex.assert_trees_all_close(answer.observed, full, rtol=1e-4, atol=1e-4)
