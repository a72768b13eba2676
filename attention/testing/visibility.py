"""Masks: a change of a visible value changes the output, a change of a masked key does not."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attention.primitives import masks, scores
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import SQUARE, UNALIGNED, Check
from attention.testing.compare import TOLERANCE, at, difference, difference_of_gradients
from attention.testing.implementation import Implementation


def causality(implementation: Implementation, case: Case) -> str | None:
    """Check that a query attends to keys up to its position and to no later ones."""
    position = np.arange(case.T)
    allowed = np.broadcast_to(position[:, None] >= position, (case.B, case.T, case.T))
    return _visibility(implementation, case, allowed, masks.causal())


def padding(implementation: Implementation, case: Case) -> str | None:
    """Check that queries attend to keys below the length of their example and to no padding."""
    lengths = case.random(4).integers(1, case.S + 1, size=case.B)
    allowed = np.broadcast_to(
        (np.arange(case.S) < lengths[:, None])[:, None], (case.B, case.T, case.S)
    )
    return _visibility(implementation, case, allowed, masks.lengths(lengths.astype(np.int32)))


def segments(implementation: Implementation, case: Case) -> str | None:
    """Check that sequences packed into one row do not attend to each other."""
    segment = np.sort(case.random(5).integers(3, size=(case.B, case.T)), axis=1)
    allowed = segment[:, :, None] == segment[:, None, :]
    return _visibility(implementation, case, allowed, masks.segments(segment.astype(np.int32)))


def positions(implementation: Implementation, case: Case) -> str | None:
    """Check that a causal mask compares the given positions of queries and keys."""
    query_positions, key_positions = _shuffled_positions(case)
    allowed = key_positions <= query_positions[:, None]
    return _attends_exactly(
        implementation,
        case,
        np.broadcast_to(allowed, (case.B, case.T, case.S)),
        "mask=causal() and positions",
        mask=masks.causal(),
        positions=(query_positions, key_positions),
    )


def scores_at_positions(implementation: Implementation, case: Case) -> str | None:
    """Check that score functions receive the given positions, and the heads."""
    query_positions, key_positions = positions = _shuffled_positions(case)
    slopes = np.arange(1, case.N + 1, dtype=np.float32) / 8
    penalty = slopes[:, None, None] * np.abs(query_positions[:, None] - key_positions)
    inputs = case.query_key_value()
    expected = reference.attention(*inputs, score=lambda products: products - penalty).output
    given = (scores.alibi(slopes),)
    output = implementation(inputs, case.dtype, score=given, positions=positions)
    return difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])


def long_predicates(implementation: Implementation, case: Case) -> str | None:
    """Compare predicates with the equation at lengths that are not multiples of a tile."""
    query_positions = np.arange(case.T, dtype=np.int32) + max(0, case.S - case.T)
    key_positions = np.arange(case.S, dtype=np.int32)
    segment = (np.arange(case.S + case.T) // 50).astype(np.int32)
    distance = query_positions[:, None] - key_positions
    same = segment[query_positions][:, None] == segment[key_positions]
    patterns = {
        "a window": (masks.causal() & masks.window(before=70), (distance >= 0) & (distance <= 70)),
        "segments": (masks.segments(segment), same),
    }
    inputs = case.query_key_value()
    for name, (mask, allowed) in patterns.items():
        arguments = {"mask": mask, "positions": (query_positions, key_positions)}
        expected = reference.attention(*inputs, allowed[None])
        output = implementation(inputs, case.dtype, **arguments)
        tolerance = TOLERANCE[case.dtype]
        found = difference("output", "BTNH", output, expected.output, tolerance)
        if not found and implementation.can("gradients"):
            cotangents = case.cotangents()
            actual = implementation.pullback(inputs, case.dtype, cotangents, **arguments)
            gradients = reference.gradients(*inputs, allowed[None], output=cotangents)
            found = difference_of_gradients("gradient", actual, gradients[:3], 5 * tolerance)
        if found:
            return f"with {name}: {found}"
    return None


def cached(implementation: Implementation, case: Case) -> str | None:
    """Check that queries one at a time, with a cache of keys, equal the full causal pass."""
    query, key, value = case.query_key_value()
    position = np.arange(case.T)
    full_mask = np.broadcast_to(position[:, None] >= position, (case.B, case.T, case.T))
    full = implementation((query, key, value), case.dtype, mask=np.array(full_mask))
    for t in range(case.T):
        written = (position <= t)[:, None, None]
        # Slots of the cache that are not written yet may contain any number.
        inputs = query[:, t : t + 1], np.where(written, key, 7), np.where(written, value, 7)
        forms: dict[str, Any] = {"array": {"mask": np.array(full_mask[:, t : t + 1])}}
        if implementation.can("predicates"):
            at_t = np.array([t], np.int32), position.astype(np.int32)
            forms["positions"] = {"mask": masks.causal(), "positions": at_t}
        for form, arguments in forms.items():
            step = implementation(inputs, case.dtype, **arguments)
            tolerance = TOLERANCE[case.dtype]
            found = difference("output", "BTNH", step, full[:, t : t + 1], tolerance)
            if found:
                return f"step {t} with a mask by {form}, as query 0: {found}"
    return None


def left_padding(implementation: Implementation, case: Case) -> str | None:
    """Check that left padding, at negative positions, equals the example without padding."""
    query, key, value = case.query_key_value()
    lengths = case.random(12).integers(1, case.S + 1, size=case.B)
    positions = (np.arange(case.S) - (case.S - lengths)[:, None]).astype(np.int32)
    mask = masks.causal() & masks.lengths(lengths.astype(np.int32))
    output = implementation(
        (query, key, value), case.dtype, mask=mask, positions=(positions, positions)
    )
    for b, length in enumerate(lengths):
        example = tuple(array[b : b + 1, case.S - length :] for array in (query, key, value))
        expected = reference.attention(*example, np.tri(length, dtype=bool)[None]).output
        actual = output[b : b + 1, case.S - length :]
        found = difference("output", "BTNH", actual, expected, TOLERANCE[case.dtype])
        if found:
            return f"example {b} with {case.S - length} padded positions, as batch 0: {found}"
    return None


def _shuffled_positions(case: Case) -> tuple[np.ndarray, np.ndarray]:
    query_positions = case.random(6).permutation(case.T + 2)[: case.T]
    key_positions = case.random(7).permutation(case.S)
    return query_positions.astype(np.int32), key_positions.astype(np.int32)


def _visibility(
    implementation: Implementation, case: Case, allowed: np.ndarray, mask: masks.Mask
) -> str | None:
    """Check the mask as a bool array, and as a predicate if supported."""
    if implementation.can("mask"):
        found = _attends_exactly(
            implementation, case, allowed, "a mask by array", mask=np.array(allowed)
        )
        if found:
            return found
    if implementation.can("predicates"):
        return _attends_exactly(implementation, case, allowed, "a mask by predicate", mask=mask)
    if not implementation.can("mask"):
        raise NotImplementedError("without mask or predicates")
    return None


def _attends_exactly(
    implementation: Implementation,
    case: Case,
    allowed: np.ndarray,
    form: str,
    **arguments: object,
) -> str | None:
    query, key, value = case.query_key_value()
    query = query / 2  # so that each weight is large enough to change the output
    before = implementation((query, key, value), case.dtype, **arguments)
    for s, what, inputs in _changed_inputs(query, key, value):
        after = implementation(inputs, case.dtype, **arguments)
        masked = ~allowed[:, :, s]
        expected = np.where(masked[..., None, None], before, after)
        found = difference("output", "BTNH", after, expected)
        if found:
            return f"with {form}, {what} {s} is masked but changes the output: {found}"
        unused = allowed[:, :, s, None] & (before == after).all(axis=-1)
        if what == "value" and unused.any():
            place = at("BTN", np.unravel_index(np.argmax(unused), unused.shape))
            return f"with {form}, value {s} is visible but has no effect at {place}"
    return None


def _changed_inputs(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> Iterator[tuple[int, str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    for s in range(key.shape[1]):
        selected = (np.arange(key.shape[1]) == s)[:, None, None]
        yield s, "value", (query, key, np.where(selected, value + 100, value))
        yield s, "key", (query, np.where(selected, -3 * key - 1, key), value)


CHECKS = (
    Check("causality", causality, (SQUARE,), (), ("mask",)),
    Check("padding", padding, (SQUARE,), (), ("mask",)),
    Check("segments", segments, (SQUARE,), (), ("mask",)),
    Check("positions", positions, (SQUARE,), ("predicates",), ("values", "causality")),
    Check(
        "scores at positions",
        scores_at_positions,
        (SQUARE,),
        ("scores", "predicates"),
        ("order of operations", "positions"),
    ),
    Check("left padding", left_padding, (SQUARE,), ("predicates",), ("padding", "positions")),
    Check(
        "predicates at unaligned lengths",
        long_predicates,
        (UNALIGNED[4],),
        ("predicates",),
        ("positions", "segments", "unaligned lengths", "unaligned lengths, masked"),
    ),
    Check(
        "cached decoding", cached, (SQUARE,), ("mask", "cross"), ("mask", "causality", "positions")
    ),
)
