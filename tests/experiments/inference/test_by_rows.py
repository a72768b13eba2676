"""Rows are divided over devices that have all parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments.config.train import MeshPart
from experiments.inference.by_rows import FEWEST_ROWS, by_rows, replicas
from experiments.sharding import make_mesh, one_copy

SPEC = PartitionSpec()


@pytest.mark.parametrize("parameters", ["replicated", "sharded"])
@pytest.mark.parametrize("rows", [17, 15])
def test_rows_are_computed_where_the_parameters_are(rows, parameters):
    mesh, seen = make_mesh(MeshPart(fsdp=2)), []

    def scaled(scale, rows, more):
        seen.append(len(rows))
        return scale * rows, more + rows[:, 0]

    arrays = np.arange(2.0 * rows).reshape(rows, 2), np.ones(rows)
    axes = PartitionSpec() if parameters == "replicated" else PartitionSpec(None, "fsdp")
    scale = jax.device_put(jnp.array([[3.0, 4.0]]), NamedSharding(mesh, axes))
    found = by_rows(scaled)(scale, *arrays)
    shared = parameters == "replicated" and rows >= 2 * FEWEST_ROWS
    assert seen[-1] == (-(-rows // 2) if shared else rows)
    np.testing.assert_array_equal(found[0], np.array([[3, 4]]) * arrays[0])
    np.testing.assert_array_equal(found[1], 1 + arrays[0][:, 0])
    assert len(one_copy(scale).devices()) == (1 if parameters == "replicated" else 2)


@pytest.mark.parametrize("number", [1, 2])
def test_parameters_are_copied_to_devices_without_them_alone(number):
    mesh = make_mesh(MeshPart(data=2))
    given = jax.device_put(jnp.ones(3), NamedSharding(make_mesh(MeshPart(data=number)), SPEC))
    found = replicas({"scale": given}, mesh)["scale"]
    assert found.sharding == NamedSharding(mesh, SPEC)
    buffers = [each.data.unsafe_buffer_pointer() for each in found.addressable_shards]
    kept = [each.data.unsafe_buffer_pointer() for each in given.addressable_shards]
    assert len({*buffers}) == 2 and buffers[:number] == kept
