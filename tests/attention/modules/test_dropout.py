"""Rate, independence and gradient of dropout, and where models have it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.modules.layers import drop
from tests.attention.modules.inputs import (
    B,
    S,
    T,
    call,
    classifier,
    language_model,
    masked_language_model,
    small_translator,
    tokens,
)
from tests.attention.primitives.inputs import jitted

RATE = 0.3
RNG = jax.random.key(0)
ONES = np.ones((7, 111, 101), np.float32)
run = jitted(drop, static_argnums=1)


def test_rate_in_rows_and_columns():
    dropped = run(ONES, RATE, RNG) == 0
    for axes in ((0, 1, 2), (0, 1), (0, 2)):
        shares = dropped.mean(axis=axes)
        deviation = np.sqrt(RATE * (1 - RATE) / (dropped.size / shares.size))
        assert np.abs(shares - RATE).max() < 5 * deviation


def test_kept_entries_are_scaled_in_their_dtype():
    kept = run(ONES.astype(jnp.bfloat16), RATE, RNG)
    assert kept.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.unique(kept), np.array([0, 1 / (1 - RATE)], jnp.bfloat16))


def test_neighbours_rows_and_keys_are_independent():
    first, second = (run(ONES, RATE, jax.random.key(seed)) == 0 for seed in (0, 1))
    for one, other in (
        (first, second),
        (first[:, 1:], first[:, :-1]),
        (first[..., 1:], first[..., :-1]),
    ):
        both = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(both) < 5 / np.sqrt(one.size)


def test_vmap_over_keys():
    keys = jax.random.split(RNG, 3)
    inputs = np.ones((3, 5, 4), np.float32)
    together = jitted(jax.vmap(lambda inputs, rng: drop(inputs, RATE, rng)))(inputs, keys)
    apart = [run(each, RATE, rng) for each, rng in zip(inputs, keys, strict=True)]
    np.testing.assert_array_equal(together, apart)
    with pytest.raises(ValueError, match="drop takes one key, got \\(3,\\) of them"):
        drop(inputs, RATE, keys)


def test_dropped_nan_has_no_effect_and_no_gradient():
    gradient = jitted(jax.grad(lambda inputs: drop(inputs, RATE, RNG).sum()))
    dropped = run(ONES, RATE, RNG) == 0
    with_nan = np.where(dropped, np.float32(np.nan), ONES)
    np.testing.assert_array_equal(run(with_nan, RATE, RNG), run(ONES, RATE, RNG))
    np.testing.assert_allclose(gradient(with_nan), np.where(dropped, 0, 1 / (1 - RATE)))


MODELS = {
    "translator": (small_translator, (tokens(B, S), tokens(B, T))),
    "language model": (language_model, (tokens(B, T),)),
    "masked language model": (masked_language_model, (tokens(B, T),)),
    "classifier": (classifier, (tokens(B, T),)),
}
# Without layers only the embeddings have dropout.
PLACES = {
    "embeddings": {"dropout": 0.5, "encoder_layers": 0, "decoder_layers": 0},
    "layers": {"attention_dropout": 0.5},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MODELS)
def test_an_rng_turns_the_dropout_of_a_model_on(name, place):
    make, inputs = MODELS[name]
    changes = PLACES[place]
    model, never = make(**changes), make(**changes | {"dropout": 0.0, "attention_dropout": 0.0})
    plain = call(never, *inputs).logits
    np.testing.assert_array_equal(call(model, *inputs).logits, plain)
    first, again, other = (
        call(model, *inputs, rng=jax.random.key(seed)).logits for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, plain, atol=1e-2)
    assert not np.allclose(first, other, atol=1e-2)
