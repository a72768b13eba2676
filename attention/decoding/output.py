"""Result of decoding, and how it grows by one token."""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

Tree = TypeVar("Tree")


class GenerationOutput(NamedTuple):
    """Generated tokens and their scores; `...` is B, or B and the n best of beam search.

    Attributes:
        tokens: int32 `[..., L]`, padded at the end. L is the number of steps.
        lengths: int32 `[...]`, number of generated tokens, prefix and end included; 0 for a row
            that did not finish within `max_steps`.
        scores: `[...]`, sum of `log_probs`; in beam search the score that ranks hypotheses, with
            logit processors, divided by the length penalty; -inf where there is no answer.
        log_probs: `[..., L]`, of each token under the model, before any logit processor; 0 for
            tokens of the prefix and padding. NaN where the logits contain NaN.
        observed: results of `observe` for the step that scored each token, leaves `[..., L, *]`;
            zeros at padding.
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
        like: shapes of a prediction; its observed leaves have as many leading axes as `shape`.
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
    """Write token number `index` `[B]` of the active answers; the others do not change.

    `token`, `log_prob` (added to the score), `active` and the leaves of `observed` are `[..., *]`.
    """
    is_next = jax.nn.one_hot(index, output.tokens.shape[-1], dtype=bool)  # all False past the end
    written = active[..., None] & jnp.expand_dims(is_next, tuple(range(1, active.ndim)))

    def write(old: Array, new: Array) -> Array:
        return jnp.where(unit_axes(written, old.ndim), jnp.expand_dims(new, active.ndim), old)

    return GenerationOutput(
        tokens=write(output.tokens, token),
        lengths=output.lengths + active.astype(jnp.int32),
        scores=jnp.where(active, output.scores + log_prob, output.scores),
        log_probs=write(output.log_probs, log_prob),
        observed=jax.tree.map(write, output.observed, observed),
    )


def discard(output: GenerationOutput, rows: Array, pad: int) -> GenerationOutput:
    """Remove the answers of rows `[B]`: length 0, score -inf."""
    empty = jax.tree.map(jnp.zeros_like, output)
    empty = empty._replace(
        tokens=jnp.full_like(output.tokens, pad), scores=jnp.full_like(output.scores, -jnp.inf)
    )
    return select_rows(rows, empty, output)


def select_rows(rows: Array, new: Tree, old: Tree) -> Tree:
    """Return rows `[B]` of `new` and the other rows of `old`, leaves `[B, *]`."""
    return jax.tree.map(lambda a, b: jnp.where(unit_axes(rows, a.ndim), a, b), new, old)


def unit_axes(array: Array, ndim: int) -> Array:
    """Append axes of size 1, up to `ndim` axes."""
    return jnp.expand_dims(array, tuple(range(array.ndim, ndim)))
