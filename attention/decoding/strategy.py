"""Strategies choose the next tokens: the protocol, greedy decoding and sampling."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from attention.decoding.output import GenerationOutput, Prediction, append, empty_output
from attention.decoding.processors import (
    History,
    LogitProcessor,
    MinP,
    Temperature,
    TopK,
    TopP,
    join_history,
)
from attention.decoding.stopping import Prefix, StoppingCriteria, at_index

Search = TypeVar("Search")


@dataclass(frozen=True)
class Settings:
    """What is common to all rows.

    Attributes:
        stopping: the conditions on an answer.
        logit_processors: applied in order.
        max_steps: number of tokens after which a row is discarded if it has not finished.
    """

    stopping: StoppingCriteria
    logit_processors: tuple[LogitProcessor, ...]
    max_steps: int

    def process(self, logits: Array, before: History, tokens: Array, index: Array) -> Array:
        """Apply the logit processors to `[B, *, V]`, given answers `[B, *, L]`."""
        if self.logit_processors:
            history = join_history(before, tokens, index)
            for processor in self.logit_processors:
                logits = processor(logits, history)
        return logits


class Request(NamedTuple):
    """What each row is given, leaves `[B, *]`.

    Attributes:
        before: the tokens in front of the answer, for logit processors.
        prefix: the tokens that the answer begins with, if any.
        rng: a random key for each row, if any.
    """

    before: History
    prefix: Prefix | None
    rng: Array | None


class Selected(NamedTuple):
    """The tokens that hypotheses read next.

    Attributes:
        tokens: `[B, W]`.
        parents: `[B, W]`, the hypothesis of the row that each extends.
    """

    tokens: Array
    parents: Array


class Strategy(Protocol[Search]):
    """A way to choose tokens. Its state between steps, the search, is a pytree of `[B, *]`.

    Subclass `TokenStrategy` for one that follows a single hypothesis per row.

    Attributes:
        num_beams: W, number of hypotheses of each row that the step scores side by side; None if
            there is one, and its state is not repeated.
    """

    num_beams: int | None

    def begin(self, settings: Settings, request: Request, like: Prediction) -> Search:
        """Return the search before the first token.

        Args:
            settings: common to all rows.
            request: of each row.
            like: shapes of a prediction, for any number of rows.

        Raises:
            ValueError: settings that the strategy cannot follow.
        """

    def select(
        self,
        settings: Settings,
        request: Request,
        search: Search,
        index: Array,
        prediction: Prediction,
    ) -> tuple[Search, Array | Selected]:
        """Choose token number `index` `[B]`.

        Returns:
            The search, and the tokens `[B]` that the step reads next, or `Selected` of W.
        """

    def unfinished(self, search: Search) -> Array:
        """Return which rows need more tokens: bool `[B]`."""

    def output(self, search: Search) -> GenerationOutput:
        """Return the answers."""


class Answers(NamedTuple):
    """The answers so far, and which of them have ended, `[B]`."""

    output: GenerationOutput
    finished: Array


class TokenStrategy:
    """Base class of strategies that follow one hypothesis per row: subclasses define `choose`."""

    num_beams = None

    @abstractmethod
    def choose(self, logits: Array, rng: Array | None) -> Array:
        """Choose a token of each row.

        Args:
            logits: `[B, V]`, after the logit processors.
            rng: `[B]` random keys, different at each step; None if none were given.

        Returns:
            int `[B]`.
        """

    def begin(self, settings: Settings, request: Request, like: Prediction) -> Answers:
        """Return answers without a token."""
        shape = request.before.length.shape
        output = empty_output(shape, settings.max_steps, settings.stopping.pad, like)
        return Answers(output, jnp.zeros(shape, bool))

    def select(
        self,
        settings: Settings,
        request: Request,
        search: Answers,
        index: Array,
        prediction: Prediction,
    ) -> tuple[Answers, Array]:
        """Choose token number `index` `[B]` of each row that has not ended."""
        stopping, prefix, logits = settings.stopping, request.prefix, prediction.logits
        tokens = search.output.tokens
        allowed = logits
        if stopping.min_tokens > 1:
            ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None]
            allowed = jnp.where(stopping.too_early(ids, index, tokens), -jnp.inf, allowed)
        allowed = settings.process(allowed, request.before, tokens, index)
        rng = None if request.rng is None else jax.vmap(jax.random.fold_in)(request.rng, index)
        chosen = self.choose(allowed, rng).astype(jnp.int32)
        if prefix is not None:
            chosen = jnp.where(index < prefix.lengths, at_index(prefix.tokens, index), chosen)
        log_prob = _log_prob(logits, chosen)
        if prefix is not None:
            log_prob = jnp.where(index < prefix.lengths, 0, log_prob)
        active = ~search.finished
        output = append(search.output, index, chosen, log_prob, prediction.observed, active)
        ended = stopping.ends(output.tokens, index) | (index + 1 == stopping.max_tokens)
        next_tokens = jnp.where(active, chosen, stopping.pad)
        return Answers(output, search.finished | ended), next_tokens

    def unfinished(self, search: Answers) -> Array:
        """Return which rows need more tokens: bool `[B]`."""
        return ~search.finished

    def output(self, search: Answers) -> GenerationOutput:
        """Return the answers, `...` = B."""
        return search.output


@dataclass(frozen=True)
class Greedy(TokenStrategy):
    """Choose the likeliest token; of equal ones, the first."""

    def choose(self, logits: Array, rng: Array | None) -> Array:
        """Choose a token of each row."""
        del rng
        return jnp.argmax(logits, axis=-1)


@dataclass(frozen=True)
class Sample(TokenStrategy):
    """Draw tokens. The draws of a row depend on its random key and on nothing else in the batch.

    Attributes:
        temperature: see `Temperature`; this and the others apply after the logit processors, in
            this order.
        top_k: see `TopK`; None for all tokens.
        top_p: see `TopP`; None for all tokens.
        min_p: see `MinP`; None for all tokens.

    Raises:
        ValueError: as these classes.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        self._processors()

    def begin(self, settings: Settings, request: Request, like: Prediction) -> Answers:
        """Return answers without a token.

        Raises:
            ValueError: no random keys.
        """
        if request.rng is None:
            raise ValueError("sampling needs random numbers: pass rng=jax.random.key(seed)")
        return super().begin(settings, request, like)

    def choose(self, logits: Array, rng: Array | None) -> Array:
        """Draw a token of each row."""
        for processor in self._processors():
            logits = processor(logits)
        return jax.vmap(jax.random.categorical)(rng, logits)

    def _processors(self) -> Sequence[LogitProcessor]:
        found = [] if self.temperature == 1 else [Temperature(self.temperature)]
        for kind, value in ((TopK, self.top_k), (TopP, self.top_p), (MinP, self.min_p)):
            found += [] if value is None else [kind(value)]
        return found


def _log_prob(logits: Array, tokens: Array) -> Array:
    """Return the log-probability of tokens `[B]` by logits `[B, V]`."""
    peak = logits.max(axis=-1)
    rest = jnp.log(jnp.exp(logits - peak[:, None]).sum(axis=-1))
    return jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0] - peak - rest
