"""What a training step needs on each device of a mesh, and tables of it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from attention.modules import TransformerConfig
from experiments.analysis.description import aligned
from experiments.config.mesh import MeshPart
from experiments.config.train import TrainPart
from experiments.errors import UsageError
from experiments.planning.communication import BatchShape, communicated
from experiments.planning.memory import (
    activation_bytes,
    cache_bytes,
    cache_slots,
    flops,
    state_bytes,
)
from experiments.training.sharding import MESH_AXES, shards_of

NUMBERS = (8, 64, 512)  # of devices in the table

NOTE = """\
A step reads {rows:,} rows of {length:,} tokens and computes in {dtype}. Activations are those kept
for the backward pass, without those inside the layer that is computed. The cache is that of as
many rows. FLOPs are those of matrix products, recomputation included; a token attends to the whole
context, or to a window. Bytes sent are those of algorithms on a ring: (n - 1) / n of an array for
an all-gather or a reduce-scatter, twice that for an all-reduce, the whole for a
collective-permute."""


class Plan(NamedTuple):
    """Needs of a training step on each device.

    Attributes:
        state: bytes of parameters, optimizer and gradients.
        activations: bytes that the backward pass needs.
        cache: bytes of decoding the rows of a batch.
        flops: of matrix products.
        sent: bytes by kind of communication.
    """

    state: Mapping[str, int]
    activations: float
    cache: float
    flops: int
    sent: Mapping[str, float]


class Planner:
    """Plans the steps of one model on meshes of any size."""

    def __init__(
        self, model: nnx.Module, config: TransformerConfig, train: TrainPart, batch: BatchShape
    ) -> None:
        """Shape the cache of a row; the rest of the model is traced when a plan is made.

        Args:
            model: with shapes for arrays.
            config: of the model.
            train: decides the optimizer.
            batch: what a step reads.
        """
        self.model, self.config, self.train, self.batch = model, config, train, batch
        self._slots = cache_slots(model, batch.length)
        self._kept: dict[tuple[int, ...], float] = {}

    def plan(self, mesh: AbstractMesh) -> Plan:
        """Return what a device of a mesh needs.

        Raises:
            UsageError: a mesh that does not divide a size of the model or the length of the rows.
        """
        if self.batch.length % (parts := shards_of("sequence", mesh)):
            raise UsageError(
                f"mesh.sequence={parts} does not divide rows of {self.batch.length} tokens"
            )
        state = state_bytes(self.model, self.train, mesh)
        return Plan(
            state | {"gradients": state["parameters"]},
            self._activations(mesh),
            cache_bytes(self._slots, self.batch, mesh),
            flops(self.model, self.batch, mesh),
            communicated(self.model, self.batch, mesh),
        )

    def _activations(self, mesh: AbstractMesh) -> float:
        """Trace the model once for each number of shards of its heads, hidden units and words."""
        key = tuple(shards_of(name, mesh) for name in ("heads", "kv_heads", "hidden", "vocab"))
        tokens = self.batch.tokens_of_device(mesh)
        if key not in self._kept:
            kept = activation_bytes(self.model, self.config, self.batch, mesh)
            self._kept[key] = kept / tokens
        return self._kept[key] * tokens

    def strategies(self) -> Iterator[tuple[str, Plan]]:
        """Yield the plans of meshes with a single axis that the sizes of model and batch allow."""
        for number in NUMBERS:
            for name in ("data", "fsdp", "tensor", "sequence"):
                mesh = abstract_mesh(MeshPart(**{"data": 1, name: number}))
                if self.batch.rows % (self.batch.parts * shards_of("batch", mesh)):
                    continue
                try:
                    yield f"{name}={number}", self.plan(mesh)
                except UsageError:
                    continue

    def text(self, part: MeshPart) -> str:
        """Return the plan of a mesh, and a table of the strategies for more and more devices.

        Raises:
            UsageError: as `plan`.
        """
        mesh = abstract_mesh(part)
        own = self.plan(mesh)
        sizes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
        rows = [["of each device", sizes]]
        rows += [[name, quantity(size, "B")] for name, size in own.state.items()]
        rows.append(["activations", quantity(own.activations, "B")])
        rows.append(["cache", quantity(own.cache, "B")])
        rows.append(["FLOPs of a step", quantity(own.flops, "")])
        rows += [[f"sent by {kind}", quantity(size, "B")] for kind, size in own.sent.items()]
        *_, intensity = _cells(own)
        rows.append(["FLOPs per byte sent", intensity])
        titles = ["mesh", "state", "activations", "FLOPs", "sent", "FLOPs per byte sent"]
        table = [titles, *([name, *_cells(plan)] for name, plan in self.strategies())]
        note = NOTE.format(**self.batch._asdict())
        return "\n".join([*aligned(rows), "", *aligned(table), "", note])


def abstract_mesh(part: MeshPart) -> AbstractMesh:
    """Return a mesh without devices; `data=0` means 1."""
    sizes = tuple(max(1, getattr(part, name)) for name in MESH_AXES)
    return AbstractMesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))


def quantity(number: float, unit: str) -> str:
    """Return a number to three digits, such as "1.23 GB"."""
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    while number >= 999.5 and len(prefixes) > 1:
        number, prefixes = number / 1000, prefixes[1:]
    digits = 0 if number >= 99.95 or not number else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {prefixes[0]}{unit}".rstrip()


def _cells(plan: Plan) -> list[str]:
    sent = sum(plan.sent.values())
    state = quantity(sum(plan.state.values()), "B")
    each = [state, quantity(plan.activations, "B"), quantity(plan.flops, "")]
    return [*each, quantity(sent, "B"), f"{plan.flops / sent:,.0f}" if sent else "-"]
