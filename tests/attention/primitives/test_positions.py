"""Sinusoidal positions: the paper's equation, and what it was chosen for."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import sinusoidal

encode = jax.jit(sinusoidal, static_argnums=1)


def by_loops(positions, width):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i + 1) = cos of the same angle."""
    table = np.zeros((len(positions), width))
    for row, position in enumerate(positions):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[row, 2 * i], table[row, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def test_position_zero_is_sine_of_nothing_and_cosine_of_nothing():
    np.testing.assert_array_equal(sinusoidal(0, 6), [0, 1, 0, 1, 0, 1])


def test_position_one_of_width_four():
    """Wavelengths 2π and 200π: sin 1, cos 1, sin 0.01, cos 0.01."""
    expected = [0.841470985, 0.540302306, 0.009999833, 0.999950000]
    np.testing.assert_allclose(sinusoidal(1, 4), expected, atol=1e-7)


@pytest.mark.parametrize("width", [2, 14, 512])
def test_the_papers_equation(width):
    positions = [0, 1, 2, 3, 7, 100]
    np.testing.assert_allclose(
        encode(np.array(positions), width), by_loops(positions, width), atol=2e-5
    )


def test_far_positions_keep_the_precision_of_float32():
    positions = [2047, 4095]
    np.testing.assert_allclose(encode(np.array(positions), 14), by_loops(positions, 14), atol=1e-3)


@pytest.mark.parametrize("shape", [(), (5,), (2, 5), (3, 2, 5)], ids=str)
def test_any_leading_axes(shape):
    positions = np.random.default_rng(0).integers(0, 50, shape)
    result = sinusoidal(positions, 14)
    assert result.shape == (*shape, 14)
    assert result.dtype == jnp.float32
    expected = by_loops(positions.reshape(-1).tolist(), 14).reshape(*shape, 14)
    np.testing.assert_allclose(result, expected, atol=2e-5)


def test_a_shift_is_a_rotation_of_each_pair():
    """The same rotation wherever one stands, so that distances can be learned."""
    positions, shift, width = np.arange(11), 5, 14
    here, there = encode(positions, width), encode(positions + shift, width)
    for i in range(width // 2):
        angle = shift / 10_000 ** (2 * i / width)
        rotation = np.array(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
        pair = slice(2 * i, 2 * i + 2)
        np.testing.assert_allclose(there[:, pair], here[:, pair] @ rotation.T, atol=1e-5)


def test_the_dot_product_knows_the_distance_only():
    table = np.asarray(encode(np.arange(20), 64))
    products = table @ table.T
    for distance in range(5):
        np.testing.assert_allclose(
            np.diagonal(products, distance), products[0, distance], atol=1e-4
        )


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="width must be even, got 7"):
        sinusoidal(np.arange(3), 7)
