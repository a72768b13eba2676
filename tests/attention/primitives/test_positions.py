"""Sinusoidal and rotary positions: the equations of the papers, and their properties."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import rotary, sinusoidal
from attention.primitives.positions import SCALINGS
from tests.attention.primitives.inputs import draw

encode = jax.jit(sinusoidal, static_argnums=1)


def by_loops(positions, width):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i + 1) = cos of the same angle."""
    table = np.zeros((len(positions), width))
    for row, position in enumerate(positions):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[row, 2 * i], table[row, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def test_position_one_of_width_four():
    """Wavelengths 2π and 200π: sin 1, cos 1, sin 0.01, cos 0.01."""
    expected = [0.841470985, 0.540302306, 0.009999833, 0.999950000]
    np.testing.assert_allclose(sinusoidal(1, 4), expected, atol=1e-7)


@pytest.mark.parametrize("width", [2, 14, 512])
@pytest.mark.parametrize("shape", [(), (5,), (2, 5), (3, 2, 5)], ids=str)
def test_sinusoidal_equals_the_equation(shape, width):
    positions = np.random.default_rng(0).integers(0, 100, shape)
    result = encode(positions, width)
    assert result.dtype == jnp.float32
    expected = by_loops(positions.reshape(-1).tolist(), width).reshape(*shape, width)
    np.testing.assert_allclose(result, expected, atol=2e-5)


def test_large_positions_have_the_precision_of_float32():
    positions = [2047, 4095]
    np.testing.assert_allclose(encode(np.array(positions), 14), by_loops(positions, 14), atol=1e-3)


# Rotary positions.

rotate = jax.jit(rotary)


def test_quarter_rotation():
    """The first plane rotates by one radian per position, so by a quarter at position π/2."""
    vectors = jnp.array([[[1.0, 2.0]]])
    quarter = rotary(vectors, np.array([np.pi / 2]))
    np.testing.assert_allclose(quarter, [[[-2.0, 1.0]]], atol=1e-6)


def test_rotary_of_a_batch():
    (vectors,) = draw((2, 5, 3, 14))
    positions = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    together, alone = rotate(vectors, positions), rotate(vectors[1], positions[1], 10_000.0)
    np.testing.assert_array_equal(together[1], alone)
    np.testing.assert_array_equal(together[0, 0], vectors[0, 0])
    narrow = rotate(vectors.astype(jnp.bfloat16), positions).astype(jnp.float32)
    np.testing.assert_allclose(narrow, together, atol=0.05, rtol=0.02)


@pytest.mark.parametrize(
    "call, shape, positions, sentence",
    [
        (sinusoidal, (3,), 7, "the width of sinusoidal positions must be even, got 7"),
        (rotary, (5, 3, 7), np.arange(5), "the head width of rotary positions must be even, got 7"),
        (rotary, (9, 3, 8), np.arange(5), r"must end in an axis of 9 tokens, got shape \(5,\)"),
        (rotary, (5, 6), np.arange(5), r"with the axes \[\.\.\., T, N, H\], got shape"),
    ],
)
def test_shapes_that_do_not_fit(call, shape, positions, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(jnp.ones(shape), positions)


# Scaled rotary positions: H = 16 and a training length of 300, in which pairs rotate 48 to 0 times.

BASE, HALF, FACTOR, TRAINED = 500.0, 8, 4.0, 300


def scaled_by_loops(name):
    """Return the frequency of each pair in radians per position, by the equations of the papers."""
    result = []
    for i in range(HALF):
        frequency = BASE ** (-i / HALF)
        wavelength = 2 * math.pi / frequency
        rotations = TRAINED / wavelength
        if name == "linear":
            frequency /= FACTOR
        elif name == "ntk":
            frequency = (BASE * FACTOR ** (2 * HALF / (2 * HALF - 2))) ** (-i / HALF)
        elif name == "llama3":
            if wavelength > TRAINED / 1:
                frequency /= FACTOR
            elif wavelength >= TRAINED / 4:
                smooth = (rotations - 1) / (4 - 1)
                frequency = (1 - smooth) * frequency / FACTOR + smooth * frequency
        elif name == "yarn":
            ramp = min(max((rotations - 1) / (32 - 1), 0), 1)
            frequency = (1 - ramp) * frequency / FACTOR + ramp * frequency
        result.append(frequency)
    return result


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_equal_the_papers(name):
    frequencies, factor = BASE ** (-jnp.arange(HALF, dtype=jnp.float32) / HALF), 1
    if scaling := SCALINGS[name](FACTOR, TRAINED):
        frequencies, factor = scaling(frequencies)
    np.testing.assert_allclose(frequencies, scaled_by_loops(name), rtol=1e-5)
    assert factor == (0.1 * math.log(FACTOR) + 1 if name == "yarn" else 1)


@pytest.mark.parametrize("name", ["none", "yarn"])
def test_rotary_rotates_each_plane_by_its_frequency(name):
    (vectors,) = draw((5, 3, 2 * HALF))
    scaling, factor = SCALINGS[name](FACTOR, TRAINED), 1
    if name == "yarn":
        factor = 0.1 * math.log(FACTOR) + 1
    positions = np.array([0, 1, 2, 50, 7])
    angles = np.multiply.outer(positions, scaled_by_loops(name))[:, None]
    pairs = np.asarray(vectors[..., :HALF]) + 1j * np.asarray(vectors[..., HALF:])
    rotated = factor * pairs * np.exp(1j * angles)
    ours = rotary(vectors, positions, BASE, scaling)
    np.testing.assert_allclose(ours[..., :HALF], rotated.real, atol=2e-5)
    np.testing.assert_allclose(ours[..., HALF:], rotated.imag, atol=2e-5)
