"""Random models whose next token depends on the last two, and all that they can say.

The second token back is known only through the state, so a search that mixes up the states of its
hypotheses says something else.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

PAD, BOS, END = 0, 1, 2


class Memory(NamedTuple):
    """What a step knows: the token before the last `[B]`, and how many were read."""

    before: Array
    heard: Array
    count: Array


def memory(rows):
    start = jnp.full(rows, BOS, jnp.int32)
    return Memory(start, start, jnp.int32(0))


def step_of(table):
    """A step that looks its logits up in `[B, V, V, V]`."""

    def step(state, tokens):
        logits = table[jnp.arange(len(table)), state.heard, tokens]
        return logits, Memory(state.heard, tokens, state.count + 1)

    return step


def random_table(rows, vocabulary, branches=None, seed=0):
    """Logits `[B, V, V, V]`; with branches, only the end and so many words are possible each time.

    No word is BOS or PAD.
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


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def constrained(table, said, forced, min_length):
    """Log-probabilities of what one row may say next."""
    if len(said) < len(forced):
        only = np.full(len(table), -np.inf)
        only[forced[len(said)]] = 0
        return only
    before, last = [BOS, BOS, *said][-2:]
    log_probs = log_softmax(table[before, last])
    if len(said) + 1 < min_length:
        log_probs[END] = -np.inf
    return log_probs


def everything(table, forced, *, max_length, min_length, alpha):
    """All answers of one row with their scores, the best first."""
    found = []

    def go_on(said, log_probs):
        if said and (said[-1] == END or len(said) == max_length):
            found.append((sum(log_probs) / penalty(len(said), alpha), said, log_probs))
            return
        following = constrained(table, said, forced, min_length)
        for token in np.flatnonzero(following > -np.inf):
            go_on([*said, int(token)], [*log_probs, following[token]])

    go_on([], [])
    return sorted(found, key=lambda answer: -answer[0])


def narrow_beam(table, forced, *, max_length, min_length, alpha, beam):
    """Beam search of one row with lists, which stops when the beam is empty and not before."""
    live, ended, room = [(0.0, [], [])], [], beam
    for length in range(1, max_length + 1):
        longer = [
            (total + following[token], [*said, int(token)], [*log_probs, following[token]])
            for total, said, log_probs in live
            for following in [constrained(table, said, forced, min_length)]
            for token in np.flatnonzero(following > -np.inf)
        ]
        longer = sorted(longer, key=lambda answer: -answer[0])[:room]
        live = [answer for answer in longer if answer[1][-1] != END and length < max_length]
        done = [answer for answer in longer if answer not in live]
        ended += [(total / penalty(length, alpha), *rest) for total, *rest in done]
        room -= len(done)
    return sorted(ended, key=lambda answer: -answer[0])


def assert_says(answer, expected):
    """Holds one answer of the library (leaves without a leading axis) against one of the above."""
    score, said, log_probs = expected
    rest = len(answer.tokens) - len(said)
    np.testing.assert_array_equal(answer.tokens, [*said, *[PAD] * rest])
    assert answer.lengths == len(said)
    np.testing.assert_allclose(answer.scores, score, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answer.log_probs, [*log_probs, *[0.0] * rest], rtol=1e-4, atol=1e-5)


def pick(answer, *index):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], answer)
