"""The training objective, of logits in memory; `tiled_loss.py` computes them tile by tile."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.primitives.precision import wide
from experiments.config.train import LabelTrainPart

# (logits [..., V], labels [...]) -> [...]: the loss of each token.
Objective = Callable[[Array, Array], Array]


class TokenLosses(NamedTuple):
    """Sums over the tokens that count, ready to be added up over batches.

    Attributes:
        loss: the training objective.
        nll: negative log-likelihood of the labels, nats.
        correct: tokens that score highest where they should.
        tokens: tokens that count.
        auxiliary: losses of sublayers by name, times the tokens.
    """

    loss: Array
    nll: Array
    correct: Array
    tokens: Array
    auxiliary: Mapping[str, Array] = {}


def per_token(sums: TokenLosses) -> dict[str, Array]:
    """Means over the tokens that counted, and their number."""
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


def objective(train: LabelTrainPart, *, training: bool) -> Objective:
    """The training objective of a configuration; plain cross-entropy where it is only measured.

    Args:
        train: label_smoothing and z_loss.
        training: whether it is minimized.
    """
    if not training:
        return smoothed_cross_entropy
    return partial(smoothed_cross_entropy, smoothing=train.label_smoothing, z_loss=train.z_loss)


def smoothed_cross_entropy(
    logits: Array, labels: Array, smoothing: float = 0.0, z_loss: float = 0.0
) -> Array:
    """Cross-entropy against the label with a little probability moved to the whole vocabulary.

    The target is q = (1 - ε) · onehot(label) + ε / V (Szegedy et al. 2016, section 7), so the loss
    is KL(q ‖ softmax(logits)) plus the entropy of q, which no model can change. A z-loss keeps
    log Σ exp(logits) near 0, so that logits do not drift to where float32 is coarse: its square,
    times a small coefficient, is added (Chowdhery et al. 2022, section 5).

    Args:
        logits: `[..., V]`.
        labels: `[...]` ids in [0, V).
        smoothing: ε in [0, 1).
        z_loss: the coefficient; 1e-4 in that paper.

    Returns:
        `[...]`, nats.
    """
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    expected = (1 - smoothing) * score_of(logits, labels)
    if smoothing:
        expected += smoothing * logits.mean(axis=-1)
    cross_entropy = logsumexp - expected
    return cross_entropy + z_loss * logsumexp**2 if z_loss else cross_entropy


@jax.custom_jvp
def score_of(logits: Array, labels: Array) -> Array:
    """The logits `[...]` of labels `[...]` in [0, V), among `[..., V]`."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


@score_of.defjvp
def _score_along(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Transposed, a gather is a scatter, slow on a CPU; a comparison melts into what is around."""
    (logits, labels), (along, _) = primals, tangents
    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return score_of(logits, labels), jnp.sum(jnp.where(is_label, along, 0), axis=-1)


def token_losses(
    logits: Array, labels: Array, counts: Array, loss: Objective = smoothed_cross_entropy
) -> TokenLosses:
    """Sums loss and metrics over the tokens that count; padding counts nowhere.

    Args:
        logits: `[..., V]`.
        labels: `[...]` ids.
        counts: `[...]` bool, False for padding.
        loss: of each token.
    """
    (logits,) = wide(logits)  # sums over a vocabulary need it

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(counts, values, 0))

    return TokenLosses(
        loss=total(loss(logits, labels)),
        nll=total(smoothed_cross_entropy(logits, labels)),
        correct=total(_scores_highest(logits, labels).astype(logits.dtype)),
        tokens=jnp.sum(counts, dtype=logits.dtype),
    )


def _scores_highest(logits: Array, labels: Array) -> Array:
    """Whether no token scores higher than the label: an argmax would read the logits once more."""
    return score_of(logits, labels) >= logits.max(axis=-1)


def negative_sampling_losses(scores: Array, counts: Array) -> TokenLosses:
    """Sums the loss of skip-grams (Mikolov et al. 2013, equation 4, with its sign turned).

    A neighbour shall score high and each word drawn at random low, as by logistic regression.

    Args:
        scores: `[..., 1 + negatives]`, the neighbour's first.
        counts: `[...]` bool, False for padding.

    Returns:
        Sums over skip-grams, each of which is a token here; it is correct where the neighbour
        scores higher than every word drawn.
    """
    (scores,) = wide(scores)  # as all that is counted and summed
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
