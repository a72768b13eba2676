"""Rows are divided over devices that have all parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments.config.mesh import MeshPart
from experiments.inference.by_rows import FEWEST_ROWS, by_rows
from experiments.training.sharding import make_mesh, one_copy


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
