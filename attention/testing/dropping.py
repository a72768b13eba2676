"""Dropout: which weights are dropped, how many, and what becomes of the rest."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.dropout import Dropout, keep_factor
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE, at, difference, difference_of_gradients
from attention.testing.promise import Promise
from attention.testing.subject import Subject

RATE = 0.25


def same_key(subject: Subject, case: Case) -> str | None:
    """A key drops the same pairs every time, another key others, and rate 0 none."""
    inputs = case.query_key_value()
    one, again, other, none = (
        subject(inputs, case.dtype, dropout=Dropout(jax.random.key(seed), rate))
        for seed, rate in ((0, RATE), (0, RATE), (1, RATE), (0, 0.0))
    )
    found = difference("output of the same key", "BTNH", again, one)
    if found:
        return found
    if case.S > 4 and (one == other).all():
        return "another key drops the same pairs"
    plain = subject(inputs, case.dtype)
    return difference("output at rate 0", "BTNH", none, plain, TOLERANCE[case.dtype])


def rate(subject: Subject, case: Case) -> str | None:
    """A quarter of the weights is dropped, each head on its own, and the rest grows by 4/3."""
    kept, weights = _kept_weights(subject, case, seed=0)
    dropped = kept == 0
    expected = np.where(dropped, 0, weights / (1 - RATE))
    found = difference("weight after dropout", "BNTS", kept, expected, TOLERANCE[case.dtype])
    if found:
        return found
    # Five standard deviations, as if all examples of a batch dropped the same pairs.
    spread = 5 * (RATE * (1 - RATE) / (case.N * case.T * case.S)) ** 0.5
    share = dropped.mean()
    if abs(share - RATE) > spread:
        return f"a share of {share:.3f} of the weights is dropped, should be {RATE}"
    if case.N > 1 and case.T * case.S > 64 and (dropped[:, :1] == dropped).all():
        return "all heads drop the same pairs"
    return None


def same_pairs(subject: Subject, case: Case) -> str | None:
    """Dropping depends on (key, head, query position, key position), as in `attention.attend`."""
    key = jax.random.key(0)
    kept, _ = _kept_weights(subject, case, seed=0)
    positions = jnp.arange(case.T), jnp.arange(case.S)
    keep = jax.jit(keep_factor, static_argnums=1)
    factor = np.asarray(keep(Dropout(key, RATE), case.N, *positions))
    wrong = (kept == 0) != (factor == 0)
    if not wrong.any():
        return None
    place = np.unravel_index(np.argmax(wrong), wrong.shape)
    done, due = ("drops", "keeps") if kept[place] == 0 else ("keeps", "drops")
    return f"{done} a weight that attend {due}, at {at('BNTS', place)}"


def gradients(subject: Subject, case: Case) -> str | None:
    """The backward pass drops what the forward pass dropped."""
    kept, weights = _kept_weights(subject, case, seed=0)
    inputs = case.query_key_value()
    cotangents = case.normal(10, *kept.transpose(0, 2, 1, 3).shape[:3], case.Hv)
    dropout = Dropout(jax.random.key(0), RATE)
    actual = subject.pullback(inputs, case.dtype, cotangents, dropout=dropout)
    expected = reference.gradients(*inputs, output=cotangents, keep=kept / weights)
    return difference_of_gradients("gradient", actual, expected[:3], 5 * TOLERANCE[case.dtype])


def _kept_weights(subject: Subject, case: Case, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[B, N, T, S]` with and without dropout, read off values that are one-hot."""
    query, key, _ = case.query_key_value()
    found = []
    for arguments in ({"dropout": Dropout(jax.random.key(seed), RATE)}, {}):
        columns = []
        for first in range(0, case.S, case.Hv):  # as many keys at a time as a value is wide
            one_hot = np.eye(case.S, case.Hv, -first)[:, None, :]
            value = np.broadcast_to(one_hot, (case.B, case.S, case.K, case.Hv))
            columns.append(subject((query, key, value), case.dtype, **arguments))
        found.append(np.concatenate(columns, axis=-1)[..., : case.S].transpose(0, 2, 1, 3))
    return found[0], found[1]


SMALL = Case(B=1, T=16, S=16, N=4, K=4, H=16, Hv=16)
MANY = replace(SMALL, T=64, N=8, K=8)
LARGER = replace(SMALL, T=37, S=37)

ROWS = (
    Promise("dropout: the same for a key", same_key, (SMALL,), ("dropout",), ("values",)),
    Promise("dropout: rate and size", rate, (MANY,), ("dropout",), ("values",)),
    Promise(
        "dropout: the pairs of attend",
        same_pairs,
        (SMALL, LARGER),
        ("dropout", "dropout_by_position"),
        ("dropout: the same for a key", "dropout: rate and size"),
    ),
    Promise(
        "dropout: gradients",
        gradients,
        (SMALL,),
        ("dropout", "gradients"),
        ("gradients", "dropout: the same for a key", "dropout: rate and size"),
    ),
)
