"""Bytes that each device sends in a training step, by kind of communication.

They are those of algorithms on a ring: of an array of S bytes on n devices a device sends
(n - 1) / n · S in an all-gather or a reduce-scatter, twice as many in an all-reduce, and S in each
collective-permute. `tests/experiments/planned.py` counts the same in compiled programs.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flax import nnx
from jax.sharding import AbstractMesh

from experiments.planning.weights import Weight, attentions, weights
from experiments.training.sharding import shards_of, spec

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
STATISTICS = 8  # float32 numbers of each token that the loss reduces over a sharded vocabulary


class Batch(NamedTuple):
    """What a step reads.

    Attributes:
        rows: B.
        length: T, of a source and of a target.
        itemsize: bytes of a number in the computation.
    """

    rows: int
    length: int
    itemsize: int = 4

    def rows_of_device(self, mesh: AbstractMesh) -> int:
        """Return the rows of each device, padding included."""
        return -(-self.rows // shards_of("batch", mesh))

    def tokens_of_device(self, mesh: AbstractMesh) -> int:
        """Return the tokens of each device."""
        return self.rows_of_device(mesh) * self.length // shards_of("sequence", mesh)


class Sent(NamedTuple):
    """Arrays that are communicated.

    Attributes:
        kind: one of `KINDS`.
        size: bytes of the array that a gather returns, and that the others take.
        axes: of the mesh.
        times: how often.
    """

    kind: str
    size: float
    axes: Sequence[str]
    times: int = 1

    def on_ring(self, mesh: AbstractMesh) -> float:
        """Return the bytes that each device sends."""
        devices = math.prod(mesh.shape[axis] for axis in self.axes)
        share = 1 if self.kind == "collective-permute" else (devices - 1) / devices
        return (1 + (self.kind == "all-reduce")) * share * self.size * self.times


def communicated(
    model: nnx.Module, batch: Batch, mesh: AbstractMesh, *, reduce_scatter: bool = True
) -> dict[str, float]:
    """Return the bytes that each device sends in a step, by the names in `KINDS`.

    Args:
        model: with shapes for arrays; its layers are scanned.
        batch: what the step reads.
        mesh: of the devices.
        reduce_scatter: whether gradients of parameters that "fsdp" shards are reduced and scattered
            in one operation. The compiler for CPUs reduces them on all devices, and then each
            device keeps its part.

    Raises:
        UsageError: a size that the mesh does not divide.
    """
    total = dict.fromkeys(KINDS, 0.0)
    for weight in weights(model):
        arrays = _Arrays(weight, batch, mesh)
        found = [*arrays.gathered(), *arrays.gradients(reduce_scatter), *arrays.activations()]
        for each in found:
            total[each.kind] += weight.layers * each.on_ring(mesh)
    for each in _around_ring(model, batch, mesh):
        total[each.kind] += each.on_ring(mesh)
    return total


class _Arrays:
    """What a parameter makes the devices communicate in each of its layers."""

    def __init__(self, weight: Weight, batch: Batch, mesh: AbstractMesh) -> None:
        self.weight, self.batch, self.mesh = weight, batch, mesh
        what = ".".join(map(str, weight.path))
        found = spec(weight.names, weight.shape, mesh, what)
        axes = [{axis} if isinstance(axis, str) else {*(axis or ())} for axis in found]
        self.is_sharded = any("fsdp" in axis for axis in axes)
        self.tensor = [sorted(axis - {"fsdp"}) for axis in axes]
        shards = math.prod(mesh.shape[name] for axis in self.tensor for name in axis)
        self.bytes = batch.itemsize * weight.size / shards  # on a device, once gathered

    def gathered(self) -> Iterator[Sent]:
        """Gather a parameter that "fsdp" shards, for each pass."""
        if not self.is_sharded:
            return
        weight, times = self.weight, 1
        is_scale = weight.path[-1] == "scale"
        if weight.num_inputs and weight.in_layers:
            times = 2 + (weight.recomputed and not self._is_gathered_once())
        elif not weight.is_matrix and not weight.lookups:
            times += is_scale + weight.recomputed
        yield Sent("all-gather", self.bytes, ["fsdp"], times)

    def _is_gathered_once(self) -> bool:
        """Return whether the compiler merges the gathers of recomputation and gradient.

        The gradient by the inputs uses a kernel with several axes of outputs as a matrix, which is
        gathered apart, except on a mesh with an axis "sequence" (`attention.modules.linear`). And
        groups of devices that are a part of the mesh are listed in two orders.
        """
        weight, shape = self.weight, self.mesh.shape
        if len(weight.shape) - weight.num_inputs > 1:
            return shape["sequence"] > 1
        is_part = shape["data"] * shape["sequence"] > 1
        return len(weight.shape) > 2 or not (is_part and any(self.tensor))

    def gradients(self, reduce_scatter: bool) -> Iterator[Sent]:
        """Add up the gradient, apart for each use of a table."""
        weight, size = self.weight, self.bytes
        times = weight.lookups + weight.is_output if weight.lookups else 1
        by_parts = reduce_scatter or (weight.in_layers and weight.is_matrix)
        if self.is_sharded and by_parts:
            yield Sent("reduce-scatter" if reduce_scatter else "all-reduce", size, ["fsdp"], times)
            part = size / self.mesh.shape["fsdp"]
            yield Sent("all-reduce", part, ["data", "sequence"], times)
        else:
            yield Sent("all-reduce", size, ["data", "fsdp"], times)
            yield Sent("all-reduce", size, ["sequence"], times)

    def activations(self) -> Iterator[Sent]:
        """Add up what devices computed with their parts of a kernel or a table."""
        weight, tokens = self.weight, self.batch.tokens_of_device(self.mesh)
        *_, width = weight.shape
        if weight.lookups and (axis := self.tensor[0]):
            size = self.batch.itemsize * tokens * width
            yield Sent("all-reduce", size, axis, weight.lookups + weight.is_output)
        for number, axis in enumerate(self.tensor if weight.num_inputs else ()):
            is_input = number < weight.num_inputs
            others = weight.shape[weight.num_inputs :] if is_input else weight.shape[: weight.num_inputs]
            size = self.batch.itemsize * tokens * math.prod(others)
            if axis:  # outputs in each pass, or the gradient of inputs
                yield Sent("all-reduce", size, axis, 1 + (is_input and weight.recomputed))
        if weight.is_output and (axis := self.tensor[weight.names.index("vocab")]):
            yield Sent("all-reduce", 4 * tokens, axis, STATISTICS)


def _around_ring(model: nnx.Module, batch: Batch, mesh: AbstractMesh) -> Iterator[Sent]:
    """Move keys and values, whether they are finite, and their positions around the devices.

    The gradients of keys and values move with them, in float32 at least.
    """
    steps = shards_of("sequence", mesh)
    if steps == 1:
        return
    tokens, positions = batch.tokens_of_device(mesh), batch.length // steps
    for module, layers, recomputed in attentions(model):
        *_, kv_heads, head_width = module.key.kernel.shape
        rows = tokens * kv_heads // shards_of("kv_heads", mesh)
        width = head_width + module.value.kernel.shape[-1]
        forward = rows * (width * batch.itemsize + 4)
        backward = rows * width * (batch.itemsize + max(4, batch.itemsize))
        passes = 1 + recomputed
        times = steps * layers
        yield Sent("collective-permute", forward * passes + backward, ["sequence"], times)
        yield Sent("collective-permute", 4 * positions * passes, ["sequence"], times)
