"""What decoding returns, and how it grows by a token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.rules import Rules


class Answer(NamedTuple):
    """What was generated, L = the room for it; `...` is B, or B and the n best of beam search.

    Attributes:
        tokens: `[..., L]`, `pad` behind the end. An answer that did not end in time holds no end.
        lengths: how many tokens were generated, the end included, `[...]`; 0 for a row that was
            given up for want of room.
        scores: `[...]`: the log-probability of the answer, in beam search over its length penalty.
        log_probs: of each token under the step, before any filter, `[..., L]`; 0 for forced ones
            and behind the end. NaN from where the step scores NaN.
        observed: what `observe` read from the state that chose each token, leaves `[..., L, *]`;
            zeros behind the end.
    """

    tokens: Array
    lengths: Array
    scores: Array
    log_probs: Array
    observed: object


def blank(
    shape: tuple[int, ...],
    rules: Rules,
    room: int,
    start: Array,
    logits: jax.ShapeDtypeStruct,
    seen: object,
) -> Answer:
    """Answers without a token.

    Args:
        shape: the leading axes `...`.
        rules: for `pad`.
        room: L.
        start: has the dtype of the tokens.
        logits: have the dtype of the scores.
        seen: shapes and dtypes of what is observed, leaves `[*shape, *]`.
    """
    whole = (*shape, room)

    def zeros(like: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((*whole, *like.shape[len(shape) :]), like.dtype)

    return Answer(
        tokens=jnp.full(whole, rules.pad, start.dtype),
        lengths=jnp.zeros(shape, jnp.int32),
        scores=jnp.zeros(shape, logits.dtype),
        log_probs=jnp.zeros(whole, logits.dtype),
        observed=jax.tree.map(zeros, seen),
    )


def append(
    answer: Answer, index: Array, token: Array, log_prob: Array, observed: object, going: Array
) -> Answer:
    """Writes token number `index` of the answers that are going on; the others stay as they are.

    Args:
        answer: so far.
        index: how many tokens it has, `[B]`.
        token: the next one, `[...]`.
        log_prob: its log-probability, `[...]`, which is added to the score.
        observed: what belongs to it, leaves `[..., *]`.
        going: which answers go on, `[...]`.
    """
    room = answer.tokens.shape[-1]
    is_next = jax.nn.one_hot(index, room, dtype=bool)  # nowhere, past the room
    here = going[..., None] & jnp.expand_dims(is_next, tuple(range(1, going.ndim)))

    def write(past: Array, new: Array) -> Array:
        each = jnp.expand_dims(here, tuple(range(here.ndim, past.ndim)))
        return jnp.where(each, jnp.expand_dims(new, going.ndim), past)

    return Answer(
        tokens=write(answer.tokens, token),
        lengths=answer.lengths + going.astype(jnp.int32),
        scores=jnp.where(going, answer.scores + log_prob, answer.scores),
        log_probs=write(answer.log_probs, log_prob),
        observed=jax.tree.map(write, answer.observed, observed),
    )


def discard(answer: Answer, rows: Array, rules: Rules) -> Answer:
    """Without the answers of some rows `[B]`, of which length 0 and score -inf are left."""

    def without(leaf: Array, left: float) -> Array:
        each = jnp.expand_dims(rows, tuple(range(1, leaf.ndim)))
        return jnp.where(each, jnp.asarray(left, leaf.dtype), leaf)

    return Answer(
        tokens=without(answer.tokens, rules.pad),
        lengths=without(answer.lengths, 0),
        scores=without(answer.scores, -jnp.inf),
        log_probs=without(answer.log_probs, 0),
        observed=jax.tree.map(lambda leaf: without(leaf, 0), answer.observed),
    )
