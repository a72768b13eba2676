"""Ring attention: sequences sharded over devices, equal to attention on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from attention import ShardedAttention, masks, ring_attend, zigzag_order
from tests.attention.primitives.inputs import draw
from tests.attention.primitives.ring import CHECKS, SLOW
from tests.attention.primitives.sharding import on_eight_devices

MESH = jax.make_mesh((2,), ("sequence",), axis_types=(AxisType.Auto,))
BY_TOKEN = P(None, "sequence")
RING = ShardedAttention(MESH, BY_TOKEN)
QUERY, KEY = draw((2, 6, 4, 3), (2, 6, 2, 3))


RUN = "tests.attention.primitives.ring"


def test_results_and_gradients_equal_those_of_one_device():
    assert on_eight_devices(RUN).count("passed") == len(CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow(name):
    """A model; the contract; memory of a device; the gradient of 32k tokens in one row."""
    assert on_eight_devices(RUN, name).count("passed") == 1


def computed_tiles(order, shards):
    """Return the tiles that each device computes at each step, `[devices, steps]`."""
    blocks = np.asarray(order).reshape(shards, -1)

    def number(device, step):
        positions = blocks[device], blocks[(device - step) % shards]
        tiles = (each.reshape(-1, 2) for each in positions)
        return int(masks.causal().tile_bounds(*tiles).any.sum())

    return np.array([[number(n, step) for step in range(shards)] for n in range(shards)])


def test_zigzag_balances_a_causal_mask():
    """At each step, not only in sum: devices wait for each other after every step."""
    tiles = computed_tiles(zigzag_order(64, 4), 4)
    assert (tiles.max(axis=0) / tiles.mean(axis=0)).max() <= 1.05
    counted = computed_tiles(np.arange(64), 4).sum(axis=1)
    assert counted.max() / counted.mean() > 1.5


def test_zigzag_is_a_permutation():
    order = zigzag_order(12, 3)
    assert order.tolist() == [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
    assert order[jnp.argsort(order)].tolist() == list(range(12))
    with pytest.raises(ValueError, match=r"a length that 2 · 3 divides, got 9"):
        zigzag_order(9, 3)


@pytest.mark.parametrize(
    "spec, shape, options, message",
    [
        (P("sequence"), (3, 6, 4, 3), {}, "the 2 devices .* 'sequence' do not divide an axis of 3"),
        (P(None, None, "sequence"), (2, 6, 1, 3), {}, "do not divide an axis of 1"),
        (BY_TOKEN, (2, 7, 4, 3), {}, "do not divide an axis of 7"),
        (P(None, None, None, "sequence"), (2, 6, 4, 2), {}, "only the batch axes, T and N"),
        (BY_TOKEN, (2, 6, 4, 3), {"returning": ("weights",)}, "largest_score, got 'weights'"),
        (BY_TOKEN, (2, 6, 4, 3), {"implementation": "reference"}, "'tiled', not 'reference'"),
    ],
)
def test_refusals(spec, shape, options, message):
    (query,) = draw(shape)
    with pytest.raises(ValueError, match=message):
        ShardedAttention(MESH, spec)(query, query, query, **options)


@pytest.mark.parametrize("pairs", [{"mask": np.ones((3, 3), bool)}, {"bias": np.ones((3, 3))}])
def test_arrays_of_the_pairs_of_one_device_are_refused(pairs):
    def on_device(query):
        return ring_attend(query, query, query, axis_name="sequence", **pairs)

    run = jax.shard_map(on_device, mesh=MESH, in_specs=BY_TOKEN, out_specs=BY_TOKEN)
    with pytest.raises(ValueError, match="wrap the array of all positions"):
        jax.eval_shape(run, QUERY)


def test_second_derivatives_are_refused_in_a_sentence():
    def loss(query):
        return RING(query, KEY, KEY, mask=masks.causal()).sum()

    with pytest.raises(NotImplementedError, match="first-order reverse-mode derivatives only"):
        jax.eval_shape(jax.grad(lambda x: jax.grad(loss)(x).sum()), QUERY)


def test_equal_ring_attention_is_not_compiled_again():
    """It is a static field of the context of modules."""
    equal = ShardedAttention(MESH, BY_TOKEN)
    assert equal == RING
    assert hash(equal) == hash(RING)
