"""Who sees whom: what changes when a key or a value is changed, and what must not."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attention.primitives import masks
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE, at, difference, difference_of_gradients
from attention.testing.promise import LONG, SQUARE, Promise
from attention.testing.subject import Subject


def causality(subject: Subject, case: Case) -> str | None:
    """A query sees the keys up to its own position and none after it."""
    position = np.arange(case.T)
    allowed = np.broadcast_to(position[:, None] >= position, (case.B, case.T, case.T))
    return _visibility(subject, case, allowed, masks.causal())


def padding(subject: Subject, case: Case) -> str | None:
    """Queries see the keys before the length of their example and none behind it."""
    lengths = case.random(4).integers(1, case.S + 1, size=case.B)
    allowed = np.broadcast_to(
        (np.arange(case.S) < lengths[:, None])[:, None], (case.B, case.T, case.S)
    )
    return _visibility(subject, case, allowed, masks.lengths(lengths.astype(np.int32)))


def segments(subject: Subject, case: Case) -> str | None:
    """Sequences packed into one row do not see each other."""
    segment = np.sort(case.random(5).integers(3, size=(case.B, case.T)), axis=1)
    allowed = segment[:, :, None] == segment[:, None, :]
    return _visibility(subject, case, allowed, masks.segments(segment.astype(np.int32)))


def positions(subject: Subject, case: Case) -> str | None:
    """Causality compares positions, wherever the queries stand and in whatever order the keys."""
    query_positions = case.random(6).permutation(case.T + 2)[: case.T].astype(np.int32)
    key_positions = case.random(7).permutation(case.S).astype(np.int32)
    allowed = key_positions <= query_positions[:, None]
    return _sees_exactly(
        subject,
        case,
        np.broadcast_to(allowed, (case.B, case.T, case.S)),
        "mask=causal() and positions",
        mask=masks.causal(),
        positions=(query_positions, key_positions),
    )


def long_predicates(subject: Subject, case: Case) -> str | None:
    """Predicates at lengths of no tile: which tiles they leave out is their own business."""
    query_positions = np.arange(case.T, dtype=np.int32) + max(0, case.S - case.T)
    key_positions = np.arange(case.S, dtype=np.int32)
    segment = (np.arange(case.S + case.T) // 50).astype(np.int32)
    distance = query_positions[:, None] - key_positions
    same = segment[query_positions][:, None] == segment[key_positions]
    ways = {
        "a window": (masks.causal() & masks.window(before=70), (distance >= 0) & (distance <= 70)),
        "segments": (masks.segments(segment), same),
    }
    inputs = case.query_key_value()
    for name, (mask, allowed) in ways.items():
        arguments = {"mask": mask, "positions": (query_positions, key_positions)}
        expected = reference.attention(*inputs, allowed[None])
        output = subject(inputs, case.dtype, **arguments)
        tolerance = TOLERANCE[case.dtype]
        found = difference("output", "BTNH", output, expected.output, tolerance)
        if not found and subject.can("gradients"):
            cotangents = case.normal(10, *expected.output.shape)
            actual = subject.pullback(inputs, case.dtype, cotangents, **arguments)
            due = reference.gradients(*inputs, allowed[None], output=cotangents)
            found = difference_of_gradients("gradient", actual, due[:3], 5 * tolerance)
        if found:
            return f"with {name}: {found}"
    return None


def cached(subject: Subject, case: Case) -> str | None:
    """Queries one at a time, with the keys so far, are the full causal pass."""
    query, key, value = case.query_key_value()
    position = np.arange(case.T)
    full_mask = np.broadcast_to(position[:, None] >= position, (case.B, case.T, case.T))
    full = subject((query, key, value), case.dtype, mask=np.array(full_mask))
    for t in range(case.T):
        arrived = (position <= t)[:, None, None]
        # What stands in the places of a cache that are not written yet is nobody's business.
        inputs = query[:, t : t + 1], np.where(arrived, key, 7), np.where(arrived, value, 7)
        ways: dict[str, Any] = {"array": {"mask": np.array(full_mask[:, t : t + 1])}}
        if subject.can("predicates"):
            at_t = np.array([t], np.int32), position.astype(np.int32)
            ways["positions"] = {"mask": masks.causal(), "positions": at_t}
        for way, arguments in ways.items():
            step = subject(inputs, case.dtype, **arguments)
            tolerance = TOLERANCE[case.dtype]
            found = difference("output", "BTNH", step, full[:, t : t + 1], tolerance)
            if found:
                return f"step {t} with a mask by {way}, as query 0: {found}"
    return None


def _visibility(subject: Subject, case: Case, allowed: np.ndarray, mask: masks.Mask) -> str | None:
    """By a bool array, and by a predicate where that is claimed."""
    if subject.can("mask"):
        found = _sees_exactly(subject, case, allowed, "a mask by array", mask=np.array(allowed))
        if found:
            return found
    if subject.can("predicates"):
        return _sees_exactly(subject, case, allowed, "a mask by predicate", mask=mask)
    if not subject.can("mask"):
        raise NotImplementedError("without mask or predicates")
    return None


def _sees_exactly(
    subject: Subject,
    case: Case,
    allowed: np.ndarray,
    way: str,
    **arguments: object,
) -> str | None:
    query, key, value = case.query_key_value()
    query = query / 2  # no weight so small that a change of its value could hide in a rounding
    before = subject((query, key, value), case.dtype, **arguments)
    for s, what, inputs in _changed(query, key, value):
        after = subject(inputs, case.dtype, **arguments)
        hidden = ~allowed[:, :, s]
        kept = np.where(hidden[..., None, None], before, after)
        found = difference("output", "BTNH", after, kept)
        if found:
            return f"with {way}, {what} {s} may not be seen but changes the output: {found}"
        blind = allowed[:, :, s, None] & (before == after).all(axis=-1)
        if what == "value" and blind.any():
            place = at("BTN", np.unravel_index(np.argmax(blind), blind.shape))
            return f"with {way}, value {s} may be seen but is not at {place}"
    return None


def _changed(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> Iterator[tuple[int, str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    for s in range(key.shape[1]):
        here = (np.arange(key.shape[1]) == s)[:, None, None]
        yield s, "value", (query, key, np.where(here, value + 100, value))
        yield s, "key", (query, np.where(here, -3 * key - 1, key), value)


ROWS = (
    Promise("causality", causality, (SQUARE,), (), ("mask",)),
    Promise("padding", padding, (SQUARE,), (), ("mask",)),
    Promise("segments", segments, (SQUARE,), (), ("mask",)),
    Promise("positions", positions, (SQUARE,), ("predicates",), ("values", "causality")),
    Promise(
        "predicates at lengths of no tile",
        long_predicates,
        (LONG[4],),
        ("predicates",),
        ("positions", "segments", "lengths of no tile", "lengths of no tile, masked"),
    ),
    Promise(
        "cached decoding", cached, (SQUARE,), ("mask", "cross"), ("mask", "causality", "positions")
    ),
)
