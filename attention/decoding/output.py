"""Result of decoding, and how it grows by one token."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class GenerationOutput(NamedTuple):
    """Generated tokens and their scores; `...` is B, or B and the n best of beam search.

    Attributes:
        tokens: int32 `[..., L]`, padded behind the end. L is the number of steps.
        lengths: int32 `[...]`, number of generated tokens, prefix and end included; 0 for a row
            that did not finish within `max_steps`.
        scores: `[...]`, sum of `log_probs`; in beam search the score that ranks hypotheses, with
            logit processors, divided by the length penalty; -inf where there is no answer.
        log_probs: `[..., L]`, of each token under the model, before any logit processor; 0 for
            tokens of the prefix and behind the end. NaN where the logits contain NaN.
        observed: results of `observe` for the step that scored each token, leaves `[..., L, *]`;
            zeros behind the end.
        text: decoded answers, if a tokenizer was given: a list of strings, or of n strings each.
    """

    tokens: Array
    lengths: Array
    scores: Array
    log_probs: Array
    observed: Any = None
    text: list[Any] | None = None


class Prediction(NamedTuple):
    """Result of one step, or its shapes.

    Attributes:
        logits: `[B, V]`, or `[W, B, V]` of W hypotheses per row; float32 at least.
        observed: a pytree with leaves `[B, *]`, or `[B, W, *]`.
    """

    logits: Any
    observed: Any


def empty_output(
    shape: tuple[int, ...], num_tokens: int, pad: int, like: Prediction
) -> GenerationOutput:
    """Return answers without a token.

    Args:
        shape: the leading axes `...`.
        num_tokens: L.
        pad: the token that fills them.
        like: shapes of a prediction, whose observed leaves have as many leading axes as `shape`.
    """

    def zeros(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((*shape, num_tokens, *leaf.shape[len(shape) :]), leaf.dtype)

    return GenerationOutput(
        tokens=jnp.full((*shape, num_tokens), pad, jnp.int32),
        lengths=jnp.zeros(shape, jnp.int32),
        scores=jnp.zeros(shape, like.logits.dtype),
        log_probs=jnp.zeros((*shape, num_tokens), like.logits.dtype),
        observed=jax.tree.map(zeros, like.observed),
    )


def append(
    output: GenerationOutput,
    index: Array,
    token: Array,
    log_prob: Array,
    observed: object,
    active: Array,
) -> GenerationOutput:
    """Write token number `index` of the active answers; the others stay as they are.

    Args:
        output: the answers so far.
        index: `[B]`, number of tokens of each answer.
        token: `[...]`.
        log_prob: `[...]`, added to the score.
        observed: leaves `[..., *]`.
        active: bool `[...]`.
    """
    is_next = jax.nn.one_hot(index, output.tokens.shape[-1], dtype=bool)  # all False past the end
    written = active[..., None] & jnp.expand_dims(is_next, tuple(range(1, active.ndim)))

    def write(old: Array, new: Array) -> Array:
        where = jnp.expand_dims(written, tuple(range(written.ndim, old.ndim)))
        return jnp.where(where, jnp.expand_dims(new, active.ndim), old)

    return GenerationOutput(
        tokens=write(output.tokens, token),
        lengths=output.lengths + active.astype(jnp.int32),
        scores=jnp.where(active, output.scores + log_prob, output.scores),
        log_probs=write(output.log_probs, log_prob),
        observed=jax.tree.map(write, output.observed, observed),
    )


def discard(output: GenerationOutput, rows: Array, pad: int) -> GenerationOutput:
    """Remove the answers of rows `[B]`: length 0, score -inf."""

    def clear(leaf: Array, value: float) -> Array:
        return where_rows(rows, jnp.full_like(leaf, value), leaf)

    return GenerationOutput(
        tokens=clear(output.tokens, pad),
        lengths=clear(output.lengths, 0),
        scores=clear(output.scores, -jnp.inf),
        log_probs=clear(output.log_probs, 0),
        observed=jax.tree.map(lambda leaf: clear(leaf, 0), output.observed),
    )


def where_rows(rows: Array, new: Array, old: Array) -> Array:
    """Select rows `[B]` of `new` and the other rows of `old`, `[B, *]` both."""
    return jnp.where(jnp.expand_dims(rows, tuple(range(1, new.ndim))), new, old)
