"""Attention of each device to its own rows and heads."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attention import attend, masks
from attention.primitives.sharded_attention import ShardedAttention
from tests.attention.primitives.inputs import draw

QUERY, KEY, VALUE = draw((4, 7, 4, 3), (4, 7, 2, 3), (4, 7, 2, 3))
MASK = masks.causal() & masks.lengths(np.array([7, 5, 3, 1]))


def mesh_of(kind):
    return jax.make_mesh((2,), ("shards",), (kind,))


@pytest.mark.parametrize(
    "spec, kind",
    [
        (PartitionSpec("shards"), AxisType.Auto),
        (PartitionSpec(None, None, "shards"), AxisType.Explicit),
    ],
)
def test_it_equals_attend_without_communication(spec, kind):
    mesh = mesh_of(kind)
    sharded = ShardedAttention(mesh, spec)
    inputs = jax.device_put((QUERY, KEY, VALUE), NamedSharding(mesh, spec))
    program = jax.jit(lambda *inputs: sharded(*inputs, mask=MASK))
    expected = attend(QUERY, KEY, VALUE, mask=MASK)
    np.testing.assert_allclose(program(*inputs), expected, rtol=1e-5, atol=1e-6)
    text = program.lower(*inputs).compile().as_text()
    assert not any(name in text for name in ("all-", "collective", "reduce-scatter"))


def test_sizes_that_the_mesh_does_not_divide_are_refused():
    for spec, message in (
        (PartitionSpec("shards"), r"the 2 devices of axis 'shards' do not divide batch axis 0=3"),
        (PartitionSpec(None, None, "shards"), r"do not divide heads N=1"),
    ):
        sharded = ShardedAttention(mesh_of(AxisType.Auto), spec)
        with pytest.raises(ValueError, match=message):
            sharded(QUERY[:3, :, :1], KEY[:3, :, :1], VALUE[:3, :, :1])
