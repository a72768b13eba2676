"""A tiny task and a training loop that the architectures have in common."""

import jax
import numpy as np
import optax
from flax import nnx

from tests.attention.modules.inputs import filled

VOCAB, START = 12, 11  # the tokens of the task are 0 to 10


def counting(rows=12, length=12):
    """Return sequences that count up in steps of 1 to 3, modulo 11: int32 `[rows, length]`."""
    row, column = np.indices((rows, length), np.int32)
    return (row + (1 + row % 3) * column) % START


def cross_entropy(output, labels):
    """Return the mean over all labels plus a hundredth of the losses of the layers."""
    each = optax.softmax_cross_entropy_with_integer_labels(output.logits, labels)
    return each.mean() + 0.01 * sum(output.losses.values())


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
