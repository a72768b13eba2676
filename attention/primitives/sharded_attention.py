"""Attention over arrays that are sharded over a mesh; a balanced order of tokens."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from attention.primitives.arguments import check_arguments
from attention.primitives.attend import attend_by, available_platforms
from attention.primitives.cache import CacheView
from attention.primitives.ring import attend_in_ring
from attention.primitives.sharding import check_divisible, map_shards


@dataclass(frozen=True)
class ShardedAttention:
    """`attend` for arrays that are sharded over a mesh, under `jax.jit`.

    Each device computes its own examples and heads, by the implementation that is chosen for them,
    and skips the tiles that the masks of its examples leave empty. The compiler can shard `attend`
    by itself, but it gathers the inputs of a kernel or refuses it, and it computes all tiles if it
    may shard the batch.

    If the sequence is sharded, each device keeps its queries and sends its block of keys and values
    to the next one, as in `ring_attend`; they are never gathered. First-order gradients then equal
    those of `attend`, and there are no others.

    Pass it to a model as `attend`.

    Attributes:
        mesh: of devices; its axes are all Auto or all Explicit.
        spec: sharding of query, key and value `[..., T, N, H]`; H is not sharded.

    >>> import jax
    >>> kinds = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "sequence"), axis_types=kinds)
    >>> sharded = ShardedAttention(mesh, PartitionSpec("data", "sequence"))
    >>> query = jax.numpy.ones((2, 8, 4, 16))
    >>> jax.jit(sharded)(query, query, query).shape
    (2, 8, 4, 16)
    """

    mesh: Mesh
    spec: PartitionSpec

    def __call__(
        self,
        query: Array,
        key: Array | CacheView,
        value: Array | None = None,
        *,
        implementation: str | None = None,
        **arguments: Any,  # noqa: ANN401 - those of attend
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Return what `attend` returns for the same arguments, which are global arrays.

        Raises:
            ValueError: a spec that shards H; sizes that the mesh does not divide; where the
                sequence is sharded, an implementation other than "tiled" and results other than
                "logsumexp" and "largest_score"; and as `attend`.
        """
        checked = check_arguments(query, key, value, **arguments)
        spec = *self.spec, *[None] * (query.ndim - len(self.spec))
        if len(spec) > query.ndim or spec[-1] is not None:
            raise ValueError(
                "spec must shard only the batch axes, T and N of a query [..., T, N, H] of shape "
                f"{query.shape}, got {self.spec}"
            )
        check_divisible(checked, self.mesh, spec)
        if spec[-3] is None:
            on_device = partial(attend_by, name=implementation)
        elif implementation in (None, "tiled"):
            platform = available_platforms()[0]
            on_device = partial(attend_in_ring, axis_name=spec[-3], platform=platform)
        else:
            raise ValueError(
                f"the implementation over a sharded sequence is 'tiled', not {implementation!r}"
            )
        results = map_shards(on_device, checked, self.mesh, spec[:-1], key_axis=spec[-3])
        output = results.pop("output")
        return (output, results) if checked.returning else output


def zigzag(length: int, shards: int) -> Array:
    """Return an order of tokens that gives all shards equal parts of a causal mask: int32 `[T]`.

    The sequence is cut into 2 · shards chunks, and shard n gets chunks n and 2 · shards - 1 - n.
    Pass a model `tokens[..., order]` and `positions=order`; `jnp.argsort(order)` is the inverse.

    Raises:
        ValueError: a length that 2 · shards does not divide.

    >>> zigzag(8, shards=2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if length % (2 * shards):
        raise ValueError(f"zigzag needs a length that 2 · {shards} divides, got {length}")
    first, last = jnp.arange(length, dtype=jnp.int32).reshape(2, shards, -1)
    return jnp.stack([first, last[::-1]], axis=1).reshape(-1)
