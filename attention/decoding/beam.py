"""Beam search: the best of several hypotheses that are extended side by side."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.loop import gather_hypotheses
from attention.decoding.output import (
    GenerationOutput,
    Prediction,
    append,
    empty_output,
    unit_axes,
)
from attention.decoding.sampling import DecodingOptions, NextTokens, RowInputs
from attention.decoding.stopping import at_index

LengthPenalty = Callable[[Array], Array]
"""Maps lengths (floats, at least 1) to positive divisors; monotone, in either direction."""


@dataclass(frozen=True)
class GNMT:
    """`((5 + n) / 6) ** alpha` (Wu et al. 2016, equation 14, without coverage).

    Attributes:
        alpha: 0 for no penalty; above 0, long hypotheses gain.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_finite("alpha", self.alpha)

    def __call__(self, length: Array) -> Array:
        return ((5 + length) / 6) ** self.alpha


@dataclass(frozen=True)
class Power:
    """`n ** exponent`, as `length_penalty` of Hugging Face Transformers and `lenpen` of fairseq.

    Attributes:
        exponent: 1 for the mean log-probability; above 0, long hypotheses gain.
    """

    exponent: float

    def __post_init__(self) -> None:
        _check_finite("exponent", self.exponent)

    def __call__(self, length: Array) -> Array:
        return length**self.exponent


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} of a length penalty must be finite, got {value}")


LARGEST, SMALLEST = 128, 8  # size of a block: larger ones are slow to sort, smaller ones are many
FEW = 4_096  # candidates per row below which sorting all of them is faster


def top_indices(
    values: Array,
    k: int,
    score: Callable[[Array, Array], Array],
    exceptions: Array | None = None,
) -> Array:
    """Return the indices of the k largest scores, in the order of `jax.lax.top_k`.

    `jax.lax.top_k` sorts whole rows of computed scores. But the k largest scores are in the k
    blocks with the largest maxima, so only those blocks are scored; of the others only the largest
    value is. The block size divides V; if no size does, as for a prime, the whole row is sorted.

    Args:
        values: `[W, B, V]`, W·V candidates in each row.
        k: number of indices.
        score: `(block [B, X, S], first [B, X]) -> [B, X, S]`, the scores of successive values from
            index `first` of the W·V on. It is monotone in the values of the same V, except for the
            exceptions; a NaN among them makes all their scores NaN, which counts as the largest.
        exceptions: indices `[B, E]` with scores of any value.

    Returns:
        `[B, k]` indices in `[0, W·V)`, best first; of equal scores, the first index.
    """
    width, rows, length = values.shape
    size = _block_size(values)
    num_blocks = width * (length // size)
    blocks = values.reshape(width, rows, length // size, size)
    largest = block_maxima(values).reshape(rows, num_blocks)
    which = jnp.broadcast_to(jnp.arange(num_blocks, dtype=jnp.int32)[None], largest.shape)
    num_scored = k + (0 if exceptions is None else exceptions.shape[1])
    if size < length and num_scored < num_blocks:
        bounds = nan_as_largest(score(largest[..., None], size * which))[..., 0]
        if exceptions is not None:
            bounds = bounds.at[jnp.arange(rows)[:, None], exceptions // size].set(jnp.inf)
        _, best = jax.lax.top_k(bounds, num_scored)
        which = jnp.sort(best, axis=-1)  # keeps the order of equal scores
        blocks = at_indices(blocks, which)
    else:
        blocks = jnp.moveaxis(blocks, 0, 1).reshape(rows, num_blocks, size)
    first = size * which
    scores = nan_as_largest(score(blocks, first)).reshape(rows, which.shape[1] * size)
    _, found = jax.lax.top_k(scores, k)
    block, offset = jnp.divmod(found, size)
    return jnp.take_along_axis(first, block, axis=1) + offset


def block_maxima(values: Array) -> Array:
    """Return the maximum of each block of `[W, B, V]`: `[B, W, V / S]`."""
    *outer, length = values.shape
    size = _block_size(values)
    blocks = values.reshape(*outer, length // size, size)
    return jnp.moveaxis(blocks.max(axis=-1), 0, 1)


def at_indices(values: Array, indices: Array) -> Array:
    """Return the values of `[W, B, V, *]` at indices `[B, X]` of the W·V: `[B, X, *]`."""
    which, offset = jnp.divmod(indices, values.shape[2])
    return values[which, jnp.arange(len(indices), dtype=indices.dtype)[:, None], offset]


def nan_as_largest(scores: Array) -> Array:
    """Replace NaN by infinity: it counts as the largest score."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


def _block_size(values: Array) -> int:
    """Return the block size for `[W, B, V]`, a divisor of V."""
    width, _, length = values.shape
    if width * length < FEW:
        return length
    sizes = (size for size in range(LARGEST, SMALLEST - 1, -1) if length % size == 0)
    return next(sizes, length)


class BeamState(NamedTuple):
    """State of beam search.

    Attributes:
        live: unfinished hypotheses, `...` = B, W; score -inf where there is none. Scores are not
            divided by the length penalty.
        finished: the best that ended, `...` = B, n_best, best first.
        width: int32 `[B]`, largest number of live hypotheses of each row.
    """

    live: GenerationOutput
    finished: GenerationOutput
    width: Array


@dataclass(frozen=True)
class Beam:
    """Follow the most likely `num_beams` hypotheses of each row; return the best that ended.

    Each row stops when no live hypothesis can become one of its n best: log-probabilities only
    fall, and the length penalty is monotone.

    By default a hypothesis that ends makes the beam one narrower (Cho et al. 2014, "On the
    properties of neural machine translation", section 4.2.1), so a beam of 1 is greedy decoding.
    With `keep_width`, as in Hugging Face Transformers (without its early stopping) and fairseq,
    `num_beams` live hypotheses remain: of the best `num_beams` extensions those that end are
    collected, and the best others are followed.

    Attributes:
        num_beams: W.
        n_best: number of answers per row; the output then has an axis of n_best behind B. None for
            the best answer alone, without that axis.
        length_penalty: divides the score of a finished hypothesis of n tokens, the end included and
            tokens of the prefix not; None for no penalty.
        keep_width: whether the beam keeps its width.

    Raises:
        TypeError: a length penalty that is not a function.
        ValueError: an n_best above num_beams.
    """

    num_beams: int
    n_best: int | None = None
    length_penalty: LengthPenalty | None = None
    keep_width: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.num_beams, Integral) or self.num_beams < 1:
            raise ValueError(f"num_beams must be an integer of at least 1, got {self.num_beams}")
        if self.n_best is not None and not 1 <= self.n_best <= self.num_beams:
            raise ValueError(
                f"n_best must be between 1 and num_beams {self.num_beams}, got {self.n_best}"
            )
        if self.length_penalty is not None and not callable(self.length_penalty):
            raise TypeError(
                "length_penalty must be a function of lengths, such as Power(1.0), "
                f"got {self.length_penalty!r}"
            )

    def begin(self, options: DecodingOptions, inputs: RowInputs, like: Prediction) -> BeamState:
        """Return one hypothesis without a token for each row.

        Raises:
            ValueError: more beams than tokens in the vocabulary.
        """
        vocab_size = like.logits.shape[-1]
        if self.num_beams > vocab_size:
            raise ValueError(
                f"num_beams must be at most the {vocab_size} tokens of the vocabulary, "
                f"got {self.num_beams}"
            )
        shape = (*inputs.history.length.shape, self.num_beams)
        live = empty_output(shape, options.max_steps, options.stopping.pad, like)
        live = live._replace(scores=live.scores.at[:, 1:].set(-jnp.inf))
        finished = jax.tree.map(lambda leaf: leaf[:, : self.n_best or 1], live)
        finished = finished._replace(scores=jnp.full_like(finished.scores, -jnp.inf))
        return BeamState(live, finished, jnp.full(shape[:1], self.num_beams, jnp.int32))

    def unfinished(self, state: BeamState) -> Array:
        """Return which rows have live hypotheses: bool `[B]`."""
        return _exists(state.live.scores).any(axis=1)

    def output(self, state: BeamState) -> GenerationOutput:
        """Return the best answers, `...` = B, n_best, or B."""
        if self.n_best is not None:
            return state.finished
        return jax.tree.map(lambda leaf: leaf[:, 0], state.finished)

    def select(
        self,
        options: DecodingOptions,
        inputs: RowInputs,
        state: BeamState,
        index: Array,
        prediction: Prediction,
    ) -> tuple[BeamState, NextTokens]:
        """Extend the live hypotheses, collect those that end, and stop rows that are decided."""
        stopping, length = options.stopping, index + 1
        found, parents = self._extend(options, inputs, state, index, prediction)
        exists, rank = _exists(found.scores), jnp.arange(parents.shape[1], dtype=jnp.int32)[None]
        stops = exists & stopping.ends(found.tokens, index)
        is_live = ~stops
        if self.keep_width:
            is_live &= jnp.cumsum(is_live, axis=1, dtype=jnp.int32) <= self.num_beams
        ends = stops & (rank < self.num_beams)
        ends |= exists & is_live & (length == stopping.max_tokens)[:, None]

        divisor = self._divisor(inputs, length, found.scores)[:, None]
        scores = jnp.where(ends, found.scores / divisor, -jnp.inf)
        pool = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves, 1),
            state.finished,
            found._replace(scores=scores),
        )
        _, best = jax.lax.top_k(nan_as_largest(pool.scores), self.n_best or 1)
        finished = jax.tree.map(lambda leaf: gather_hypotheses(leaf, best), pool)

        width = state.width
        live = found._replace(scores=jnp.where(is_live & ~ends, found.scores, -jnp.inf))
        if self.keep_width:
            order = jnp.argsort(~is_live, axis=1, stable=True)[:, : self.num_beams]
            live, parents = jax.tree.map(
                lambda leaf: gather_hypotheses(leaf, order), (live, parents)
            )
        else:
            width = width - ends.sum(1, dtype=jnp.int32)
        decided = self._bound(options, inputs, live.scores, length) <= finished.scores[:, -1]
        next_tokens = at_index(live.tokens, index)
        live = live._replace(scores=jnp.where(decided[:, None], -jnp.inf, live.scores))
        return BeamState(live, finished, width), NextTokens(next_tokens, parents)

    def _extend(
        self,
        options: DecodingOptions,
        inputs: RowInputs,
        state: BeamState,
        index: Array,
        prediction: Prediction,
    ) -> tuple[GenerationOutput, Array]:
        """Return the most likely extensions, best first, and their parents `[B, X]`.

        An extension has an index in `[W·V]`: V times the number of its parent, plus its token.
        """
        logits, stopping = prediction.logits, options.stopping
        num_beams, _, vocab_size = logits.shape
        number = num_beams
        if self.keep_width:  # so many that num_beams of them do not end
            number = min((1 + max(1, len(stopping.last_ids))) * num_beams, num_beams * vocab_size)
        peak = block_maxima(logits).max(axis=-1)  # `top_indices` uses the same maxima
        no_token = peak == -jnp.inf  # of a hypothesis: its extensions have -inf, not NaN
        peak = jnp.where(no_token, 0, peak)
        total = jnp.exp(logits - peak.T[..., None]).sum(axis=-1).T
        rest = jnp.log(jnp.where(no_token, 1, total))

        def of_parents(values: Array, places: Array) -> Array:
            return jnp.take_along_axis(values, places // vocab_size, axis=1)[..., None]

        def log_probs(logits: Array, places: Array) -> Array:
            """Return log-probabilities `[B, X, S]` of successive tokens from each place on."""
            found = logits - of_parents(peak, places) - of_parents(rest, places)
            return _with_prefix(found, _tokens_at(places, found, vocab_size), index, inputs)

        def totals(logits: Array, places: Array) -> Array:
            found = log_probs(logits, places)
            if stopping.min_tokens > 1:
                early = stopping.too_early(_tokens_at(places, found, vocab_size), index)
                found = jnp.where(early & _has_no_prefix(index, inputs, 3), -jnp.inf, found)
            before = of_parents(state.live.scores, places)
            # Scores of a hypothesis that does not exist may be anything, NaN included.
            return jnp.where(_exists(before), before + found, -jnp.inf)

        values, score, exceptions = logits, totals, None
        if options.logit_processors or (stopping.min_tokens > 1 and stopping.sequences):
            normalized = logits - peak.T[..., None] - rest.T[..., None]
            values = self._processed(options, inputs, state, index, normalized)
            score = _identity
        else:
            exceptions = self._exceptions(options, inputs, index, vocab_size)
        places = top_indices(values, number, score, exceptions)
        scores = score(at_indices(values, places)[..., None], places)[..., 0]
        log_prob = log_probs(at_indices(logits, places)[..., None], places)[..., 0]
        if not self.keep_width:
            rank = jnp.arange(number, dtype=jnp.int32)[None]
            scores = jnp.where(rank < state.width[:, None], scores, -jnp.inf)

        parents, tokens = jnp.divmod(places, vocab_size)
        live, observed = jax.tree.map(
            lambda leaf: gather_hypotheses(leaf, parents), (state.live, prediction.observed)
        )
        live = append(live, index, tokens, log_prob, observed, _exists(scores))
        return live._replace(scores=scores), parents

    def _processed(
        self,
        options: DecodingOptions,
        inputs: RowInputs,
        state: BeamState,
        index: Array,
        log_probs: Array,
    ) -> Array:
        """Return the scores of all extensions `[W, B, V]`, for any logit processors."""
        found = jnp.moveaxis(log_probs, 0, 1)
        found = options.process(found, inputs, state.live.tokens, index)
        ids = jnp.arange(found.shape[-1], dtype=jnp.int32)[None, None]
        found = _with_prefix(found, ids, index, inputs)
        before = state.live.scores[..., None]
        return jnp.moveaxis(jnp.where(_exists(before), before + found, -jnp.inf), 1, 0)

    def _exceptions(
        self, options: DecodingOptions, inputs: RowInputs, index: Array, vocab_size: int
    ) -> Array | None:
        """Return ids `[B, E]` of tokens that may be ordered differently from their logits."""
        found = []
        if options.stopping.min_tokens > 1 and options.stopping.stop:
            ids = [number for number in options.stopping.last_ids if 0 <= number < vocab_size]
            ids = jnp.array(ids, jnp.int32)[None]
            found.append(jnp.broadcast_to(ids, (len(index), ids.size)))
        if inputs.prefix is not None:
            found.append(at_index(inputs.prefix.tokens, index)[:, None])
        if not found:
            return None
        ids = jnp.concatenate(found, axis=1)[..., None]
        parents = jnp.arange(self.num_beams, dtype=jnp.int32)[None, None]
        return (ids + vocab_size * parents).reshape(len(index), -1)

    def _bound(
        self, options: DecodingOptions, inputs: RowInputs, scores: Array, length: Array
    ) -> Array:
        """Return what no extension of live hypotheses `[B, W]` of a length can exceed, `[B]`.

        The length penalty is monotone, so its values at both ends of the possible lengths bound it.
        """
        best = scores.max(axis=1)
        longest = jnp.full_like(length, options.stopping.max_tokens)
        ends = (self._divisor(inputs, one, best) for one in (length + 1, longest))
        return jnp.maximum(*(best / divisor for divisor in ends))

    def _divisor(self, inputs: RowInputs, length: Array, like: Array) -> Array:
        """Return the length penalty of answers of a length `[B]`, without their prefix."""
        if self.length_penalty is None:
            return jnp.ones(length.shape, like.dtype)
        if inputs.prefix is not None:
            length = jnp.maximum(length - jnp.minimum(inputs.prefix.lengths, length), 1)
        return self.length_penalty(length.astype(like.dtype))


def _exists(scores: Array) -> Array:
    """Return where there is a hypothesis, its score may be NaN."""
    return scores != -jnp.inf


def _identity(scores: Array, places: Array) -> Array:
    del places
    return scores


def _tokens_at(places: Array, block: Array, vocab_size: int) -> Array:
    """Return the ids of successive tokens `[B, X, S]` from each place `[B, X]` on."""
    after = jnp.arange(block.shape[-1], dtype=places.dtype)[None, None]
    return places[..., None] % vocab_size + after


def _has_no_prefix(index: Array, inputs: RowInputs, ndim: int) -> Array:
    """Return which rows are past their prefix, bool `[B, 1, ...]` of `ndim` axes."""
    lengths = jnp.zeros_like(index) if inputs.prefix is None else inputs.prefix.lengths
    return unit_axes(index >= lengths, ndim)


def _with_prefix(log_probs: Array, tokens: Array, index: Array, inputs: RowInputs) -> Array:
    """Give the token of the prefix log-probability 0 and exclude all others, where there is one."""
    if inputs.prefix is None:
        return log_probs
    token = at_index(inputs.prefix.tokens, index)[:, None, None]
    forced = jnp.where(tokens == token, 0, -jnp.inf).astype(log_probs.dtype)
    return jnp.where(_has_no_prefix(index, inputs, log_probs.ndim), log_probs, forced)
