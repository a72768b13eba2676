"""Bytes that each device sends in a training step, by kind of communication.

They are those of algorithms on a ring: of an array of S bytes on n devices a device sends
(n - 1) / n · S in an all-gather or a reduce-scatter, twice as many in an all-reduce, and S in each
collective-permute. `tests/experiments/planning/compare.py` counts the same in compiled programs.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh

from attention.modules import Attention
from experiments.planning.weights import Shard, attentions, weights
from experiments.training.sharding import shards_of

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
STATISTICS = 8  # float32 numbers of each token that the loss reduces over a sharded vocabulary


class BatchShape(NamedTuple):
    """What a step reads.

    Attributes:
        rows: B.
        length: T, of a source and of a target.
        dtype: of the computation.
        parts: microbatches, one after another.
    """

    rows: int
    length: int
    dtype: str = "float32"
    parts: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the computation."""
        return jnp.dtype(self.dtype).itemsize

    def rows_of_device(self, mesh: AbstractMesh) -> int:
        """Return the rows of a part on each device, padding included."""
        return -(-self.rows // (self.parts * shards_of("batch", mesh)))

    def tokens_of_device(self, mesh: AbstractMesh) -> int:
        """Return the tokens of a part on each device."""
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
    model: nnx.Module, batch: BatchShape, mesh: AbstractMesh, *, reduce_scatter: bool = True
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
        shard = Shard.of(weight, mesh)
        found = [
            *_gathered(shard, batch),
            *_gradients(shard, batch, reduce_scatter),
            *_activations(shard, batch),
        ]
        for each in found:  # what is gathered outside the layers is gathered for all parts
            is_once = each.kind == "all-gather" and not weight.in_layers
            parts = 1 if is_once else batch.parts
            total[each.kind] += weight.layers * parts * each.on_ring(mesh)
    for _, module, layers, recomputed in attentions(model):
        for each in _of_attention(module, recomputed, batch, mesh):
            total[each.kind] += layers * batch.parts * each.on_ring(mesh)
    return total


def _gathered(shard: Shard, batch: BatchShape) -> Iterator[Sent]:
    """Gather what "fsdp" shards of a parameter for each pass."""
    weight = shard.weight
    times = 1
    if weight.num_inputs and weight.in_layers:
        times = 2  # the compiler merges the gathers for recomputation and for the gradient
    elif not weight.is_matrix and not weight.lookups:
        times += (weight.path[-1] == "scale") + weight.recomputed
    if shard.fsdp > 1:
        yield Sent("all-gather", batch.itemsize * shard.size, ["fsdp"], times)


def _gradients(shard: Shard, batch: BatchShape, reduce_scatter: bool) -> Iterator[Sent]:
    """Add up the gradient, separately for each use of a table."""
    weight, size = shard.weight, batch.itemsize * shard.size
    times = weight.lookups + weight.is_output if weight.lookups else 1
    by_parts = reduce_scatter or (weight.in_layers and weight.is_matrix)
    if shard.fsdp > 1 and by_parts:
        yield Sent("reduce-scatter" if reduce_scatter else "all-reduce", size, ["fsdp"], times)
        yield Sent("all-reduce", size / shard.fsdp, ["data", "sequence"], times)
    else:
        yield Sent("all-reduce", size, ["data", "fsdp"], times)
        yield Sent("all-reduce", size, ["sequence"], times)


def _activations(shard: Shard, batch: BatchShape) -> Iterator[Sent]:
    """Add up what devices computed with their parts of a kernel or a table."""
    weight, tokens = shard.weight, batch.tokens_of_device(shard.mesh)
    inputs, outputs = weight.shape[: weight.num_inputs], weight.shape[weight.num_inputs :]
    vectors = batch.itemsize * tokens
    if weight.num_inputs:
        of_inputs, of_outputs = shard.axes[: weight.num_inputs], shard.axes[weight.num_inputs :]
        for axes in filter(None, of_inputs):  # outputs, in each pass
            yield Sent("all-reduce", vectors * math.prod(outputs), axes, 1 + weight.recomputed)
        for axes in filter(None, of_outputs):  # gradients of inputs
            yield Sent("all-reduce", vectors * math.prod(inputs), axes)
    elif weight.lookups and shard.tensor_axes:
        size = vectors * weight.shape[-1]
        yield Sent("all-reduce", size, shard.tensor_axes, weight.lookups + weight.is_output)
    if weight.is_output and shard.tensor_axes:
        yield Sent("all-reduce", 4 * tokens, shard.tensor_axes, STATISTICS)


def _of_attention(
    module: Attention, recomputed: bool, batch: BatchShape, mesh: AbstractMesh
) -> Iterator[Sent]:
    """Move keys and values around the devices of "sequence", and share a single head of them.

    Whether keys are finite and their positions move along; in the backward pass gradients do, in
    float32 at least.
    """
    *_, kv_heads, head_width = module.key.kernel.shape
    passes, tokens = 1 + recomputed, batch.tokens_of_device(mesh)
    width = head_width + module.value.kernel.shape[-1]
    shards, steps = shards_of("kv_heads", mesh), shards_of("sequence", mesh)
    if kv_heads < shards:
        size = batch.itemsize * tokens * width
        yield Sent("all-reduce", size, ["tensor"], passes + 2)
    if steps > 1:
        rows = tokens * max(1, kv_heads // shards)
        forward = rows * (width * batch.itemsize + 4) + 4 * batch.length // steps
        backward = rows * width * (batch.itemsize + max(4, batch.itemsize))
        yield Sent("collective-permute", forward * passes + backward, ["sequence"], steps)
