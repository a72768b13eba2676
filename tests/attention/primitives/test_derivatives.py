"""Derivatives in both modes and their compositions, against finite differences in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention import Dropout, attend, masks
from tests.attention.primitives.inputs import CAUSAL, DIMS, POSITIONS, S, T, query_key_value

EMPTY_ROW = CAUSAL & (np.arange(T) != 2)[:, None]


@jax.jit
def everything(query, key, value, mask, scale):
    output, extras = attend(
        query, key, value, mask=mask, scale=scale, returning=("weights", "logsumexp")
    )
    # An empty row has logsumexp -inf, of which finite differences know nothing.
    logsumexp = extras["logsumexp"]
    return output, extras["weights"], jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)


@pytest.mark.parametrize(
    "mask",
    [np.ones((T, S), bool), CAUSAL, EMPTY_ROW],
    ids=["everything", "causal", "with an empty row"],
)
def test_first_and_second_derivatives_are_finite_differences(float64, mask):
    """Of output, weights and logsumexp, for query, key, value and a learned scale."""
    query, key, value = query_key_value(dtype="float64")

    def function(query, key, value, scale):
        return everything(query, key, value, jnp.asarray(mask), scale)

    check_grads(function, (query, key, value, jnp.float64(0.4)), order=2, modes=("fwd", "rev"))


def test_derivatives_of_attention_with_dropout_for_a_batch(float64):
    inputs = query_key_value(DIMS["B"], "float64")
    dropout = Dropout(jax.random.split(jax.random.key(0), 2), 0.4)

    @jax.jit
    def function(query, key, value):
        return attend(query, key, value, mask=masks.causal(), positions=POSITIONS, dropout=dropout)

    check_grads(function, inputs, order=1, modes=("fwd", "rev"))


def test_forward_and_reverse_mode_compose_in_every_order(float64):
    """One number, four roads: forward or reverse over forward or reverse."""
    inputs = query_key_value(dtype="float64", seed=0)
    directions = [query_key_value(dtype="float64", seed=seed) for seed in (1, 2)]

    def loss(inputs):
        return jnp.sum(attend(*inputs, mask=masks.causal(), positions=POSITIONS) ** 3)

    def forward(function, direction):
        return lambda at: jax.jvp(function, (at,), (direction,))[1]

    def reverse(function, direction):
        return lambda at: sum(
            jnp.vdot(gradient, along)
            for gradient, along in zip(jax.grad(function)(at), direction, strict=True)
        )

    roads = [
        jax.jit(outer(inner(loss, directions[0]), directions[1]))(inputs)
        for outer in (forward, reverse)
        for inner in (forward, reverse)
    ]
    np.testing.assert_allclose(roads, roads[0], rtol=1e-10)
    assert abs(roads[0]) > 1e-3


def test_the_gradient_of_a_batch_is_the_gradients_of_its_examples():
    batch = query_key_value((3,))

    def loss(*inputs):
        return jnp.sum(attend(*inputs, mask=masks.causal(), positions=POSITIONS) ** 2)

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    together = jax.jit(gradient)(*batch)
    one_by_one = jax.jit(jax.vmap(gradient))(*batch)
    chex.assert_trees_all_close(together, one_by_one, rtol=1e-5, atol=1e-5)


def test_a_gradient_has_the_dtype_of_its_input():
    inputs = query_key_value(dtype="bfloat16")
    gradients = jax.grad(lambda *inputs: attend(*inputs).sum(), argnums=(0, 1, 2))(*inputs)
    assert {gradient.dtype for gradient in gradients} == {jnp.dtype("bfloat16")}


def test_the_gradient_of_logsumexp_is_the_weights(float64):
    """Of one head of width one: ∂ logsumexp(t) / ∂ key(s) = scale · query(t) · weights(t, s)."""
    query, key, value = query_key_value(dtype="float64")
    query, key, value = query[:, :1, :1], key[:, :1, :1], value[:, :1, :1]

    def logsumexp(key):
        return attend(query, key, value, returning=("logsumexp",))[1]["logsumexp"][0]

    jacobian = jax.jacobian(logsumexp)(key)[:, :, 0, 0]
    _, extras = attend(query, key, value, returning=("weights",))
    np.testing.assert_allclose(jacobian, query[:, :, 0] * extras["weights"][0], rtol=1e-12)
