"""The loss of many tokens over a large vocabulary, in tiles, without all logits in memory.

The derivative of a tile is computed in the same pass as its loss, so logits are computed once.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.precision import wide
from experiments.training.loss import Objective, TokenLosses, token_losses

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
        features: `[..., D]`.
        labels: `[...]` ids.
        counts: `[...]` bool, False for padding.
        objective: sums the losses of the logits of a tile.
        tile: most logits in memory at once, but at least the V of one token.
    """
    width = features.shape[-1]
    features, labels, counts = features.reshape(-1, width), labels.ravel(), counts.ravel()
    vocab_size = jax.eval_shape(logits, features).shape[-1]
    number = -(-len(features) // max(1, tile // vocab_size))
    if number <= 1:
        return _loss_alone(objective(logits(features), labels, counts))
    rows = -(-len(features) // number)  # tiles of equal size have little padding
    pure, head = jax.closure_convert(logits, features[:rows])

    def tiles(array: Array) -> Array:
        rest = -len(array) % rows  # padding
        padded = jnp.pad(array, [(0, rest), *[(0, 0)] * (array.ndim - 1)])
        return padded.reshape(-1, rows, *array.shape[1:])

    return _loss_alone(_tiled(pure, objective, head, tiles(features), tiles(labels), tiles(counts)))


def _loss_alone(sums: TokenLosses) -> TokenLosses:
    """Stop all gradients but that of the loss."""
    return jax.lax.stop_gradient(sums)._replace(loss=sums.loss)


def _nothing(features: Array) -> TokenLosses:
    return TokenLosses(*wide(*[jnp.zeros((), features.dtype)] * 4))


Logits = Callable[..., Array]
Head = list[Array]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _tiled(
    logits: Logits, objective: Objective, head: Head, features: Array, labels: Array, counts: Array
) -> TokenLosses:
    def add(sums: TokenLosses, tile: tuple[Array, Array, Array]) -> tuple[TokenLosses, None]:
        features, labels, counts = tile
        found = objective(logits(features, *head), labels, counts)
        return jax.tree.map(jnp.add, sums, found), None

    return jax.lax.scan(add, _nothing(features), (features, labels, counts))[0]


def _forward(
    logits: Logits, objective: Objective, head: Head, features: Array, labels: Array, counts: Array
) -> tuple[TokenLosses, tuple[Head, Array]]:
    def add(
        carry: tuple[TokenLosses, Head], tile: tuple[Array, Array, Array]
    ) -> tuple[tuple[TokenLosses, Head], Array]:
        features, labels, counts = tile

        def of_tile(head: Head, features: Array) -> tuple[Array, TokenLosses]:
            sums = objective(logits(features, *head), labels, counts)
            return sums.loss, sums

        (d_head, d_features), found = jax.grad(of_tile, (0, 1), has_aux=True)(head, features)
        # Added up in float32 at least, whatever the dtype of the head.
        return jax.tree.map(jnp.add, carry, (found, list(wide(*d_head)))), d_features

    begun = _nothing(features), list(wide(*map(jnp.zeros_like, head)))
    (sums, d_head), d_features = jax.lax.scan(add, begun, (features, labels, counts))
    d_head = [ours.astype(array.dtype) for ours, array in zip(d_head, head, strict=True)]
    return sums, (d_head, d_features)


def _backward(
    logits: Logits, objective: Objective, derivatives: tuple[Head, Array], along: TokenLosses
) -> tuple[Head, Array, None, None]:
    del logits, objective
    d_head, d_features = jax.tree.map(
        lambda each: along.loss.astype(each.dtype) * each, derivatives
    )
    return d_head, d_features, None, None


_tiled.defvjp(_forward, _backward)
