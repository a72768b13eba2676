"""The training objective, from logits in memory; see `tiled_loss.py` for logits in tiles."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.numerics import wide
from experiments.config.train import LabelTrainPart
from experiments.errors import UsageError
from experiments.registry import LOSSES

REGULARIZERS = ("label_smoothing", "z_loss")  # fields of `train` that a loss may take
# (logits [..., V], labels [...]) -> [...]: the loss of each token.
TokenLoss = Callable[[Array, Array], Array]


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


# (logits [..., V], labels [...], counts [...]) -> sums.
Objective = Callable[[Array, Array, Array], TokenLosses]


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


def add_auxiliary(
    sums: TokenLosses, losses: Mapping[str, Array], *, to_objective: bool
) -> TokenLosses:
    """Add the auxiliary losses of a model, such as the balance loss of a mixture of experts.

    They are means over a batch, so they are weighted by its tokens.

    Args:
        sums: of a batch.
        losses: `Output.losses` of the model.
        to_objective: whether `loss` contains them, as in training.
    """
    weighted = {name: loss * sums.tokens for name, loss in losses.items()}
    total = sum(weighted.values(), sums.loss) if to_objective else sums.loss
    return sums._replace(loss=total, auxiliary=weighted)


def objective(loss: TokenLoss, train: LabelTrainPart, *, training: bool) -> Objective:
    """Return what is minimized in training, or what is measured of a split.

    Args:
        loss: `(logits, labels, ...) -> [...]`, the loss that `train.loss` names. In training, its
            arguments `label_smoothing` and `z_loss` take the values of these fields of `train`;
            otherwise they keep their defaults, as its further arguments do.
        train: the config of the training.
        training: whether the objective is minimized.
    """
    if not training:
        return partial(token_losses, loss=loss)
    names = [name for name in inspect.signature(loss).parameters if name in REGULARIZERS]
    options = {name: getattr(train, name) for name in names if hasattr(train, name)}
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


@jax.custom_jvp
def score_of(logits: Array, labels: Array) -> Array:
    """Return the logits `[...]` of labels `[...]` in [0, V), among `[..., V]`."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


@score_of.defjvp
def _score_along(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Use a comparison, which XLA fuses: the transpose of a gather is a scatter, slow on a CPU."""
    (logits, labels), (along, _) = primals, tangents
    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return score_of(logits, labels), jnp.sum(jnp.where(is_label, along, 0), axis=-1)


def token_losses(
    logits: Array,
    labels: Array,
    counts: Array,
    loss: TokenLoss = cross_entropy,
) -> TokenLosses:
    """Sum loss and metrics over the tokens that count.

    Args:
        logits: `[..., V]`.
        labels: `[...]` ids.
        counts: `[...]` bool, False for padding.
        loss: of each token.

    Raises:
        UsageError: the loss is not one number for each token.
    """
    (logits,) = wide(logits)  # sums over a vocabulary need float32

    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    correct = score_of(logits, labels) > jnp.where(is_label, -jnp.inf, logits).max(axis=-1)

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(counts, values, 0))

    return TokenLosses(
        loss=total(_each(loss, logits, labels)),
        nll=total(cross_entropy(logits, labels)),
        correct=total(correct.astype(logits.dtype)),
        tokens=jnp.sum(counts, dtype=logits.dtype),
    )


def _each(loss: TokenLoss, logits: Array, labels: Array) -> Array:
    """Return the loss of each token, after a check of its shape."""
    found = loss(logits, labels)
    if jnp.shape(found) != labels.shape:
        name = getattr(getattr(loss, "func", loss), "__name__", "loss")
        raise UsageError(
            f"the loss {name!r} must return the loss of each token, of shape {labels.shape} as the "
            f"labels, got shape {jnp.shape(found)}"
        )
    return found


def negative_sampling_losses(scores: Array, counts: Array) -> TokenLosses:
    """Sum the loss of skip-grams (the negative of Mikolov et al. 2013, equation 4).

    It is a logistic regression that separates a neighbour from words drawn at random.

    Args:
        scores: `[..., 1 + negatives]`, that of the neighbour first.
        counts: `[...]` bool, False for padding.

    Returns:
        Sums over skip-grams, each of which counts as a token; it is correct if the neighbour scores
        higher than every word drawn.
    """
    (scores,) = wide(scores)
    neighbour, negatives = scores[..., 0], scores[..., 1:]
    losses = -jax.nn.log_sigmoid(neighbour) - jax.nn.log_sigmoid(-negatives).sum(axis=-1)
    loss = jnp.sum(jnp.where(counts, losses, 0))
    correct = counts & jnp.all(neighbour[..., None] > negatives, axis=-1)
    return TokenLosses(
        loss=loss,
        nll=loss,
        correct=jnp.sum(correct, dtype=scores.dtype),
        tokens=jnp.sum(counts, dtype=scores.dtype),
    )
