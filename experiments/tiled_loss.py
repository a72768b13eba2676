"""The loss of many tokens over a large vocabulary, in tiles, without all logits in memory.

The derivative of a tile is computed in the same pass as its loss, so logits are computed once. On a
mesh each device computes tiles of its own rows.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.numerics import wide
from experiments.losses import Objective, TokenLosses, token_losses
from experiments.sharding import row_shards

TILE = 2**22  # logits, which is 16 MiB of float32


def tiled_token_losses(
    logits: Callable[[Array], Array],
    features: Array,
    labels: Array,
    counts: Array,
    objective: Objective = token_losses,
    *,
    tile: int = TILE,
) -> TokenLosses:
    """Compute `token_losses` of `logits(features)`, in tiles if there are many.

    Only `loss` has a derivative, in reverse mode and of the first order: with respect to the
    features and to the arrays that `logits` closes over.

    Args:
        logits: `[M, D] -> [M, V]`, each row independent of the others.
        features: `[..., D]`; `[B, T, D]` if rows or positions are sharded.
        labels: `[...]` ids.
        counts: `[...]` bool, False for padding.
        objective: sums the losses of the logits of a tile.
        tile: most logits in memory of a device at once, but at least the V of one token.
    """
    shards = row_shards(features)
    if not shards:  # one axis of all rows can be cut into tiles of equal size
        shards, features = (1,), features.reshape(-1, features.shape[-1])
        labels, counts = labels.ravel(), counts.ravel()
    vocab_size = jax.eval_shape(logits, features).shape[-1]
    local = [size // parts for size, parts in zip(labels.shape, shards, strict=True)]
    steps, at_once = _cut(local, max(1, tile // vocab_size))
    if math.prod(steps) == 1:
        return _loss_alone(objective(logits(features), labels, counts))
    each = [*zip(shards, steps, at_once, strict=True)]
    features, labels, counts = (_tiles(array, each) for array in (features, labels, counts))
    axes = labels.ndim - 1 - len(each)  # of the shards
    pure, head = jax.closure_convert(logits, features[(0,) * (1 + axes)])
    return _loss_alone(_tiled(pure, objective, axes, head, features, labels, counts))


def _tiles(array: Array, each: Sequence[tuple[int, int, int]]) -> Array:
    """Cut each of the first axes into (shards, steps, at once): `[steps, *shards, *at_once, *]`.

    The shards are left out if each axis has one.
    """
    rest = array.shape[len(each) :]
    for axis, (shards, steps, at_once) in enumerate(each):
        shape = array.shape[: 3 * axis], array.shape[3 * axis + 1 :]
        local = array.shape[3 * axis] // shards
        missing = [(0, 0)] * array.ndim
        missing.insert(3 * axis + 1, (0, steps * at_once - local))
        array = jnp.pad(array.reshape(*shape[0], shards, local, *shape[1]), missing)
        array = array.reshape(*shape[0], shards, steps, at_once, *shape[1])
    order = [3 * axis + part for part in (1, 0, 2) for axis in range(len(each))]
    array = array.transpose(*order, *range(len(order), array.ndim))
    shards, _, at_once = zip(*each, strict=True)
    return array.reshape(-1, *(shards if math.prod(shards) > 1 else ()), *at_once, *rest)


def _cut(sizes: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Cut axes of some sizes into tiles of at most `most` entries, along the first axes first.

    Returns:
        The number of tiles along each axis, and the size of a tile along each.
    """
    steps, at_once = [], []
    for size in reversed(sizes):
        number = -(-size // max(1, min(size, most)))
        steps.insert(0, number)
        at_once.insert(0, -(-size // number))  # tiles of equal size have little padding
        most = most // size if number == 1 else 1
    return steps, at_once


def _loss_alone(sums: TokenLosses) -> TokenLosses:
    """Stop all gradients but that of the loss."""
    return jax.lax.stop_gradient(sums)._replace(loss=sums.loss)


def _nothing(features: Array, axes: int) -> TokenLosses:
    return TokenLosses(*wide(*[jnp.zeros(features.shape[1 : 1 + axes], features.dtype)] * 4))


def _per_shard(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """Map a function of head, features, labels and counts over axes in front of all but the head.

    Each shard has a sum of its own until all tiles are added up. Otherwise the devices would add
    up the gradient of the head for every tile.
    """
    for _ in range(axes):
        function = jax.vmap(function, in_axes=(None, 0, 0, 0))
    return function


def _over_shards(tree: Any, axes: int) -> Any:  # noqa: ANN401 - any pytree
    return jax.tree.map(lambda leaf: leaf.sum(range(axes)) if axes else leaf, tree)


Logits = Callable[..., Array]
Head = list[Array]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _tiled(
    logits: Logits,
    objective: Objective,
    axes: int,
    head: Head,
    features: Array,
    labels: Array,
    counts: Array,
) -> TokenLosses:
    def of_tile(head: Head, features: Array, labels: Array, counts: Array) -> TokenLosses:
        return objective(logits(features, *head), labels, counts)

    def add(sums: TokenLosses, tile: tuple[Array, Array, Array]) -> tuple[TokenLosses, None]:
        return jax.tree.map(jnp.add, sums, _per_shard(of_tile, axes)(head, *tile)), None

    sums, _ = jax.lax.scan(add, _nothing(features, axes), (features, labels, counts))
    return _over_shards(sums, axes)


def _forward(
    logits: Logits,
    objective: Objective,
    axes: int,
    head: Head,
    features: Array,
    labels: Array,
    counts: Array,
) -> tuple[TokenLosses, tuple[Head, Array]]:
    def of_tile(
        head: Head, features: Array, labels: Array, counts: Array
    ) -> tuple[Array, TokenLosses]:
        sums = objective(logits(features, *head), labels, counts)
        return sums.loss, sums

    def add(
        carry: tuple[TokenLosses, Head], tile: tuple[Array, Array, Array]
    ) -> tuple[tuple[TokenLosses, Head], Array]:
        slopes = _per_shard(jax.grad(of_tile, (0, 1), has_aux=True), axes)
        (d_head, d_features), found = slopes(head, *tile)
        # Added up in float32 at least, whatever the dtype of the head.
        return jax.tree.map(jnp.add, carry, (found, list(wide(*d_head)))), d_features

    shards = features.shape[1 : 1 + axes]
    zeros = [jnp.zeros((*shards, *array.shape), array.dtype) for array in head]
    begun = _nothing(features, axes), list(wide(*zeros))
    (sums, d_head), d_features = jax.lax.scan(add, begun, (features, labels, counts))
    sums, d_head = _over_shards((sums, d_head), axes)
    d_head = [ours.astype(array.dtype) for ours, array in zip(d_head, head, strict=True)]
    return sums, (d_head, d_features)


def _backward(
    logits: Logits,
    objective: Objective,
    axes: int,
    derivatives: tuple[Head, Array],
    along: TokenLosses,
) -> tuple[Head, Array, None, None]:
    del logits, objective, axes
    d_head, d_features = jax.tree.map(
        lambda each: along.loss.astype(each.dtype) * each, derivatives
    )
    return d_head, d_features, None, None


_tiled.defvjp(_forward, _backward)
