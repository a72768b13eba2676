"""Bytes and FLOPs of a training step on each device of a mesh."""

import math

import jax
from flax import nnx
from jax.sharding import AbstractMesh

from experiments.config.train import TrainPart
from experiments.planning.communication import Batch
from experiments.planning.weights import attentions, weights
from experiments.training.optimizer import optimizer
from experiments.training.sharding import shardings, shards_of


def state_bytes(model: nnx.Module, train: TrainPart, mesh: AbstractMesh) -> dict[str, int]:
    """Return the bytes of parameters and optimizer on a device.

    Args:
        model: with shapes for arrays.
        train: decides the optimizer; the average of `ema` counts as a part of it.
        mesh: of the devices.

    Raises:
        UsageError: a size that the mesh does not divide.
    """
    parameters = nnx.state(model)
    state = jax.eval_shape(optimizer(train, parameters).init, parameters)

    def on_device(tree: object) -> int:
        leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings(tree, mesh)), strict=True)
        return sum(math.prod(own.shard_shape(x.shape)) * x.dtype.itemsize for x, own in leaves)

    own = on_device(parameters)
    return {"parameters": own, "optimizer": on_device(state) + (own if train.ema else 0)}


def flops(model: nnx.Module, batch: Batch, mesh: AbstractMesh) -> int:
    """Return the FLOPs of matrix products on a device, recomputation included.

    A token attends to all keys, or to those of its window: implementations that skip masked tiles
    compute fewer.
    """
    tokens = batch.rows_of_device(mesh) * shards_of("batch", mesh) * batch.length
    total = 0
    for weight in weights(model):
        if weight.is_matrix:
            total += (3 + weight.recomputed) * 2 * weight.size * weight.layers * tokens
    for module, layers, recomputed in attentions(model):
        (*_, heads, head_width), value_width = module.query.kernel.shape, module.value.kernel.shape[-1]
        keys = min(batch.length, getattr(module, "window", None) or batch.length)
        products = 2 * heads * (head_width + value_width) * keys * tokens
        total += (3 + recomputed) * products * layers
    return total // mesh.size
