"""Beam search: the best of several hypotheses that are followed side by side."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.answer import Answer, append, blank, discard
from attention.decoding.hypotheses import Chosen, batch_axes, follow, for_each, spread
from attention.decoding.loop import Observe, State, Step, nothing, predicting
from attention.decoding.queue import Queue, example, follow_all
from attention.decoding.room import resolve_room
from attention.decoding.rules import Forced, Rules
from attention.decoding.top import at_places, comparable, maxima, top_places


def beam_search(
    step: Step,
    state: State,
    start: Array,
    rules: Rules,
    *,
    beam: int,
    n_best: int = 1,
    alpha: float = 0.0,
    forced: Forced | None = None,
    observe: Observe = nothing,
    state_axes: object = 0,
    room: int | None = None,
) -> Answer:
    """Follows the `beam` likeliest hypotheses of each row and returns the best that ended.

    A hypothesis that ends leaves the beam, which grows narrower by it (Cho et al. 2014, "On the
    properties of neural machine translation", section 4.2.1), so a beam of 1 is `greedy` whatever
    the penalty, as long as some token is possible. Ended hypotheses compete by
    `log p / ((5 + n) / 6) ** alpha`, n tokens long with their end (Wu et al. 2016, equation 14
    without coverage). A row stops as soon as nothing that may still come would be among its
    n best.

    Args:
        step: `(state, tokens [B]) -> (logits [B, V], state)`, the same as for `greedy`; it is
            lifted by `vmap`, and what it closes over is not repeated.
        state: what the step knows before the first token; any pytree, or a `Queue` of rows.
        start: the first token of each row, `[B]`; not part of the answer.
        rules: the end and the lengths of an answer.
        beam: W, how many hypotheses are followed.
        n_best: how many are returned.
        alpha: of the length penalty: 0 for none, above 0 in favour of long answers.
        forced: tokens that come first; this is how prompts of several lengths are read.
        observe: a function of the state the step returned, with leaves `[B, *]`, for instance
            attention weights; kept for each token.
        state_axes: where leaves of the state have their batch axis, in the manner of `in_axes` of
            `jax.vmap`: an integer, None, or a tree of them. Scalars have none in any case.
        room: as in `sample`.

    Returns:
        The answers, `...` = B, n_best, the best first. Where a row has fewer, the score is -inf
        and the length 0.

    Raises:
        ValueError: a beam wider than the vocabulary, an n_best wider than the beam, a penalty that
            is not finite, arrays that do not fit the batch, or a room or a cache as in `sample`.
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be between 1 and the beam of {beam}, got {n_best}")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha must be finite, got {alpha}")
    room = resolve_room(state, rules, room)
    one, first = example(state, start)
    axes = batch_axes(one, state_axes, len(first))
    if isinstance(state, Queue) and any(axes):
        raise ValueError("rows of a queue stand in front: state_axes must be 0, or None")
    predict = for_each(predicting(step, observe), jax.tree.structure(one), axes)

    def begin(state: State) -> list[Array]:
        return spread(state, axes, beam)

    def first_read(start: Array) -> Chosen:
        tokens = jnp.stack([start] * beam, 1)
        return Chosen(tokens, jnp.zeros(tokens.shape, jnp.int32))

    logits, seen, _ = jax.eval_shape(
        lambda state, start: predict(begin(state), first_read(start)), one, first
    )
    if beam > logits.shape[-1]:
        raise ValueError(
            f"beam must be at most the vocabulary's {logits.shape[-1]} tokens, got {beam}"
        )
    searcher = _Searcher(rules, n_best, alpha)
    forced = rules.prepare(forced, start, logits.shape[-1])
    last = first_read(start)
    begun = searcher.begin(last.tokens, room, forced, logits, seen)
    if isinstance(state, Queue):
        state = state.then(begin, axes=[0 if axis is None else 1 for axis in axes])
    else:
        state = begin(state)
    search = follow_all(predict, searcher, state, last, begun, room)
    return discard(search.ended, searcher.unfinished(search), rules)


class _Search(NamedTuple):
    """The state of the search.

    Attributes:
        live: the hypotheses that go on, `...` = B, W; score -inf: there is none in this place.
        ended: the best that ended, `...` = B, n_best, sorted.
        width: how wide the beam of each row still is, `[B]`.
        forced: the tokens that come first.
    """

    live: Answer
    ended: Answer
    width: Array
    forced: Forced


@dataclass(frozen=True)
class _Searcher:
    rules: Rules
    n_best: int
    alpha: float

    def begin(
        self, start: Array, room: int, forced: Forced, logits: jax.ShapeDtypeStruct, seen: object
    ) -> _Search:
        """One empty hypothesis in each row of start `[B, W]`."""
        rows, beam = start.shape
        live = blank(start.shape, self.rules, room, start, logits, seen)
        live = live._replace(scores=live.scores.at[:, 1:].set(-jnp.inf))
        ended = jax.tree.map(lambda leaf: leaf[:, : self.n_best], live)
        ended = ended._replace(scores=jnp.full_like(ended.scores, -jnp.inf))
        return _Search(live, ended, jnp.full(rows, beam, jnp.int32), forced)

    def unfinished(self, search: _Search) -> Array:
        """In which rows a hypothesis lives, `[B]`."""
        return _exists(search.live.scores).any(axis=1)

    def select(
        self, search: _Search, index: Array, logits: Array, observed: object
    ) -> tuple[_Search, Chosen]:
        """Extends the live hypotheses, moves those that end, and stops rows that are decided.

        The logits are `[W, B, V]`.
        """
        live, chosen = self._extend(search, index, logits, observed)
        last = (chosen.tokens == self.rules.end) | (index + 1 == self.rules.max_length)[:, None]
        ends = _exists(live.scores) & last

        scores = jnp.where(
            ends, live.scores / self._penalty(index + 1, live.scores)[:, None], -jnp.inf
        )
        rivals = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves, 1), search.ended, live._replace(scores=scores)
        )
        _, best = jax.lax.top_k(comparable(rivals.scores), self.n_best)
        ended = jax.tree.map(lambda leaf: follow(leaf, best), rivals)

        totals = jnp.where(ends, -jnp.inf, live.scores)
        decided = self._bound(totals, index + 1) <= ended.scores[:, -1]
        live = live._replace(scores=jnp.where(decided[:, None], -jnp.inf, totals))
        width = search.width - ends.sum(1, dtype=jnp.int32)
        return _Search(live, ended, width, search.forced), chosen

    def _extend(
        self, search: _Search, index: Array, logits: Array, observed: object
    ) -> tuple[Answer, Chosen]:
        """The likeliest extensions by logits `[W, B, V]`, as many as the beam is wide."""
        beam, _, vocabulary = logits.shape
        peak = maxima(logits).max(axis=-1)  # which XLA finds once, for `top_places` too
        rest = jnp.log(jnp.exp(logits - peak.T[..., None]).sum(axis=-1)).T

        def of_parents(each: Array, places: Array) -> Array:
            return jnp.take_along_axis(each, places // vocabulary, axis=1)[..., None]

        def log_probs(logits: Array, first: Array) -> Array:
            """Of tokens `[B, X, S]` that stand one after another."""
            found = logits - of_parents(peak, first) - of_parents(rest, first)  # as log-softmax
            after = jnp.arange(logits.shape[-1], dtype=first.dtype)[None, None]
            tokens = first[..., None] % vocabulary + after
            return self.rules.constrain(found, tokens, index, search.forced)

        def total(logits: Array, first: Array) -> Array:
            so_far = of_parents(search.live.scores, first)
            # Where there is no hypothesis, its scores may be anything, NaN included.
            return jnp.where(_exists(so_far), so_far + log_probs(logits, first), -jnp.inf)

        exception = self.rules.exception(index, search.forced)
        exceptions = exception[:, None] + vocabulary * jnp.arange(beam, dtype=jnp.int32)[None]
        picks = top_places(logits, beam, total, exceptions)
        picked = at_places(logits, picks)[..., None]
        totals, log_prob = total(picked, picks)[..., 0], log_probs(picked, picks)[..., 0]
        totals = jnp.where(
            jnp.arange(beam, dtype=jnp.int32)[None] < search.width[:, None], totals, -jnp.inf
        )

        parents, tokens = jnp.divmod(picks, vocabulary)
        live = jax.tree.map(lambda leaf: follow(leaf, parents), search.live)
        observed = jax.tree.map(lambda leaf: follow(leaf, parents), observed)
        tokens = tokens.astype(live.tokens.dtype)
        live = append(live, index, tokens, log_prob, observed, _exists(totals))
        return live._replace(scores=totals), Chosen(tokens, parents)

    def _bound(self, totals: Array, length: Array) -> Array:
        """What no extension of the live hypotheses can exceed, `[B]`.

        Their log-probabilities only fall, and the penalty is monotone in the length, so its two
        ends bound the score, whatever the sign of alpha.
        """
        best = totals.max(axis=1)
        ends = (self._penalty(n, best) for n in (length + 1, jnp.int32(self.rules.max_length)))
        return jnp.maximum(*(best / penalty for penalty in ends))

    def _penalty(self, length: Array, like: Array) -> Array:
        return ((5 + length.astype(like.dtype)) / 6) ** self.alpha


def _exists(scores: Array) -> Array:
    """Which places hold a hypothesis; one whose score is NaN exists."""
    return scores != -jnp.inf
