"""A linear function with a transpose of its own, which here is a wrong one to be told apart."""

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.kernels.linear import linear_call


def times(factor, vector):
    """factor · vector, whose transpose claims to be 10 · factor · vector."""
    return linear_call(
        lambda factor, vector: factor * vector,
        lambda factor, vector: 10 * factor * vector,
        factor,
        vector,
        like=vector,
    )


VECTOR = jnp.array([1.0, 2.0])


def test_forward_mode_is_that_of_the_function():
    found, moved = jax.jvp(times, (3.0, VECTOR), (1.0, 5 * VECTOR))
    np.testing.assert_allclose(found, [3, 6])
    np.testing.assert_allclose(moved, [15 + 1, 30 + 2])


def test_reverse_mode_is_the_transpose_given():
    for transform in (lambda f: f, jax.jit):
        gradient = jax.grad(transform(lambda vector: times(3.0, vector).sum()))(VECTOR)
        np.testing.assert_allclose(gradient, [30, 30])


def test_transposing_twice_is_the_function_again():
    def gradient(vector):
        return jax.linear_transpose(lambda v: times(jnp.float32(3.0), v), VECTOR)(vector)[0]

    twice = jax.linear_transpose(gradient, VECTOR)(VECTOR)[0]
    np.testing.assert_allclose(twice, [3, 6])


def test_the_known_part_has_a_derivative_too():
    np.testing.assert_allclose(jax.grad(lambda factor: times(factor, VECTOR).sum())(3.0), 3)


def test_maps_over_either_part():
    factors, vectors = jnp.array([1.0, 2.0, 3.0]), jnp.ones((3, 2))

    def gradient(factor, vector):
        return jax.grad(lambda vector: times(factor, vector).sum())(vector)

    np.testing.assert_allclose(jax.vmap(times)(factors, vectors)[:, 0], [1, 2, 3])
    np.testing.assert_allclose(jax.vmap(times, (0, None))(factors, VECTOR)[:, 1], [2, 4, 6])
    np.testing.assert_allclose(jax.vmap(gradient)(factors, vectors)[:, 0], [10, 20, 30])
