"""The rows of `check_attention`: one property of the contract each, with the cases to check.

Most rows call the function under test in some way, and compare the results with the equation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from attention.primitives import masks, scores
from attention.testing import properties
from attention.testing.case import Case
from attention.testing.implementation import Implementation
from attention.testing.programs import cost_of_vmap, sharded
from attention.testing.reference import (
    TOLERANCE,
    Arrays,
    Equation,
    difference,
    difference_of_results,
    first,
)


@dataclass(frozen=True)
class Check:
    """A property that holds for every case.

    Attributes:
        name: of the row in the report.
        find_fault: returns a sentence about the error in one case, or None if it passes. It may
            raise NotImplementedError with a reason why the property cannot be checked.
        cases: the cases to check.
        needs: rows that must not have failed, since the same fault would fail this one; and
            capabilities. `Implementation.results` adds "values" and those of the arguments.
        provides: a capability that later rows do without if this check fails, beside its name.
    """

    name: str
    find_fault: Callable[[Implementation, Case], str | None]
    cases: tuple[Case, ...]
    needs: tuple[str, ...] = ()
    provides: str = ""


@dataclass(frozen=True)
class Call:
    """One call of the function under test, and the equation with the same result.

    Attributes:
        equation: has the inputs.
        arguments: of the function, as those of `attention.attend`.
        words: what this call is, in a sentence about a fault.
        tolerance: of the output; that of the dtype by default.
        cotangents: of the output; random by default.
    """

    equation: Equation
    arguments: dict[str, Any]
    words: str = ""
    tolerance: float | np.ndarray | None = None
    cotangents: np.ndarray | None = None


Calls = Callable[[Implementation, Case], Iterator[Call]]


def compare(
    calls: Calls, *returning: str, reverse: bool = False, forward: bool = False
) -> Callable[[Implementation, Case], str | None]:
    """Return a check that compares the results of calls with the equation.

    Args:
        calls: yields the calls of a case.
        returning: what to compare beside the output, if supported.
        reverse: compare gradients, too, if supported.
        forward: compare the derivatives of all these along a random direction, instead.
    """

    def find_fault(implementation: Implementation, case: Case) -> str | None:
        names = tuple(name for name in returning if implementation.can(name))
        directions: dict[str, Any] = {"tangents": case.query_key_value(20)} if forward else {}
        for call in calls(implementation, case):
            arguments = call.arguments | ({"returning": names} if names else {})
            if reverse and implementation.can("gradients"):
                directions["cotangents"] = call.cotangents or case.cotangents(*names)
            inputs, expected = call.equation.inputs, call.equation.results(**directions)
            actual = implementation.results(inputs, case.dtype, **directions, **arguments)
            tolerance = TOLERANCE[case.dtype] if call.tolerance is None else call.tolerance
            prefix = "derivative of " if forward else ""
            if fault := difference_of_results(actual, expected, tolerance, prefix):
                return f"{call.words}: {fault}" if call.words else fault
        return None

    return find_fault


def attends_exactly(calls: Calls) -> Callable[[Implementation, Case], str | None]:
    """Return a check that visible values change the output, and that masked keys change no bit."""

    def find_fault(implementation: Implementation, case: Case) -> str | None:
        for call in calls(implementation, case):
            run = partial(implementation, dtype=case.dtype, **call.arguments)
            query, key, value = call.equation.inputs
            query = query / 2  # so that each weight is large enough to change the output
            before = run((query, key, value))
            for s in range(case.S):
                selected = (np.arange(case.S) == s)[:, None, None]
                visible = call.equation.mask[:, :, s, None]
                after = run((query, key, np.where(selected, value + 100, value)))
                unused = first("BTN", visible & (before == after).all(axis=-1))
                if unused:
                    return f"{call.words}: value {s} is visible but has no effect at {unused}"
                other_key = run((query, np.where(selected, -3 * key - 1, key), value))
                for what, output in (("value", after), ("key", other_key)):
                    expected = np.where(visible[..., None], output, before)
                    if fault := difference("output", "BTNH", output, expected):
                        words = f"{call.words}: {what} {s}"
                        return f"{words} is masked but changes the output: {fault}"
        return None

    return find_fault


def plain(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call without further arguments."""
    yield Call(Equation(*case.query_key_value()), {})


def masked(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call under a random mask, different for each example, if supported."""
    mask = case.mask() if implementation.can("mask") else None
    yield Call(Equation(*case.query_key_value(), mask), {} if mask is None else {"mask": mask})


def scaled(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with another scale."""
    yield Call(Equation(*case.query_key_value(), scale=0.3), {"scale": 0.3})


def large_scores(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with scores of some thousands: their exponentials overflow."""
    query, key, value = case.query_key_value()
    equation = Equation(query * 128, key * 8, value)
    # The rounding error of a product is relative to it, and changes the weights by as much.
    largest = np.abs(equation.products).max() * case.H**0.5
    tolerance = TOLERANCE[case.dtype] + 4 * float(jnp.finfo(case.dtype).eps) * largest
    yield Call(equation, {}, tolerance=tolerance)


def narrow(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield calls in a low precision, in which neither scores nor sums may be computed.

    Scores lie far apart, or all values are positive: a long sum stops growing in that precision.
    """
    query, key, value = case.query_key_value()
    yield _rounded(case, query * 4, key * 2, value)  # exact: powers of two
    yield _rounded(case, query, key, np.abs(value))


def _rounded(case: Case, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Call:
    """Return a call that may round weights and output to its dtype."""
    equation = Equation(query, key, value)
    output, magnitude = np.abs(equation.output), replace(equation, value=np.abs(value)).output
    limit = 1.25 * float(jnp.finfo(case.dtype).eps) / 2 * (magnitude + output) + 1e-4
    return Call(equation, {}, tolerance=limit / np.maximum(1, output))


def softcap_and_bias(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with a mask and two score functions; another order gives other results."""
    mask, bias = case.mask(), np.float32(case.normal(9, case.N, case.T, case.S))
    score = scores.softcap(2.0), scores.bias_array(jnp.asarray(bias))
    equation = Equation(
        *case.query_key_value(), mask, score=lambda products: 2 * np.tanh(products / 2) + bias
    )
    yield Call(equation, {"mask": mask, "score": score})


def sinks(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with a sink per head, which takes its share of the weights after the scores."""
    logits = np.float32(case.normal(15, case.N))
    for call in softcap_and_bias(implementation, case):
        share = 1 / (1 + np.exp(logits[:, None] - call.equation.logsumexp))
        score = *call.arguments["score"], scores.attention_sinks(jnp.asarray(logits))
        yield Call(replace(call.equation, keep=share[..., None]), call.arguments | {"score": score})


def alibi(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with a score function of shuffled positions and heads."""
    queries, keys = positions = _shuffled_positions(case)
    slopes = np.arange(1, case.N + 1, dtype=np.float32) / 8
    penalty = slopes[:, None, None] * np.abs(queries[:, None] - keys)
    equation = Equation(*case.query_key_value(), score=lambda products: products - penalty)
    yield Call(equation, {"score": (scores.alibi(slopes),), "positions": positions})


def patterns(*names: str) -> Calls:
    """Return calls with masks as bool arrays and as predicates, if supported."""

    def calls(implementation: Implementation, case: Case) -> Iterator[Call]:
        for name in names:
            mask, allowed, positions = _patterns(case)[name]
            equation = Equation(*case.query_key_value(), allowed)
            yield from _in_both_forms(implementation, equation, mask, positions, f"mask {name!r}")

    return calls


def _patterns(case: Case) -> dict[str, tuple[masks.Mask, np.ndarray, dict[str, Arrays]]]:
    """Return name → mask, the bool array with the same meaning, and the argument `positions`."""
    queries, keys = np.arange(case.T, dtype=np.int32), np.arange(case.S, dtype=np.int32)
    ends = queries + max(0, case.S - case.T), keys  # the last query has the last position
    distance = ends[0][:, None] - keys
    shuffled = _shuffled_positions(case)
    lengths = np.int32(case.random(4).integers(1, case.S + 1, size=case.B))
    from_end = keys - (case.S - lengths)[:, None]  # negative for padding on the left
    left_padded = (from_end[:, None] >= 0) & (from_end[:, None] <= from_end[:, :, None])
    ids = np.int32(np.sort(case.random(5).integers(3, size=(case.B, case.T)), axis=1))
    blocks = np.arange(case.S + case.T, dtype=np.int32) // 50
    causal, real = masks.causal(), masks.lengths(lengths)
    window = causal & masks.window(before=70)
    same_block = blocks[ends[0]][:, None] == blocks[keys]
    return {
        "causality": (causal, np.tri(case.T, dtype=bool), {}),
        "padding": (real, (keys < lengths[:, None])[:, None], {}),
        "segments": (masks.segments(ids), ids[:, :, None] == ids[:, None], {}),
        "positions": (causal, shuffled[0][:, None] >= shuffled[1], {"positions": shuffled}),
        "left padding": (causal & real, left_padded, {"positions": (from_end, from_end)}),
        "window": (window, (distance >= 0) & (distance <= 70), {"positions": ends}),
        "documents": (masks.segments(blocks), same_block, {"positions": ends}),
    }


def one_query_at_a_time(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield calls of each query with a cache of keys; later slots contain other numbers."""
    query, key, value = case.query_key_value()
    keys = np.arange(case.T, dtype=np.int32)
    for t in range(case.T):
        written = keys <= t
        cache = (np.where(written[:, None, None], array, 7) for array in (key, value))
        equation = Equation(query[:, t : t + 1], *cache, written)
        positions = {"positions": (keys[t : t + 1], keys)}
        words = f"query {t}, as query 0, with its mask"
        yield from _in_both_forms(implementation, equation, masks.causal(), positions, words)


def _in_both_forms(
    implementation: Implementation,
    equation: Equation,
    mask: masks.Mask,
    positions: dict[str, Arrays],
    words: str,
) -> Iterator[Call]:
    """Yield calls with a mask as a bool array and as a predicate, if supported."""
    if implementation.can("mask"):
        yield Call(equation, {"mask": equation.mask}, f"{words} as an array")
    if implementation.can("predicates"):
        yield Call(equation, {"mask": mask, **positions}, f"{words} as a predicate")
    elif not implementation.can("mask"):
        implementation.require("mask")


def fully_masked(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with one fully masked query per example, and a fully masked last example.

    Cotangents of masked queries are large, so that the smallest gradient from them is found.
    """
    mask = case.mask()
    mask[:, case.T // 2] = False
    if case.B > 1:
        mask[-1] = False
    large = np.where(mask.any(axis=-1)[..., None, None], 1, 1e4)
    cotangents = {"output": large * case.cotangents()["output"]}
    yield Call(Equation(*case.query_key_value(), mask), {"mask": mask}, cotangents=cotangents)


def dropped(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with dropout, which drops the pairs that the function dropped before."""
    kept, weights = properties.kept_weights(implementation, case)
    equation = Equation(*case.query_key_value(), keep=kept / weights)
    yield Call(equation, {"dropout": properties.dropout()})


def _shuffled_positions(case: Case) -> tuple[np.ndarray, np.ndarray]:
    queries = case.random(6).permutation(case.T + 2)[: case.T]
    return np.int32(queries), np.int32(case.random(7).permutation(case.S))


def batch(implementation: Implementation, case: Case) -> str | None:
    """Compare a batch, its examples alone, and other batch axes with the equation."""
    (call,) = masked(implementation, case)
    every = np.arange(case.B)
    selections = [every, *every[:, None]]
    if implementation.can("leading_axes"):
        selections += [0, np.stack([every, every, every[::-1]])]  # no batch axis, and two
    for examples in selections:
        inputs = tuple(array[examples] for array in call.equation.inputs)
        arguments = {name: array[examples] for name, array in call.arguments.items()}
        output = implementation(inputs, case.dtype, **arguments)
        expected, axes = call.equation.output[examples], "BBTNH"[-output.ndim :]
        if fault := difference("output", axes, output, expected, TOLERANCE[case.dtype]):
            return f"with batch shape {np.shape(examples)}: {fault}"
    return None


# Masks and score functions that close over traced arrays.


def closures_in_masks(implementation: Implementation, case: Case) -> str | None:
    """Compare a mask that closes over traced document ids with the equation, with gradients."""
    documents = np.int32(np.sort(case.random(13).integers(4, size=case.S)))

    def function(*inputs: Array, documents: Array) -> Array:
        mask = masks.from_function(lambda query, key: documents[query] == documents[key])
        return implementation.function(*inputs, mask=mask)

    equation = Equation(*case.query_key_value(), documents[:, None] == documents)
    check = compare(lambda *_: iter([Call(equation, {"documents": documents})]), reverse=True)
    return check(implementation.wrap(function), case)


def closures_in_scores(implementation: Implementation, case: Case) -> str | None:
    """Compare a score that closes over a traced array with the equation, with its gradient."""
    slopes = case.normal(14, case.N)
    position = np.arange(case.S)
    distance = np.abs(position[:, None] - position) / 32
    penalty = slopes[:, None, None] * distance
    equation = Equation(*case.query_key_value(), score=lambda products: products - penalty)

    def function(query: Array, key: Array, value: Array, slopes: Array) -> Array:
        def add_slope(score: Array, query: Array, key: Array, head: Array) -> Array:
            distance = jnp.abs(query - key).astype(score.dtype) / 32
            return score - slopes[head].astype(score.dtype) * distance

        score = (scores.from_function(add_slope),)
        return implementation.function(query, key, value, score=score)

    cotangents = case.cotangents() if implementation.can("gradients") else None
    inputs = *equation.inputs, slopes
    actual = implementation.wrap(function).results(inputs, case.dtype, cotangents)
    expected = equation.results(cotangents)
    if cotangents is not None:
        of_slopes = -(expected["gradient of scores"] * distance).sum(axis=(0, 2, 3))
        expected["gradient of slopes"] = of_slopes
    return difference_of_results(actual, expected, TOLERANCE[case.dtype])


# All axes differ where they may. Rows share few shapes, since each shape is compiled.
PLAIN = (Case(B=2, T=5, S=7, N=4, K=4, H=3, Hv=3),)
WIDE = (Case(B=2, T=5, S=7, N=4, K=4, H=3, Hv=5),)
FULL = (Case(B=2, T=5, S=7, N=6, K=3, H=4, Hv=2),)
GROUPED = (Case(B=2, T=5, S=7, N=4, K=2, H=3, Hv=3), *FULL)
SQUARE = (Case(B=2, T=7, S=7, N=6, K=3, H=4, Hv=2),)
UNALIGNED = tuple(
    Case(B=1, T=T, S=S, N=2, K=1, H=4, Hv=3)
    for T, S in [(1, 1), (1, 257), (127, 127), (257, 7), (7, 129), (129, 257)]
)
BFLOAT16, FLOAT16, LONG_BFLOAT16, LONG_FLOAT16 = (
    (Case(B=2, T=5, S=S, N=4, K=2, H=16, Hv=16, dtype=dtype),)
    for S in (61, 1024)
    for dtype in ("bfloat16", "float16")
)
FLOAT64 = (replace(PLAIN[0], dtype="float64"),)
PAIRS = tuple(Case(B=1, T=T, S=T, N=4, K=4, H=16, Hv=16) for T in (16, 37))
EVEN = tuple(Case(B=4, T=T, S=T, N=4, K=2, H=4, Hv=4) for T in (7, 300))

ALIGNED = ("unaligned lengths", "unaligned lengths, masked")
NONFINITE, NAN = properties.masked_nonfinite, properties.visible_nan

# A row comes after the rows that it needs.
CHECKS = (
    Check("shapes and dtypes", properties.shapes_and_dtypes, PLAIN),
    Check("values", compare(plain), PLAIN),
    Check("scale", compare(scaled), PLAIN),
    Check("large scores", compare(large_scores), PLAIN),
    Check("grouping", compare(plain), GROUPED, ("grouped",), "grouped"),
    Check("value width", compare(plain), WIDE, ("value_width",), "value_width"),
    Check("mask", compare(masked), FULL, ("mask",), "predicates"),
    Check("order of operations", compare(softcap_and_bias), FULL, (), "scores"),
    Check("attention sinks", compare(sinks), FULL),
    Check("batch", batch, SQUARE),
    Check("vmap", properties.vmap, PLAIN, ("vmap", "jit")),
    Check("unaligned lengths", compare(plain), UNALIGNED),
    Check("unaligned lengths, masked", compare(masked), UNALIGNED[3:], ("mask", *ALIGNED[:1])),
    Check("bfloat16", compare(narrow), BFLOAT16),
    Check("float16", compare(narrow), FLOAT16),
    Check(
        "bfloat16: long sums", compare(narrow), LONG_BFLOAT16, ("bfloat16", "cross", *ALIGNED[:1])
    ),
    Check("float16: long sums", compare(narrow), LONG_FLOAT16, ("float16", "cross", *ALIGNED[:1])),
    Check("float64", compare(plain), FLOAT64),
    Check("weights", compare(masked, "weights"), FULL, ("weights",)),
    Check("logsumexp", compare(masked, "logsumexp"), FULL, ("logsumexp",)),
    *(
        Check(name, attends_exactly(patterns(name)), SQUARE)
        for name in ("causality", "padding", "segments")
    ),
    Check(
        "positions",
        attends_exactly(patterns("positions")),
        SQUARE,
        ("predicates", "causality"),
        "predicates",
    ),
    Check("scores at positions", compare(alibi), SQUARE),
    Check(
        "predicates at unaligned lengths",
        compare(patterns("window", "documents"), reverse=True),
        UNALIGNED[5:],
        ("predicates", "segments", *ALIGNED),
    ),
    Check(
        "cached decoding", compare(one_query_at_a_time), SQUARE, ("mask", "causality", "positions")
    ),
    Check("gradients", compare(masked, reverse=True), SQUARE, ("gradients",)),
    Check(
        "gradients at unaligned lengths",
        compare(masked, reverse=True),
        UNALIGNED[4:],
        ("gradients", *ALIGNED),
    ),
    Check("gradients of scores", compare(softcap_and_bias, reverse=True), FULL, ("gradients",)),
    Check("forward mode", compare(masked, forward=True), FULL, (), "jvp"),
    Check(
        "second derivatives",
        compare(masked, reverse=True, forward=True),
        FULL,
        ("gradients", "forward mode"),
    ),
    Check(
        "gradients of logsumexp",
        compare(masked, "logsumexp", reverse=True),
        FULL,
        ("gradients", "logsumexp"),
    ),
    Check("fully masked rows", compare(fully_masked, "weights", "logsumexp"), SQUARE),
    Check(
        "gradients of fully masked rows",
        compare(fully_masked, reverse=True),
        SQUARE,
        ("gradients", "fully masked rows"),
    ),
    Check(
        "left padding",
        compare(patterns("left padding")),
        SQUARE,
        ("predicates", "padding", "fully masked rows"),
    ),
    Check("masked NaN and infinity", partial(NONFINITE, with_gradients=False), SQUARE),
    Check(
        "gradients with masked NaN and infinity",
        partial(NONFINITE, with_gradients=True),
        SQUARE,
        ("masked NaN and infinity",),
    ),
    Check("visible NaN", partial(NAN, with_gradients=False), SQUARE),
    Check("gradients of visible NaN", partial(NAN, with_gradients=True), SQUARE, ("visible NaN",)),
    Check("returning more", properties.returning_more, FULL),
    Check("dropout: reproducible", properties.reproducible_dropout, PAIRS[:1], (), "dropout"),
    Check("dropout: rate and scale", properties.rate_of_dropout, PAIRS[1:], (), "dropout"),
    Check(
        "dropout: same pairs as attend",
        properties.pairs_of_dropout,
        PAIRS,
        ("dropout_by_position",),
    ),
    Check("dropout: gradients", compare(dropped, reverse=True), PAIRS[:1], ("gradients",)),
    Check("dropout: returned weights", compare(dropped, "weights"), PAIRS[:1], ("weights",)),
    Check("closures in masks", closures_in_masks, EVEN, ("closures", "jit", "predicates")),
    Check("closures in scores", closures_in_scores, EVEN, ("closures", "jit", "scores")),
    Check("cost of vmap", cost_of_vmap, EVEN, ("vmap", "jit", "values")),
    Check("sharded batch", partial(sharded, axis=0), EVEN, ("sharding", "jit", "values")),
    Check("sharded heads", partial(sharded, axis=2), EVEN, ("sharding", "jit", "values")),
)
ROWS = tuple(check.name for check in CHECKS)
