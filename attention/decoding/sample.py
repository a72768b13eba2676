"""Tokens drawn one after the other from what the step and the filters leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.answer import Answer, append, blank, discard
from attention.decoding.filters import Filter
from attention.decoding.loop import Observe, State, Step, nothing, predicting
from attention.decoding.queue import example, follow_all
from attention.decoding.room import resolve_room
from attention.decoding.rules import Forced, Rules


def sample(
    step: Step,
    state: State,
    start: Array,
    rules: Rules,
    keys: Array | None,
    *,
    filters: Sequence[Filter] = (),
    forced: Forced | None = None,
    observe: Observe = nothing,
    room: int | None = None,
) -> Answer:
    """Draws each token, reads it, and goes on until every row has ended.

    Args:
        step: `(state, tokens [B]) -> (logits [B, V], state)`: reads a token, scores the next.
        state: what the step knows before the first token; any pytree, or a `Queue` of rows.
        start: the first token of each row, `[B]`; not part of the answer.
        rules: the end and the lengths of an answer.
        keys: a random key for each row, `[B]`: what a row draws depends on nothing else of the
            batch. Without keys each token is the likeliest of those that may be drawn.
        filters: what may be drawn, for instance `(TopK(40), Temperature(0.8))`.
        forced: tokens that come first; this is how prompts of several lengths are read.
        observe: a function of the state the step returned, with leaves `[B, *]`, for instance
            attention weights; kept for each token.
        room: the most tokens that are followed, and so the least that a cache must hold;
            `max_length` by default. A row that would go on after them, if only because it is forced
            or too short to end, is given up: its length is 0 and its score -inf, and it may be
            asked again with more room. All others are answered as with all of `max_length`.

    Returns:
        The answers, `...` = B.

    Raises:
        TypeError: first tokens, or forced ones, that are not integers.
        ValueError: keys or forced tokens that do not fit the batch, a room outside [1, max_length],
            or a cache that is too short for it, as far as it is known how much it holds.
    """
    room = resolve_room(state, rules, room)
    predict = predicting(step, observe)
    logits, seen, _ = jax.eval_shape(predict, *example(state, start))
    sampler = Sampler(rules, tuple(filters))
    begun = sampler.begin(start, room, keys, forced, logits, seen)
    sampling = follow_all(predict, sampler, state, start, begun, room)
    return discard(sampling.answer, sampler.unfinished(sampling), rules)


class Sampling(NamedTuple):
    """The answers so far, which rows have ended, and what decides the rest."""

    answer: Answer
    finished: Array
    keys: Array | None
    forced: Forced


@dataclass(frozen=True)
class Sampler:
    """The strategy: a fresh key for every token and row, or the likeliest token without keys."""

    rules: Rules
    filters: tuple[Filter, ...] = ()

    def begin(
        self,
        start: Array,
        room: int,
        keys: Array | None,
        forced: Forced | None,
        logits: jax.ShapeDtypeStruct,
        seen: object,
    ) -> Sampling:
        """Answers without a token; the last two arguments have the shapes of what is predicted."""
        if keys is not None and keys.shape[:1] != start.shape:
            raise ValueError(
                f"keys must hold one key for each of the {len(start)} rows of start, as "
                f"jax.random.split(key, {len(start)}) makes them, got shape {keys.shape}"
            )
        return Sampling(
            answer=blank(start.shape, self.rules, room, start, logits, seen),
            finished=jnp.zeros(start.shape, bool),
            keys=keys,
            forced=self.rules.prepare(forced, start, logits.shape[-1]),
        )

    def unfinished(self, sampling: Sampling) -> Array:
        """Which rows go on, `[B]`."""
        return ~sampling.finished

    def select(
        self, sampling: Sampling, index: Array, logits: Array, observed: object
    ) -> tuple[Sampling, Array]:
        """Says token number `index [B]` of each row that has not ended."""
        tokens = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None]
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        log_probs = self.rules.constrain(log_probs, tokens, index, sampling.forced)
        chosen = self._choose(log_probs, index, sampling.keys).astype(jnp.int32)
        is_forced = index < sampling.forced.lengths  # which no filter rules out
        chosen = jnp.where(is_forced, self.rules.exception(index, sampling.forced), chosen)
        chosen = chosen.astype(sampling.answer.tokens.dtype)
        log_prob = jnp.take_along_axis(log_probs, chosen[:, None], axis=-1)[:, 0]
        going = ~sampling.finished
        answer = append(sampling.answer, index, chosen, log_prob, observed, going)
        finished = (chosen == self.rules.end) | (index + 1 == self.rules.max_length)
        sampling = sampling._replace(answer=answer, finished=sampling.finished | finished)
        return sampling, jnp.where(going, chosen, self.rules.pad)

    def _choose(self, log_probs: Array, index: Array, keys: Array | None) -> Array:
        for narrow in self.filters:
            log_probs = narrow(log_probs)
        if keys is None:
            return jnp.argmax(log_probs, axis=-1)

        def draw(key: Array, index: Array, log_probs: Array) -> Array:
            return jax.random.categorical(jax.random.fold_in(key, index), log_probs)

        return jax.vmap(draw)(keys, index, log_probs)
