"""Dropout: the dropped pairs, the share of dropped weights, and the scale of kept weights."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.dropout import Dropout, keep_factor
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import Check
from attention.testing.compare import TOLERANCE, at, difference, difference_of_gradients
from attention.testing.implementation import Implementation

RATE = 0.25


def reproducible(implementation: Implementation, case: Case) -> str | None:
    """Check that equal keys drop equal pairs, other keys other pairs, and rate 0 none."""
    inputs = case.query_key_value()
    first, again, other, none = (
        implementation(inputs, case.dtype, dropout=Dropout(jax.random.key(seed), rate))
        for seed, rate in ((0, RATE), (0, RATE), (1, RATE), (0, 0.0))
    )
    found = difference("output with the same key", "BTNH", again, first)
    if found:
        return found
    if case.S > 4 and (first == other).all():
        return "another key drops the same pairs"
    plain = implementation(inputs, case.dtype)
    return difference("output at rate 0", "BTNH", none, plain, TOLERANCE[case.dtype])


def rate(implementation: Implementation, case: Case) -> str | None:
    """Check that a quarter of the weights is dropped, per head, and the others scaled by 4/3."""
    kept, weights = _kept_weights(implementation, case, seed=0)
    dropped = kept == 0
    expected = np.where(dropped, 0, weights / (1 - RATE))
    found = difference("weight after dropout", "BNTS", kept, expected, TOLERANCE[case.dtype])
    if found:
        return found
    # Five standard deviations; examples of a batch may drop the same pairs.
    spread = 5 * (RATE * (1 - RATE) / (case.N * case.T * case.S)) ** 0.5
    share = dropped.mean()
    if abs(share - RATE) > spread:
        return f"a share of {share:.3f} of the weights is dropped, should be {RATE}"
    if case.N > 1 and case.T * case.S > 64 and (dropped[:, :1] == dropped).all():
        return "all heads drop the same pairs"
    return None


def same_pairs(implementation: Implementation, case: Case) -> str | None:
    """Check that the dropped pairs are those of `attention.attend`, also at other positions."""
    rows, columns = (np.arange(size, dtype=np.int32) for size in (case.T, case.S))
    given = [((rows, columns), {})]
    if implementation.can("predicates"):
        given.append(((rows[::-1], columns), {"positions": (rows[::-1], columns)}))
    dropout, heads = Dropout(jax.random.key(0), RATE), jnp.arange(case.N)
    for positions, arguments in given:
        kept, _ = _kept_weights(implementation, case, seed=0, **arguments)
        factor = np.asarray(jax.jit(keep_factor)(dropout, heads, *positions))
        wrong = (kept == 0) != (factor == 0)
        if wrong.any():
            index = np.unravel_index(np.argmax(wrong), wrong.shape)
            actual, expected = ("drops", "keeps") if kept[index] == 0 else ("keeps", "drops")
            return f"{actual} a weight that attend {expected}, at {at('BNTS', index)}"
    return None


def gradients(implementation: Implementation, case: Case) -> str | None:
    """Check that the backward pass drops the same pairs as the forward pass."""
    kept, weights = _kept_weights(implementation, case, seed=0)
    inputs = case.query_key_value()
    cotangents = case.cotangents()
    dropout = Dropout(jax.random.key(0), RATE)
    actual = implementation.pullback(inputs, case.dtype, cotangents, dropout=dropout)
    expected = reference.gradients(*inputs, output=cotangents, keep=kept / weights)
    return difference_of_gradients("gradient", actual, expected[:3], 5 * TOLERANCE[case.dtype])


def returned_weights(implementation: Implementation, case: Case) -> str | None:
    """Check that the returned weights are those before dropout."""
    inputs, dropout = case.query_key_value(), Dropout(jax.random.key(0), RATE)
    _, extras = implementation(inputs, case.dtype, dropout=dropout, returning=("weights",))
    expected = reference.attention(*inputs).weights
    return difference("weights", "BNTS", extras["weights"], expected, TOLERANCE[case.dtype])


def _kept_weights(
    implementation: Implementation, case: Case, seed: int, **arguments: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights `[B, N, T, S]` with and without dropout, computed with one-hot values."""
    query, key, _ = case.query_key_value()
    found = []
    for options in ({"dropout": Dropout(jax.random.key(seed), RATE)}, {}):
        columns = []
        for first in range(0, case.S, case.Hv):  # Hv keys per call
            one_hot = np.eye(case.S, case.Hv, -first)[:, None, :]
            value = np.broadcast_to(one_hot, (case.B, case.S, case.K, case.Hv))
            inputs = query, key, value
            columns.append(implementation(inputs, case.dtype, **options, **arguments))
        found.append(np.concatenate(columns, axis=-1)[..., : case.S].transpose(0, 2, 1, 3))
    return found[0], found[1]


SMALL = Case(B=1, T=16, S=16, N=4, K=4, H=16, Hv=16)
MANY = replace(SMALL, T=64, N=8, K=8)
LARGER = replace(SMALL, T=37, S=37)

CHECKS = (
    Check("dropout: reproducible", reproducible, (SMALL,), ("dropout",), ("values",)),
    Check("dropout: rate and scale", rate, (MANY,), ("dropout",), ("values",)),
    Check(
        "dropout: same pairs as attend",
        same_pairs,
        (SMALL, LARGER),
        ("dropout", "dropout_by_position"),
        ("dropout: reproducible", "dropout: rate and scale"),
    ),
    Check(
        "dropout: gradients",
        gradients,
        (SMALL,),
        ("dropout", "gradients"),
        ("gradients", "dropout: reproducible", "dropout: rate and scale"),
    ),
    Check(
        "dropout: returned weights",
        returned_weights,
        (SMALL,),
        ("dropout", "weights"),
        ("weights", "dropout: reproducible"),
    ),
)
