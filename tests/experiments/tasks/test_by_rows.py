"""Rows are divided over devices that have all parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments.config.train import MeshPart
from experiments.sharding import make_mesh
from experiments.tasks.translator import FEWEST_ROWS, by_rows


@pytest.mark.parametrize("axes", [(), (None, "fsdp")])
@pytest.mark.parametrize("rows", [17, 15])
def test_rows_are_computed_where_the_parameters_are(rows, axes):
    mesh, traced = make_mesh(MeshPart(fsdp=2)), []

    def scaled(scale, rows, more):
        traced.append(len(rows))
        return scale * rows, more + rows[:, 0]

    arrays = np.arange(2.0 * rows).reshape(rows, 2), np.ones(rows)
    scale = jax.device_put(jnp.array([[3.0, 4.0]]), NamedSharding(mesh, PartitionSpec(*axes)))
    products, sums = by_rows(scaled)(scale, *arrays)
    is_shared = not axes and rows >= 2 * FEWEST_ROWS
    assert traced[-1] == (-(-rows // 2) if is_shared else rows)
    assert is_shared == (len(products.devices()) == 2 and not axes)
    np.testing.assert_array_equal(products, np.array([[3, 4]]) * arrays[0])
    np.testing.assert_array_equal(sums, 1 + arrays[0][:, 0])
