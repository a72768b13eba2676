"""Bytes and FLOPs of a training step on each device of a mesh."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.extend.core import Var
from jax.sharding import AbstractMesh

from attention.modules import EncoderDecoder, TransformerConfig
from attention.primitives.cache import Cache
from experiments.analysis.description import cache_for, keys_in_window
from experiments.config.train import TrainPart
from experiments.planning.communication import BatchShape
from experiments.planning.weights import Shard, attentions, weights
from experiments.training.loss import token_losses
from experiments.training.optimizer import optimizer
from experiments.training.sharding import padded_tables, shardings, shards_of
from experiments.training.tiled_loss import tiled_token_losses


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
        tree = padded_tables(tree, mesh)
        leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings(tree, mesh)), strict=True)
        return sum(math.prod(own.shard_shape(x.shape)) * x.dtype.itemsize for x, own in leaves)

    own = on_device(parameters)
    return {"parameters": own, "optimizer": on_device(state) + (own if train.ema else 0)}


def flops(model: nnx.Module, batch: BatchShape, mesh: AbstractMesh) -> int:
    """Return the FLOPs of matrix products on a device, recomputation included.

    A token attends to all keys, or to those of its window: implementations that skip masked tiles
    compute fewer. The backward pass of attention computes the scores once more.
    """
    tokens, total = batch.parts * batch.tokens_of_device(mesh), 0
    for weight in filter(lambda weight: weight.is_matrix, weights(model)):
        products = 2 * Shard.of(weight, mesh).size * tokens
        total += (3 + weight.recomputed) * products * weight.layers
    for path, module, layers, recomputed in attentions(model):
        (heads, width), value_width = module.query.kernel.shape[-2:], module.value.kernel.shape[-1]
        keys = min(batch.length, keys_in_window(path, module) or batch.length)
        pairs = heads // shards_of("heads", mesh) * keys * tokens
        total += 2 * pairs * layers * ((3 + recomputed) * (width + value_width) + width)
    return total


def activation_bytes(
    model: nnx.Module, config: TransformerConfig, batch: BatchShape, mesh: AbstractMesh
) -> float:
    """Return the bytes of the activations that a device keeps for the backward pass.

    They are the residuals of a model with the heads, hidden units and words of one device, for one
    row, times its part of the batch.

    Args:
        model: with shapes for arrays.
        config: of the model.
        batch: what the step reads.
        mesh: of the devices.
    """
    part = _part_of_device(model, config, batch, mesh)
    definition, parameters = nnx.split(part)

    def pull(tokens: Array, parameters: nnx.State) -> Callable[..., Any]:
        def loss(parameters: nnx.State) -> Array:
            return _loss(nnx.merge(definition, parameters), tokens)

        return jax.vjp(loss, parameters)[1]

    row = jax.ShapeDtypeStruct((1, batch.length), jnp.int32)
    jaxpr = jax.make_jaxpr(pull)(row, parameters).jaxpr
    computed = {jaxpr.invars[0]}  # from the tokens, as parameters are not
    for equation in jaxpr.eqns:
        if any(x in computed for x in equation.invars if isinstance(x, Var)):
            computed.update(equation.outvars)
    kept = {x for x in jaxpr.outvars if isinstance(x, Var) and x in computed}
    of_row = sum(x.aval.size * x.aval.dtype.itemsize for x in kept)
    return of_row * batch.tokens_of_device(mesh) / batch.length


def _part_of_device(
    model: nnx.Module, config: TransformerConfig, batch: BatchShape, mesh: AbstractMesh
) -> nnx.Module:
    """Return a model of the same kind, with the heads, hidden units and words of one device."""
    whole, dtypes = config, {"dtype": batch.dtype, "param_dtype": batch.dtype}

    def layer(index: int) -> dict[str, Any]:
        return {**whole.overrides(index), **_sizes_of_device(whole.layer(index), mesh), **dtypes}

    # Outside of the layers, only score functions that all layers share read these sizes.
    sizes = _sizes_of_device(whole.layer(0), mesh)
    config = replace(whole, **sizes, **dtypes, per_layer=layer)
    if isinstance(model, EncoderDecoder):
        target, source = model.target_embedding.vocab_size, model.source_embedding.vocab_size
        words = {"source_vocab_size": source or target, "target_vocab_size": target}
    else:
        words = {"vocab_size": model.embedding.vocab_size}
    words = {name: -(-size // shards_of("vocab", mesh)) for name, size in words.items()}
    return jax.eval_shape(lambda: type(model).from_config(config, **words, rngs=nnx.Rngs(0)))


def _sizes_of_device(config: TransformerConfig, mesh: AbstractMesh) -> dict[str, int | None]:
    shards, kv_heads = shards_of("heads", mesh), config.num_kv_heads
    head_width = config.head_width
    if shards > 1 and head_width is None:
        head_width = config.width // config.num_heads
    return {
        "num_heads": config.num_heads // shards,
        "num_kv_heads": kv_heads and max(1, kv_heads // shards_of("kv_heads", mesh)),
        "head_width": head_width,
        "hidden": config.hidden // shards_of("hidden", mesh),
    }


def cache_slots(model: nnx.Module, length: int) -> list[jax.ShapeDtypeStruct]:
    """Return the slots `[..., K, S, H]` of keys and of values in the caches of one row.

    Args:
        model: with shapes for arrays.
        length: number of tokens, of the source too if there is one.
    """
    if not hasattr(model, "new_cache"):
        return []
    tree = jax.eval_shape(lambda model: cache_for(model, length, length), model)
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Cache))
    caches = [node for node in nodes if isinstance(node, Cache)]
    return [slots for cache in caches for slots in (cache.key_slots, cache.value_slots)]


def cache_bytes(
    slots: Sequence[jax.ShapeDtypeStruct], batch: BatchShape, mesh: AbstractMesh
) -> float:
    """Return the bytes of the cache on a device that decodes as many rows as a batch has.

    Args:
        slots: of `cache_slots`.
        batch: what a step reads.
        mesh: of the devices.
    """
    shards = shards_of("kv_heads", mesh)
    of_row = sum(x.size * x.dtype.itemsize / math.gcd(shards, x.shape[-3]) for x in slots)
    return of_row * batch.rows / shards_of("batch", mesh)


def _loss(model: nnx.Module, tokens: Array) -> Array:
    """Return the loss of a model whose inputs and labels are some tokens."""
    rng, counts = jax.random.key(0), jnp.ones(tokens.shape, bool)
    if not isinstance(model, EncoderDecoder):
        logits = model(tokens, rng=rng).logits
        return token_losses(logits, tokens, counts).loss
    source = model.encode(tokens, rng=rng)
    target = model.decode(tokens, source.features, rng=rng)
    return tiled_token_losses(model.logits, target.features, tokens, counts).loss
