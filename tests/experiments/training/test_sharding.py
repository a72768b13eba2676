"""What parts of a batch add up to, and that the number of devices does not decide it."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.training import sharding
from experiments.training.sharding import accumulated, by_rows, on_one_device, replicated


def drawn(parameter, rows, key):
    """Sums of the rows, and what a part drew by chance."""
    return {"rows": parameter * jnp.sum(rows), "chance": jax.random.uniform(key)}


@pytest.mark.parametrize("parts", [2, 4])
def test_one_device_and_two_add_up_the_same(parts, monkeypatch):
    rows, key = jnp.arange(7.0)[:, None], jax.random.key(0)
    program = jax.jit(lambda parameter, rows, key: accumulated(drawn, parameter, rows, key, parts))
    found = program(replicated(jnp.float32(3), parts), rows, key)
    assert len(found["rows"].devices()) == 2
    assert found["rows"] == 3 * 21
    expected = sum(jax.random.uniform(each) for each in jax.random.split(key, parts))
    np.testing.assert_allclose(found["chance"], expected, rtol=1e-6)

    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    alone = jax.jit(lambda *arguments: accumulated(drawn, *arguments, parts))(
        jnp.float32(3), rows, key
    )
    assert len(alone["rows"].devices()) == 1
    np.testing.assert_allclose(on_one_device(found)["chance"], alone["chance"], rtol=1e-6)


def test_one_part_is_the_batch_as_it_is():
    key = jax.random.key(0)
    found = accumulated(drawn, jnp.float32(1), jnp.ones((5, 1)), key, 1)
    assert found == {"rows": 5, "chance": jax.random.uniform(key)}


@pytest.mark.parametrize(("rows", "devices"), [(17, 2), (15, 1)])
def test_devices_share_rows_and_few_rows_stay_together(rows, devices):
    seen = []

    def scaled(scale, rows, more):
        seen.append(len(rows))
        return scale * rows, more + rows[:, 0]

    arrays = np.arange(2.0 * rows).reshape(rows, 2), np.ones(rows)
    found = by_rows(scaled)(on_one_device(jnp.float32(3)), *arrays)
    assert seen[-1] == -(-rows // devices)
    np.testing.assert_array_equal(found[0], 3 * arrays[0])
    np.testing.assert_array_equal(found[1], 1 + arrays[0][:, 0])


@pytest.mark.parametrize(
    ("devices", "parts", "working"), [(3, 2, 2), (3, 4, 2), (6, 4, 4), (8, 12, 6), (5, 7, 1)]
)
def test_as_many_devices_work_as_have_equal_shares(devices, parts, working, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1] * devices)
    assert sharding._mesh(parts).size == working


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, 3),
        ({"JAX_NUM_CPU_DEVICES": "2"}, 2),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=5"}, 5),
    ],
)
def test_cores_are_devices_unless_the_environment_says_how_many(environment, number):
    code = (
        "import jax; from experiments.training.sharding import cores_as_devices; "
        "cores_as_devices(3); print(jax.device_count())"
    )
    clean = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = {**clean, "JAX_PLATFORMS": "cpu", **environment}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True
    )
    assert int(said.stdout) == number
