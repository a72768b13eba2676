"""The mesh of devices over which a model and its batches are sharded."""

from dataclasses import dataclass

from experiments.config.build import Part, option


@dataclass(frozen=True, kw_only=True)
class MeshPart(Part):
    """Number of devices along each axis of the mesh; `experiments.sharding` uses it."""

    data: int = option(0, "parts of a batch, each on other devices; 0: all devices left", least=0)
    fsdp: int = option(1, "shards of parameters and optimizer, and of a batch too", least=1)
    tensor: int = option(1, "shards of heads, hidden layers and vocabulary", least=1)
    sequence: int = option(1, "shards of the positions of a row", least=1)
