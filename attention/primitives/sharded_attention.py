"""Attention over arrays whose batch axes and heads are sharded over Auto axes of a mesh."""

from dataclasses import dataclass
from typing import Any

from jax import Array
from jax.sharding import Mesh, PartitionSpec

from attention.primitives.arguments import check_arguments
from attention.primitives.attend import attend_by
from attention.primitives.sharding import check_divisible, map_shards


@dataclass(frozen=True)
class ShardedAttention:
    """`attend` for each shard of batch axes and heads, under `jax.jit`; nothing is communicated.

    The compiler can shard `attend` by itself, except kernels, which it gathers for or refuses, and
    it computes all tiles if it may shard the batch. Here each device runs the implementation that
    is chosen for its shard, and skips the tiles of its own examples. Pass it to a model as
    `attend`.

    Attributes:
        mesh: of devices.
        spec: sharding of query, key and value `[..., T, N, H]`, whose T and H are not sharded.
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
            ValueError: sizes that the mesh does not divide, and as `attend`.
        """
        checked = check_arguments(query, key, value, **arguments)
        *batch, _, heads, _ = *self.spec, *[None] * (query.ndim - len(self.spec))
        check_divisible(checked, self.mesh, (*batch, None, heads, None))
        results = map_shards(
            lambda shard: attend_by(shard, implementation),
            checked,
            self.mesh,
            (*batch, None, heads),
        )
        output = results.pop("output")
        return (output, results) if checked.returning else output
