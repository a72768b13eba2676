"""The result of decoding and how it grows, stopping criteria, and prefixes of answers."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from attention.modules.numbers import check_count
from attention.primitives.cache import check_lengths
from attention.primitives.masks import to_int32

Tree = TypeVar("Tree")


class GenerationOutput(NamedTuple):
    """Generated tokens and their scores; `...` is B, or B and the n best of beam search.

    Attributes:
        tokens: int32 `[..., L]`, padded at the end. L is the number of steps.
        lengths: int32 `[...]`, number of generated tokens, prefix and end included; 0 for a row
            that did not finish in time.
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
    text: Any = None


class Prediction(NamedTuple):
    """Result of one step, or its shapes.

    Attributes:
        logits: `[B, V]`, or `[W, B, V]` of W hypotheses per row; float32 at least.
        observed: a pytree with leaves `[B, *]`, or `[B, W, *]`.
    """

    logits: Any
    observed: Any


class Prefix(NamedTuple):
    """Tokens that the answer of each row begins with.

    Their log-probability is 0, so an answer is scored given its prefix, and they do not count in a
    length penalty.

    Attributes:
        tokens: int `[B, P]`, padded at the end.
        lengths: int `[B]`, number of valid tokens per row.
    """

    tokens: Array
    lengths: Array


@dataclass(frozen=True)
class StoppingCriteria:
    """When an answer ends.

    Attributes:
        max_tokens: largest number of tokens of an answer, prefix and end included.
        stop: a token id, an array of ids, ids, or sequences of ids: an answer ends with any of
            them. An id outside the vocabulary never ends one. Stored as a tuple of tuples.
        min_tokens: smallest number of tokens, counted in the same way; no stop sequence is
            completed earlier, except by the prefix.
        pad: the token that fills an answer after its end.

    Raises:
        ValueError: an empty stop sequence, or limits that no answer can satisfy.
    """

    max_tokens: int
    stop: ArrayLike | Sequence[int | Sequence[int]] = ()
    min_tokens: int = 0
    pad: int = 0

    def __post_init__(self) -> None:
        sequences = [[ids] if isinstance(ids, Integral) else ids for ids in listed(self.stop)]
        sequences = dict.fromkeys(tuple(map(operator.index, ids)) for ids in sequences)
        object.__setattr__(self, "stop", tuple(sequences))
        if () in self.stop:
            raise ValueError("a stop sequence needs at least 1 token, got an empty one")
        check_count("max_tokens", self.max_tokens, required=True, at_least=1)
        most = self.max_tokens
        check_count("min_tokens", self.min_tokens, required=True, at_least=0, at_most=most)

    def ends(self, tokens: Array, index: Array) -> Array:
        """Return which answers `[B, *, L]` end with token number `index` `[B]`: bool `[B, *]`."""
        return self._complete(at_index(tokens, index)[..., None], index, tokens)[..., 0]

    def too_early(self, candidates: Array, index: Array, tokens: Array) -> Array:
        """Return which ids would end answers `[B, *, L]` of `index` `[B]` tokens too early.

        The shape of `candidates` broadcasts with `[B, *, 1]`.
        """
        is_early = unit_axes(index + 1 < self.min_tokens, tokens.ndim)
        return self._complete(candidates, index, tokens) & is_early

    def _complete(self, candidates: Array, index: Array, tokens: Array) -> Array:
        """Return which candidates for token number `index` complete a stop sequence."""
        single = [ids[0] for ids in self.stop if len(ids) == 1]
        completes = jnp.isin(candidates, jnp.array(single, jnp.int32))
        for *begin, last in (ids for ids in self.stop if len(ids) > 1):
            begun = unit_axes(index >= len(begin), tokens.ndim - 1)
            for back, token in enumerate(reversed(begin), start=1):
                begun &= at_index(tokens, index - back) == token
            completes |= (candidates == last) & begun[..., None]
        return completes


def listed(stop: Any) -> Iterable[Any]:  # noqa: ANN401 - of several types
    """Return the values of `stop`, also of an array or of one value."""
    stop = stop.tolist() if hasattr(stop, "tolist") else stop
    return [stop] if isinstance(stop, Integral | str) else stop


def check_prefix(prefix: Prefix, rows: int, max_tokens: int) -> Prefix:
    """Return a prefix in int32.

    Raises:
        TypeError: ids that are not integers.
        ValueError: a prefix of another batch, or longer than an answer may be; where they are
            known, lengths outside [0, P].
    """
    tokens, lengths = (to_int32("prefix", part, 1) for part in prefix)
    width = tokens.shape[-1]
    if tokens.shape != (rows, width) or lengths.shape != (rows,):
        raise ValueError(
            f"prefix needs tokens [{rows}, P] and lengths [{rows}], got {tokens.shape}, "
            f"{lengths.shape}"
        )
    if not 1 <= width <= max_tokens:
        raise ValueError(f"a prefix needs 1 to max_tokens {max_tokens} tokens, got {width}")
    check_lengths(lengths, width)
    return Prefix(tokens, jnp.minimum(lengths, width))


def empty_output(
    shape: tuple[int, ...], num_tokens: int, pad: int, like: Prediction
) -> GenerationOutput:
    """Return answers without a token, of leading axes `shape` and L tokens.

    `like` has the shapes of a prediction; its observed leaves have as many leading axes.
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
    empty = jax.tree.map(jnp.zeros_like, output)._replace(tokens=pad, scores=-jnp.inf)
    return select_rows(rows, empty, output)


def select_rows(rows: Array, new: Tree, old: Tree) -> Tree:
    """Return rows `[B]` of `new`, arrays or numbers, and the others of `old`, leaves `[B, *]`."""
    return jax.tree.map(lambda a, b: jnp.where(unit_axes(rows, b.ndim), a, b), new, old)


def unit_axes(array: Array, ndim: int) -> Array:
    """Append axes of size 1, up to `ndim` axes."""
    return jnp.expand_dims(array, tuple(range(array.ndim, ndim)))


def at_index(tokens: Array, index: Array) -> Array:
    """Return token number `index` `[B]` of each of `[B, *, L]`, clipped to the first and last."""
    index = jnp.broadcast_to(unit_axes(index, tokens.ndim), (*tokens.shape[:-1], 1))
    return jnp.take_along_axis(tokens, index, axis=-1, mode="clip")[..., 0]
