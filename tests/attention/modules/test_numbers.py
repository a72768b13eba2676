"""Numbers out of range are refused where they are given."""

import math
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

from attention.modules import (
    Embedding,
    LearnedPositions,
    PatchEmbedding,
    RecurrentConfig,
    Rotary,
    drop,
    layer_norm,
    linear,
    lora_factors,
    rms_norm,
)
from attention.modules.numbers import check_number, check_rate

embedding = partial(Embedding, 5, 4, rngs=nnx.Rngs(0))
patches = partial(PatchEmbedding, 4, image_shape=(4, 4, 1), patch_size=2, rngs=nnx.Rngs(0))
positions = partial(LearnedPositions, 5, 4, rngs=nnx.Rngs(0))
factors = partial(lora_factors, {"a": np.ones((2, 2))}, "a", rank=1, rng=jax.random.key(0))
RATES = {
    "drop": lambda dropout: drop(np.ones(3, np.float32), dropout, jax.random.key(0)),
    "embedding": embedding,
    "patches": patches,
    "recurrent": RecurrentConfig,
}
NUMBERS = {
    "scale of embeddings": (lambda x: embedding(scale=x), "scale", "above 0"),
    "scale of positions": (lambda x: positions(scale=x), "scale", "above 0"),
    "logit_scale": (lambda x: embedding(logit_scale=x), "logit_scale", "above 0"),
    "logit_softcap": (lambda x: embedding(logit_softcap=x), "logit_softcap", "above 0"),
    "alpha": (lambda x: factors(alpha=x), "alpha", "above 0"),
    "layer norm": (lambda x: layer_norm(4, epsilon=x, rngs=None), "epsilon", "at least 0"),
    "rms norm": (lambda x: rms_norm(4, epsilon=x, rngs=None), "epsilon", "at least 0"),
    "base": (lambda x: Rotary(base=x), "rotary.base", "at least 1"),
    "factor": (lambda x: Rotary(factor=x, scaling="ntk"), "rotary.factor", "at least 1"),
}


@pytest.mark.parametrize("rate", [-1.0, 1.0, 1.5, math.nan])
@pytest.mark.parametrize("name", RATES)
def test_rates_outside_0_to_1(name, rate):
    with pytest.raises(ValueError, match=rf"^(dropout|rate) must be in \[0, 1\), got {rate}$"):
        RATES[name](dropout=rate)


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_not_finite_or_below_their_bound(name, value):
    make, argument, bound = NUMBERS[name]
    if value == 0 and bound == "at least 0":
        make(value)
        return
    with pytest.raises(
        ValueError, match=f"^{argument} must be (finite and )?{bound}, got {value}$"
    ):
        make(value)


@pytest.mark.parametrize("dtype", ["int8", "float61"])
@pytest.mark.parametrize("make", [embedding, partial(layer_norm, 4), partial(linear, {}, {})])
def test_dtypes_that_are_not_floating(make, dtype):
    with pytest.raises(ValueError, match=f"^dtype must be a floating dtype, .* got '{dtype}'$"):
        make(dtype=dtype, rngs=nnx.Rngs(0))


def test_none_and_traced_numbers_pass():
    check_number("bound", None, above=0)
    jax.jit(lambda x: [check_rate("rate", x), check_number("bound", x, at_least=0)])(-1.0)
