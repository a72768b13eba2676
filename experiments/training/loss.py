"""What training makes small, of logits that are there; `tiled_loss.py` makes them as it goes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class TokenLosses(NamedTuple):
    """Sums over the tokens that count, ready to be added up over batches.

    Attributes:
        loss: smoothed cross-entropy, nats.
        nll: negative log-likelihood of the labels, nats.
        correct: tokens that score highest where they should.
        tokens: tokens that count.
    """

    loss: Array
    nll: Array
    correct: Array
    tokens: Array


def per_token(sums: TokenLosses) -> dict[str, Array]:
    """Means over the tokens that counted, and their number."""
    tokens = jnp.maximum(sums.tokens, 1)
    return {
        "loss": sums.loss / tokens,
        "nll": sums.nll / tokens,
        "accuracy": sums.correct / tokens,
        "tokens": sums.tokens,
    }


def smoothed_cross_entropy(logits: Array, labels: Array, smoothing: float) -> Array:
    """Cross-entropy against the label with a little probability moved to the whole vocabulary.

    The target is q = (1 - ε) · onehot(label) + ε / V (Szegedy et al. 2016, section 7), so the loss
    is KL(q ‖ softmax(logits)) plus the entropy of q, which no model can change.

    Args:
        logits: `[..., V]`.
        labels: `[...]` ids.
        smoothing: ε in [0, 1).

    Returns:
        `[...]`, nats.
    """
    vocab_size = logits.shape[-1]
    # A comparison melts into the sums around it; a gather would come back as a slow scatter.
    is_label = jax.nn.one_hot(labels, vocab_size, dtype=bool)
    target = jnp.where(is_label, 1 - smoothing, 0.0) + smoothing / vocab_size
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(target * logits, axis=-1)


def token_losses(logits: Array, labels: Array, counts: Array, smoothing: float) -> TokenLosses:
    """Sums loss and metrics over the tokens that count; padding counts nowhere.

    Args:
        logits: `[..., V]`.
        labels: `[...]` ids.
        counts: `[...]` bool, False for padding.
        smoothing: ε of `smoothed_cross_entropy`.
    """

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(counts, values, 0))

    return TokenLosses(
        loss=total(smoothed_cross_entropy(logits, labels, smoothing)),
        nll=total(smoothed_cross_entropy(logits, labels, 0.0)),
        correct=total(_scores_highest(logits, labels).astype(logits.dtype)),
        tokens=jnp.sum(counts, dtype=logits.dtype),
    )


def _scores_highest(logits: Array, labels: Array) -> Array:
    """Whether no token scores higher than the label: an argmax would read the logits once more."""
    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(is_label, logits, 0), axis=-1) >= logits.max(axis=-1)


def negative_sampling_losses(scores: Array) -> TokenLosses:
    """Sums the loss of skip-grams (Mikolov et al. 2013, equation 4, with its sign turned).

    A neighbour shall score high and each word drawn at random low, as by logistic regression.

    Args:
        scores: `[..., 1 + negatives]`, the neighbour's first.

    Returns:
        Sums over skip-grams, each of which is a token here; it is correct where the neighbour
        scores higher than every word drawn.
    """
    neighbour, negatives = scores[..., 0], scores[..., 1:]
    losses = -jax.nn.log_sigmoid(neighbour) - jax.nn.log_sigmoid(-negatives).sum(axis=-1)
    correct = jnp.all(neighbour[..., None] > negatives, axis=-1)
    return TokenLosses(
        loss=losses.sum(),
        nll=losses.sum(),
        correct=correct.sum(dtype=scores.dtype),
        tokens=jnp.array(losses.size, scores.dtype),
    )
