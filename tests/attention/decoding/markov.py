"""Random models whose next token depends on the last two, and all their possible answers.

The second last token is known through the state alone, so a search that mixes up the states of its
hypotheses gives other answers.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention.decoding import StoppingCriteria, decode
from attention.primitives.cache import Constant
from attention.primitives.pytree_dataclass import pytree_dataclass, static
from tests.attention.primitives.inputs import jitted

PAD, BOS, END = 0, 1, 2


class Read(NamedTuple):
    """State of a step: the second last and the last token it read `[B]`, and their number `[B]`."""

    before: Array
    last: Array
    count: Array


class Result(NamedTuple):
    """Result of a step, with the tokens that it read, in place of attention."""

    logits: Array
    attention: Array


def empty_state(rows):
    start = jnp.full(rows, BOS, jnp.int32)
    return Read(start, start, jnp.zeros(rows, jnp.int32))


def step_of(table):
    """Return a step that looks its logits up in `[B, V, V, V]`."""

    def step(state, tokens):
        logits = table[jnp.arange(len(table)), state.last, tokens]
        return Result(logits, tokens), Read(state.last, tokens, state.count + 1)

    return step


@pytree_dataclass
class PromptedModel:
    """A decoder-only model: logits `[V, V, V]` by the last two tokens."""

    table: Array
    positions: int = static(default=1_000)
    vocab_size: int | None = static(default=None)
    is_prompted = True

    def max_input_length(self, max_tokens):
        return self.positions - max_tokens

    def prefill(self, inputs, lengths, *, max_tokens):
        if inputs.shape[1] + max_tokens > self.positions:
            raise ValueError(f"the model has {self.positions} positions")
        padded = jnp.pad(inputs, ((0, 0), (1, 0)), constant_values=BOS)
        before, last = (
            jnp.take_along_axis(padded, (lengths - back)[:, None], axis=1)[:, 0] for back in (1, 0)
        )
        return Read(before, before, lengths - 1), last

    def step(self, state, tokens, *, returning=()):
        logits = self.table[state.last, tokens]
        return Result(logits, tokens), Read(state.last, tokens, state.count + 1)


@pytree_dataclass
class SourceModel:
    """An encoder-decoder model: logits `[Q, V, V, V]` by the source, and the last two tokens."""

    table: Array
    vocab_size: int | None = static(default=None)
    input_vocab_size: int | None = static(default=None)
    is_prompted = False

    def prefill(self, inputs, lengths, *, max_tokens):
        valid = jnp.arange(inputs.shape[1])[None] < lengths[:, None]
        source = jnp.where(valid, inputs, 0).sum(1) % len(self.table)
        return (Constant(source), empty_state(len(inputs))), None

    def step(self, state, tokens, *, returning=()):
        source, read = state
        logits = self.table[source.value, read.last, tokens]
        return Result(logits, tokens), (source, Read(read.last, tokens, read.count + 1))


def random_table(rows, vocabulary, branches=None, seed=0):
    """Return logits `[B, V, V, V]`; with branches, only the end and so many others are possible.

    PAD and BOS are never possible.
    """
    random = np.random.default_rng(seed)
    table = random.normal(0, 1.5, (rows, *[vocabulary] * 3)).astype(np.float32)
    table[..., [PAD, BOS]] = -np.inf
    if branches is not None:
        order = random.random(table[..., 3:].shape).argsort(-1)
        table[..., 3:][order >= branches] = -np.inf
    return table


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Reference(NamedTuple):
    """Decoding of one row with lists.

    Attributes:
        table: logits `[V, V, V]`.
        prefix: ids.
        stopping: the conditions.
        penalty: of lengths.
        process: of log-probabilities and the answer so far.
    """

    table: np.ndarray
    prefix: list
    stopping: StoppingCriteria
    penalty: object = None
    process: object = None

    def following(self, answer):
        """Return the scores and the log-probabilities of each next token."""
        if len(answer) < len(self.prefix):
            only = np.full(len(self.table), -np.inf)
            only[self.prefix[len(answer)]] = 0
            return only, only
        before, last = [BOS, BOS, *answer][-2:]
        log_probs = log_softmax(self.table[before, last])
        scores = log_probs.copy()
        if len(answer) + 1 < self.stopping.min_tokens:
            for token in range(len(scores)):
                if self.stops([*answer, token]):
                    scores[token] = -np.inf
        if self.process is not None:
            scores = self.process(scores, answer)
        return scores, log_probs

    def stops(self, answer):
        return any(tuple(answer[-len(ids) :]) == ids for ids in self.stopping.stop)

    def ends(self, answer):
        return bool(answer) and (self.stops(answer) or len(answer) == self.stopping.max_tokens)

    def score(self, total, answer):
        if self.penalty is None:
            return total
        return total / self.penalty(np.float64(max(1, len(answer) - len(self.prefix))))

    def all_answers(self):
        """Return `(score, tokens, log-probabilities)` of all answers, the best first."""
        found = []

        def extend(total, answer, log_probs):
            if self.ends(answer):
                found.append((self.score(total, answer), answer, log_probs))
                return
            scores, following = self.following(answer)
            for token in np.flatnonzero(scores > -np.inf):
                longer = [*answer, int(token)], [*log_probs, following[token]]
                extend(total + scores[token], *longer)

        extend(0.0, [], [])
        return sorted(found, key=lambda answer: -answer[0])

    def beam(self, num_beams, *, keep_width=False):
        """Return the answers of beam search without early stop, the best first."""
        live, found, width = [(0.0, [], [])], [], num_beams
        while live:
            longer = []
            for total, answer, log_probs in live:
                scores, following = self.following(answer)
                longer += [
                    (total + scores[token], [*answer, int(token)], [*log_probs, following[token]])
                    for token in np.flatnonzero(scores > -np.inf)
                ]
            longer.sort(key=lambda answer: -answer[0])
            if keep_width:
                done = [one for one in longer[:num_beams] if self.stops(one[1])]
                live = [one for one in longer if not self.stops(one[1])][:num_beams]
            else:
                done = [one for one in longer[:width] if self.stops(one[1])]
                live = [one for one in longer[:width] if not self.stops(one[1])]
            if live and len(live[0][1]) == self.stopping.max_tokens:
                done, live = [*done, *live], []
            found += [(self.score(total, answer), answer, rest) for total, answer, rest in done]
            width -= 0 if keep_width else len(done)
        return sorted(found, key=lambda answer: -answer[0])


def assert_equals(output, expected):
    """Compare one answer (leaves without leading axes) with `(score, tokens, log-probs)`."""
    score, answer, log_probs = expected
    rest = len(output.tokens) - len(answer)
    np.testing.assert_array_equal(output.tokens, [*answer, *[PAD] * rest])
    assert output.lengths == len(answer)
    np.testing.assert_allclose(output.scores, score, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(output.log_probs, [*log_probs, *[0.0] * rest], rtol=1e-4, atol=1e-5)


def pick(output, *index):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], output)


CALLS = []  # numbers of the steps that `search` ran


@functools.partial(jitted, static_argnames=("strategy", "stopping", "options"))
def search(table, prefix=None, rng=None, *, strategy, stopping, options=()):
    """Decode a model of `random_table` and observe the token that each step read."""
    step, rows = step_of(table), len(table)

    def counted(state, tokens):
        jax.debug.callback(lambda count: CALLS.append(int(count[0])), state.count)
        return step(state, tokens)

    return decode(
        counted,
        empty_state(rows),
        jnp.full(rows, BOS, jnp.int32),
        strategy,
        stopping,
        prefix=prefix,
        rng=rng,
        observe=lambda result: {"read": result.attention},
        **dict(options),
    )
