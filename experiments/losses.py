"""The training objective, from logits that are all in memory, or in tiles of them."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.numerics import wide
from experiments.config.parts import TrainPart
from experiments.errors import UsageError
from experiments.registry import LOSSES
from experiments.sharding import map_tokens, padded_rows

TokenLoss = Callable[[Array, Array], Array]  # (logits [..., V], labels [...]) -> [...]
TILE = 2**22  # logits, which is 16 MiB of float32


class TokenLosses(NamedTuple):
    """Sums over the tokens that count, which add up over batches.

    Attributes:
        loss: the training objective.
        nll: negative log-likelihood of the labels, nats.
        correct: tokens whose label scores higher than every other.
        tokens: tokens that count.
        auxiliary: losses of sublayers by name, times the tokens.
    """

    loss: Array
    nll: Array
    correct: Array
    tokens: Array
    auxiliary: Mapping[str, Array] = {}


Objective = Callable[[Array, Array, Array], TokenLosses]  # of logits, labels, counts
Totals = tuple[TokenLosses, list[Array]]  # of tiles: with the derivatives by the head


def per_token(sums: TokenLosses) -> dict[str, Array]:
    """Return means over the tokens that count, and their number."""
    tokens = jnp.maximum(sums.tokens, 1)
    return {
        "loss": sums.loss / tokens,
        "nll": sums.nll / tokens,
        "accuracy": sums.correct / tokens,
        "tokens": sums.tokens,
        **{name: loss / tokens for name, loss in sums.auxiliary.items()},
    }


def objective(loss: TokenLoss, train: TrainPart, *, training: bool) -> Objective:
    """Return what is minimized in training, or what is measured of a split.

    In training, the arguments `label_smoothing` and `z_loss` of the loss that `train.loss` names
    take the values of these fields of `train`; otherwise they keep their defaults, as others do.
    """
    regularizers = {"label_smoothing", "z_loss"} if training else set()
    taken = regularizers & inspect.signature(loss).parameters.keys()
    options = {name: getattr(train, name) for name in taken if hasattr(train, name)}
    return partial(token_losses, loss=partial(loss, **options))


@LOSSES("cross_entropy")
def cross_entropy(
    logits: Array, labels: Array, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Array:
    """Cross-entropy against the label, with some probability moved to the whole vocabulary.

    The target is q = (1 - ε) · onehot(label) + ε / V (Szegedy et al. 2016, section 7), so the loss
    is KL(q ‖ softmax(logits)) plus the entropy of q, which no model can change. A z-loss keeps
    log Σ exp(logits) near 0, so that logits do not drift to where float32 is coarse: its square,
    times a small coefficient, is added (Chowdhery et al. 2022, section 5).

    Args:
        logits: `[..., V]`.
        labels: `[...]` ids in [0, V).
        label_smoothing: ε in [0, 1).
        z_loss: the coefficient; 1e-4 in that paper.

    Returns:
        `[...]`, nats.
    """
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    expected = (1 - label_smoothing) * score_of(logits, labels)
    if label_smoothing:
        expected += label_smoothing * logits.mean(axis=-1)
    loss = logsumexp - expected
    return loss + z_loss * logsumexp**2 if z_loss else loss


def score_of(logits: Array, labels: Array) -> Array:
    """Return the logits `[...]` of labels `[...]` in [0, V), among `[..., V]`.

    XLA fuses a comparison; the derivative of a gather is a scatter, which is slow on a CPU.
    """
    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(is_label, logits, 0), axis=-1)


def token_losses(
    logits: Array, labels: Array, counts: Array, loss: TokenLoss = cross_entropy
) -> TokenLosses:
    """Sum loss and metrics over the tokens that count, which are not padding.

    Raises:
        UsageError: the loss is not one number for each token.
    """
    (logits,) = wide(logits)  # sums over a vocabulary need float32
    losses = loss(logits, labels)
    if jnp.shape(losses) != labels.shape:
        name = getattr(getattr(loss, "func", loss), "__name__", "loss")
        raise UsageError(
            f"the loss {name!r} must return the loss of each token, of shape {labels.shape} as the "
            f"labels, got shape {jnp.shape(losses)}"
        )
    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    correct = score_of(logits, labels) > jnp.where(is_label, -jnp.inf, logits).max(axis=-1)
    return TokenLosses(
        loss=jnp.sum(losses, where=counts),
        nll=jnp.sum(cross_entropy(logits, labels), where=counts),
        correct=jnp.sum(correct, where=counts, dtype=logits.dtype),
        tokens=jnp.sum(counts, dtype=logits.dtype),
    )


def negative_sampling_losses(scores: Array, counts: Array) -> TokenLosses:
    """Sum the loss of skip-grams (the negative of Mikolov et al. 2013, equation 4).

    It is a logistic regression that separates a neighbour from words drawn at random.

    Each skip-gram counts as a token, which is correct if the neighbour scores highest. Scores are
    `[..., 1 + negatives]`, that of the neighbour first.
    """
    (scores,) = wide(scores)
    neighbour, negatives = scores[..., 0], scores[..., 1:]
    losses = -jax.nn.log_sigmoid(neighbour) - jax.nn.log_sigmoid(-negatives).sum(axis=-1)
    loss = jnp.sum(losses, where=counts)
    correct = counts & jnp.all(neighbour[..., None] > negatives, axis=-1)
    correct, tokens = (jnp.sum(each, dtype=scores.dtype) for each in (correct, counts))
    return TokenLosses(loss, loss, correct, tokens)


def tiled_token_losses(
    logits: Callable[[Array], Array],
    features: Array,
    labels: Array,
    counts: Array,
    objective: Objective = token_losses,
    *,
    tile: int = TILE,
) -> TokenLosses:
    """Compute the objective of `logits(features)`, in tiles if there are many logits.

    The derivative of a tile is computed in the same pass as its loss, so logits are computed once,
    and never all are in memory. On a mesh each device computes tiles of its own tokens. Only `loss`
    has a derivative, in reverse mode and of the first order: with respect to the features and to
    the arrays that `logits` closes over.

    Args:
        logits: `[M, D] -> [M, V]`, each row independent of the others.
        features: `[..., D]`; `[B, T, D]` if rows or positions are sharded.
        labels: `[...]` ids.
        counts: `[...]` bool, False for padding.
        objective: sums the losses of the logits of a tile.
        tile: most logits in memory of a device at once, but at least the V of one token.
    """
    most = max(1, tile // jax.eval_shape(logits, features).shape[-1])  # tokens of a tile
    on_devices, number = map_tokens(features)
    if number == labels.size:  # no shards to keep apart
        features = features.reshape(-1, features.shape[-1])
        labels, counts = labels.ravel(), counts.ravel()
    if number <= most:
        sums = objective(logits(features), labels, counts)
    else:
        size = -(-number // -(-number // most))  # tiles of equal size have little padding
        example = jax.ShapeDtypeStruct((size, features.shape[-1]), features.dtype)
        pure, head = jax.closure_convert(logits, example)
        sums = _tiled(pure, objective, on_devices, size, head, features, labels, counts)
    return jax.lax.stop_gradient(sums)._replace(loss=sums.loss)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _tiled(*arguments: Any) -> TokenLosses:  # noqa: ANN401 - those of `_forward`
    return _forward(*arguments)[0]  # the compiler removes the gradients


def _forward(
    logits: Callable[..., Array],
    objective: Objective,
    on_devices: Callable[..., Any],
    size: int,
    head: list[Array],
    features: Array,
    labels: Array,
    counts: Array,
) -> tuple[TokenLosses, tuple[list[Array], Array]]:
    """Return the sums, and the derivatives of the loss by the head and the features."""

    def tile_loss(head: list[Array], *tile: Array) -> tuple[Array, TokenLosses]:
        sums = objective(logits(tile[0], *head), *tile[1:])
        return sums.loss, sums

    def on_device(
        names: tuple[str, ...], head: list[Array], *arrays: Array
    ) -> tuple[Totals, Array]:
        def add(total: Totals, tile: tuple[Array, ...]) -> tuple[Totals, Array]:
            slopes, sums = jax.grad(tile_loss, (0, 1), has_aux=True)(head, *tile)
            # Added up in float32 at least, whatever the dtype of the head.
            return jax.tree.map(jnp.add, total, (sums, list(wide(*slopes[0])))), slopes[1]

        local, axes = arrays[0].shape, arrays[1].ndim
        tokens = [array.reshape(-1, *array.shape[axes:]) for array in arrays]
        tiles = [padded_rows(array, size).reshape(-1, size, *array.shape[1:]) for array in tokens]
        zeros = [jnp.zeros_like(array) for array in head]
        start = TokenLosses(*wide(*[jnp.zeros((), arrays[0].dtype)] * 4)), list(wide(*zeros))
        totals, d_features = jax.lax.scan(add, start, tuple(tiles))
        d_features = d_features.reshape(-1, local[-1])[: len(tokens[0])].reshape(local)
        return jax.lax.psum(totals, names), d_features

    (sums, d_head), d_features = on_devices(on_device)(head, features, labels, counts)
    d_head = [slope.astype(array.dtype) for slope, array in zip(d_head, head, strict=True)]
    return sums, (d_head, d_features)


def _backward(*arguments: Any) -> tuple[list[Array], Array, None, None]:  # noqa: ANN401 - of defvjp
    """Scale the derivatives by that of the loss."""
    *_, derivatives, along = arguments
    scaled = jax.tree.map(lambda slope: along.loss.astype(slope.dtype) * slope, derivatives)
    return *scaled, None, None


_tiled.defvjp(_forward, _backward)
