"""Derivatives in both modes and their compositions, against finite differences in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attention import Dropout, attend, masks
from tests.attention.primitives.inputs import CAUSAL, DIMS, POSITIONS, S, T, query_key_value

MASKED_ROW = CAUSAL & (np.arange(T) != 2)[:, None]


@jax.jit
def all_results(query, key, value, mask, scale):
    output, extras = attend(
        query, key, value, mask=mask, scale=scale, returning=("weights", "logsumexp")
    )
    # A fully masked row has logsumexp -inf, which has no finite difference.
    logsumexp = extras["logsumexp"]
    return output, extras["weights"], jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)


@pytest.mark.parametrize(
    "mask",
    [np.ones((T, S), bool), CAUSAL, MASKED_ROW],
    ids=["all pairs", "causal", "with a fully masked row"],
)
def test_first_and_second_derivatives_equal_finite_differences(float64, mask):
    """Derivatives of output, weights and logsumexp by query, key, value and a learned scale."""
    query, key, value = query_key_value(dtype="float64")

    def function(query, key, value, scale):
        return all_results(query, key, value, jnp.asarray(mask), scale)

    check_grads(function, (query, key, value, jnp.float64(0.4)), order=2, modes=("fwd", "rev"))


def test_derivatives_of_a_batch_with_dropout(float64):
    inputs = query_key_value(DIMS["B"], "float64")
    dropout = Dropout(jax.random.split(jax.random.key(0), 2), 0.4)

    @jax.jit
    def function(query, key, value):
        return attend(query, key, value, mask=masks.causal(), positions=POSITIONS, dropout=dropout)

    check_grads(function, inputs, order=1, modes=("fwd", "rev"))


def test_forward_and_reverse_mode_compose_in_any_order(float64):
    """The second directional derivative, by forward or reverse over forward or reverse mode."""
    inputs = query_key_value(dtype="float64", seed=0)
    directions = [query_key_value(dtype="float64", seed=seed) for seed in (1, 2)]

    def loss(inputs):
        return jnp.sum(attend(*inputs, mask=masks.causal(), positions=POSITIONS) ** 3)

    def forward(function, direction):
        return lambda inputs: jax.jvp(function, (inputs,), (direction,))[1]

    def reverse(function, direction):
        return lambda inputs: sum(
            jnp.vdot(gradient, tangent)
            for gradient, tangent in zip(jax.grad(function)(inputs), direction, strict=True)
        )

    results = [
        jax.jit(outer(inner(loss, directions[0]), directions[1]))(inputs)
        for outer in (forward, reverse)
        for inner in (forward, reverse)
    ]
    np.testing.assert_allclose(results, results[0], rtol=1e-10)
    assert abs(results[0]) > 1e-3


def test_gradient_of_a_batch_equals_gradients_of_its_examples():
    batch = query_key_value((3,))

    def loss(*inputs):
        return jnp.sum(attend(*inputs, mask=masks.causal(), positions=POSITIONS) ** 2)

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    together = jax.jit(gradient)(*batch)
    one_by_one = jax.jit(jax.vmap(gradient))(*batch)
    chex.assert_trees_all_close(together, one_by_one, rtol=1e-5, atol=1e-5)


def test_gradient_has_the_dtype_of_its_input():
    inputs = query_key_value(dtype="bfloat16")
    gradients = jax.grad(lambda *inputs: attend(*inputs).sum(), argnums=(0, 1, 2))(*inputs)
    assert {gradient.dtype for gradient in gradients} == {jnp.dtype("bfloat16")}


def test_gradient_of_logsumexp_is_the_weights(float64):
    """With one head of width 1: ∂ logsumexp(t) / ∂ key(s) = scale · query(t) · weights(t, s)."""
    query, key, value = query_key_value(dtype="float64")
    query, key, value = query[:, :1, :1], key[:, :1, :1], value[:, :1, :1]

    def logsumexp(key):
        return attend(query, key, value, returning=("logsumexp",))[1]["logsumexp"][0]

    jacobian = jax.jacobian(logsumexp)(key)[:, :, 0, 0]
    _, extras = attend(query, key, value, returning=("weights",))
    np.testing.assert_allclose(jacobian, query[:, :, 0] * extras["weights"][0], rtol=1e-12)
