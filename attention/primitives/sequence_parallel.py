"""Attention over arrays that are sharded along the sequence; a balanced order of tokens."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from attention.primitives.arguments import Arguments, check_arguments
from attention.primitives.attend import available_platforms
from attention.primitives.ring import AxisName, attend_in_ring
from attention.primitives.sharding import check_divisible, map_shards


@dataclass(frozen=True)
class RingAttention:
    """`attend` for arrays that are sharded along the sequence over a mesh axis, under `jax.jit`.

    Results and first-order gradients equal those of `attend`. Keys and values are not gathered:
    each device sends its block to the next one. Pass it to a model as `attend`.

    Attributes:
        mesh: of devices; its axes are all Auto or all Explicit.
        spec: sharding of query, key and value `[..., T, N, H]`; T is sharded and H is not.

    >>> import jax
    >>> kinds = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "sequence"), axis_types=kinds)
    >>> ring = RingAttention(mesh, PartitionSpec("data", "sequence"))
    >>> query = jax.numpy.ones((2, 8, 4, 16))
    >>> jax.jit(ring)(query, query, query).shape
    (2, 8, 4, 16)
    """

    mesh: Mesh
    spec: PartitionSpec

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        implementation: str | None = None,
        **arguments: Any,  # noqa: ANN401 - those of attend
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Return what `attend` returns for the same arguments, which are global arrays.

        Raises:
            ValueError: an implementation other than "tiled"; sizes that the mesh does not divide;
                results other than "logsumexp" and "largest_score"; and as `attend`.
        """
        if implementation not in (None, "tiled"):
            raise ValueError(
                f"ring attention has one implementation, 'tiled', not {implementation!r}"
            )
        checked = check_arguments(query, key, value, **arguments)
        spec, platform = self._axes(checked), available_platforms()[0]

        def attend_on_device(shard: Arguments) -> dict[str, Array]:
            return attend_in_ring(shard, spec[-2], platform)

        results = map_shards(attend_on_device, checked, self.mesh, spec)
        output = results.pop("output")
        return (output, results) if checked.returning else output

    def _axes(self, arguments: Arguments) -> tuple[AxisName | None, ...]:
        """Return the mesh axes of batch axes, sequence and heads."""
        query = arguments.query
        spec = *self.spec, *[None] * (query.ndim - len(self.spec))
        if len(spec) > query.ndim or spec[-3] is None or spec[-1] is not None:
            raise ValueError(
                f"ring attention shards T and not H of [..., T, N, H], which {self.spec} does not "
                f"for a query of shape {query.shape}"
            )
        check_divisible(arguments, self.mesh, spec)
        return spec[:-1]


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
