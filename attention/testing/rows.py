"""The rows of `check_attention`: one property of the contract each, with the cases to check.

Most rows call the function under test in some way, and compare the results with the equation.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention.primitives import masks, scores
from attention.testing import properties
from attention.testing.implementation import Case, Implementation
from attention.testing.reference import (
    Arrays,
    ContractError,
    assert_close,
    numerical_jvp,
    reference_attention,
)

# Raises ContractError if the implementation is wrong in this case; NotImplementedError with a
# reason if the property cannot be checked.
Check = Callable[[Implementation, Case], None]


@dataclass(frozen=True)
class Call:
    """One call of the function under test, and the equation with the same result.

    Attributes:
        inputs: query, key and value.
        arguments: of the function, as those of `attention.attend`.
        equation: arguments of `reference_attention`.
        words: what this call is, as the beginning of a message.
        tolerance: of the output; that of the dtype by default.
        cotangents: of the output; random by default.
    """

    inputs: Arrays
    arguments: dict[str, Any]
    equation: dict[str, Any]
    words: str = ""
    tolerance: float | np.ndarray | None = None
    cotangents: dict[str, np.ndarray] | None = None


Calls = Callable[[Implementation, Case], Iterable[Call]]


def compare(calls: Calls, *returning: str, reverse: bool = False, forward: bool = False) -> Check:
    """Return a check that compares the results of calls with the equation.

    Args:
        calls: yields the calls of a case.
        returning: what to compare beside the output, if supported.
        reverse: compare gradients, too, if supported.
        forward: compare the derivatives of all these along a random direction, instead.
    """

    def check(implementation: Implementation, case: Case) -> None:
        names = tuple(name for name in returning if implementation.can(name))
        tangents = case.query_key_value(20) if forward else None
        for call in calls(implementation, case):
            cotangents = None
            if reverse and implementation.can("gradients"):
                cotangents = call.cotangents or case.cotangents(*names)
            arguments = call.arguments | ({"returning": names} if names else {})
            actual = implementation.results(
                call.inputs, case.dtype, cotangents, tangents, **arguments
            )
            equation = partial(reference_attention, **call.equation, cotangents=cotangents)
            if tangents is None:
                expected, prefix = equation(*call.inputs), call.words
            else:
                expected = numerical_jvp(equation, call.inputs, tangents)
                prefix = call.words + "derivative of "
            tolerance = case.tolerance if call.tolerance is None else call.tolerance
            assert_close(actual, expected, tolerance, prefix)

    return check


def attends_exactly(calls: Calls) -> Check:
    """Return a check that visible values change the output, and that masked keys change no bit."""

    def check(implementation: Implementation, case: Case) -> None:
        for call in calls(implementation, case):
            run = partial(implementation.results, dtype=case.dtype, **call.arguments)
            query, key, value = call.inputs
            query = query / 2  # so that each weight is large enough to change the output
            before = run((query, key, value))["output"]
            for s in range(case.S):
                selected = (np.arange(case.S) == s)[:, None, None]
                visible = call.equation["mask"][:, :, s, None]
                after = run((query, key, np.where(selected, value + 100, value)))
                unused = visible & (before == after["output"]).all(axis=-1)
                for b, t, n in np.argwhere(unused)[:1]:
                    place = f"batch {b}, query {t}, head {n}"
                    words = f"{call.words}value {s} is visible but has no effect at {place}"
                    raise ContractError(words)
                other_key = run((query, np.where(selected, -3 * key - 1, key), value))
                for what, results in (("value", after), ("key", other_key)):
                    expected = np.where(visible[..., None], results["output"], before)
                    words = f"{call.words}{what} {s} is masked but changes the output: "
                    assert_close(results, {"output": expected}, prefix=words)

    return check


def plain(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call without further arguments."""
    yield Call(case.query_key_value(), {}, {})


def masked(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call under a random mask, different for each example, if supported."""
    mask = {"mask": case.mask()} if implementation.can("mask") else {}
    yield Call(case.query_key_value(), mask, mask)


def scaled(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with another scale."""
    yield Call(case.query_key_value(), {"scale": 0.3}, {"scale": 0.3})


def large_scores(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with scores of some thousands: their exponentials overflow."""
    query, key, value = case.query_key_value()
    query, key = query * 128, key * 8
    # The rounding error of a product is relative to it, and changes the weights by as much.
    largest = np.abs(np.einsum("BTNH,BSNH->BNTS", query, key)).max()
    tolerance = case.tolerance + 4 * float(jnp.finfo(case.dtype).eps) * largest
    yield Call((query, key, value), {}, {}, tolerance=tolerance)


def narrow(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield calls in a low precision, in which neither scores nor sums may be computed.

    Scores lie far apart, or all values are positive: a long sum stops growing in that precision.
    Weights and output may be rounded.
    """
    query, key, value = case.query_key_value()
    far_apart = 4 * query, 2 * key, value  # exact, since they are powers of two
    for inputs in (far_apart, (query, key, np.abs(value))):
        output = np.abs(reference_attention(*inputs)["output"])
        magnitude = reference_attention(*inputs[:2], np.abs(value))["output"]
        limit = 1.25 * float(jnp.finfo(case.dtype).eps) / 2 * (magnitude + output) + 1e-4
        yield Call(inputs, {}, {}, tolerance=limit / np.maximum(1, output))


def softcap_and_bias(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with a mask and two score functions; another order gives other results."""
    mask, bias = case.mask(), np.float32(case.normal(9, case.N, case.T, case.S))
    yield Call(
        case.query_key_value(),
        {"mask": mask, "score": (scores.softcap(2.0), scores.bias_array(jnp.asarray(bias)))},
        {"mask": mask, "score": lambda products: 2 * np.tanh(products / 2) + bias},
    )


def sinks(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with a sink per head, which takes its share of the weights after the scores."""
    logits = np.float32(case.normal(15, case.N))
    for call in softcap_and_bias(implementation, case):
        logsumexp = reference_attention(*call.inputs, **call.equation)["logsumexp"]
        keep = {"keep": 1 / (1 + np.exp(logits[:, None] - logsumexp))[..., None]}
        score = *call.arguments["score"], scores.attention_sinks(jnp.asarray(logits))
        yield Call(call.inputs, call.arguments | {"score": score}, call.equation | keep)


def alibi(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with a score function of shuffled positions and heads."""
    queries, keys = positions = _shuffled_positions(case)
    slopes = np.arange(1, case.N + 1, dtype=np.float32) / 8
    penalty = slopes[:, None, None] * np.abs(queries[:, None] - keys)
    yield Call(
        case.query_key_value(),
        {"score": (scores.alibi(slopes),), "positions": positions},
        {"score": lambda products: products - penalty},
    )


def patterns(*names: str) -> Calls:
    """Return calls with masks as bool arrays and as predicates, if supported."""

    def calls(implementation: Implementation, case: Case) -> Iterator[Call]:
        for name in names:
            mask, allowed, positions = _patterns(case)[name]
            equation = {"mask": np.broadcast_to(allowed, (case.B, case.T, case.S))}
            arguments, words = {"mask": mask, **positions}, f"mask {name!r}"
            call = Call(case.query_key_value(), arguments, equation, words)
            yield from _in_both_forms(implementation, call)

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
        written = np.broadcast_to(keys <= t, (case.B, 1, case.T))
        cache = (np.where(written[0, 0, :, None, None], array, 7) for array in (key, value))
        arguments = {"mask": masks.causal(), "positions": (keys[t : t + 1], keys)}
        words = f"query {t}, as query 0, with its mask"
        call = Call((query[:, t : t + 1], *cache), arguments, {"mask": written}, words)
        yield from _in_both_forms(implementation, call)


def _in_both_forms(implementation: Implementation, call: Call) -> Iterator[Call]:
    """Yield a call with its mask as a bool array and as a predicate, if supported."""
    if implementation.can("mask"):
        yield replace(call, arguments=call.equation, words=f"{call.words} as an array: ")
    if implementation.can("predicates"):
        yield replace(call, words=f"{call.words} as a predicate: ")
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
    yield Call(case.query_key_value(), {"mask": mask}, {"mask": mask}, cotangents=cotangents)


def dropped(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield a call with dropout, which drops the pairs that the function dropped before."""
    dropout = {"dropout": properties.dropout()}
    kept = properties.weights(implementation, case, **dropout)
    keep = kept / properties.weights(implementation, case)
    yield Call(case.query_key_value(), dropout, {"keep": keep})


def _shuffled_positions(case: Case) -> tuple[np.ndarray, np.ndarray]:
    queries = case.random(6).permutation(case.T + 2)[: case.T]
    return np.int32(queries), np.int32(case.random(7).permutation(case.S))


def batches(implementation: Implementation, case: Case) -> Iterator[Call]:
    """Yield calls of a batch, of its examples alone, and with other batch axes, if supported."""
    every = np.arange(case.B)
    selections = [every, *every[:, None]]
    if implementation.can("leading_axes"):
        selections += [0, np.stack([every, every, every[::-1]])]  # no batch axis, and two
    for call, examples in product(masked(implementation, case), selections):
        inputs = tuple(array[examples] for array in call.inputs)
        mask = {name: array[examples] for name, array in call.arguments.items()}
        yield Call(inputs, mask, mask, f"with batch shape {np.shape(examples)}: ")


# Checks of functions that are made from the function under test.


def vmap(implementation: Implementation, case: Case) -> None:
    """Compare `jax.vmap` over a further axis with the equation."""
    inputs = tuple(np.stack([x, x, x[::-1]]) for x in case.query_key_value())
    mapped = replace(implementation, function=jax.vmap(implementation.function))
    compare(lambda *_: [Call(inputs, {}, {})])(mapped, case)


def closures_in_masks(implementation: Implementation, case: Case) -> None:
    """Compare a mask that closes over traced document ids with the equation, with gradients."""
    documents = np.int32(np.sort(case.random(13).integers(4, size=case.S)))

    def function(*inputs: Array, documents: Array) -> Array:
        mask = masks.from_function(lambda query, key: documents[query] == documents[key])
        return implementation.function(*inputs, mask=mask)

    same = {"mask": documents[:, None] == documents}
    call = Call(case.query_key_value(), {"documents": documents}, same)
    compare(lambda *_: [call], reverse=True)(replace(implementation, function=function), case)


def closures_in_scores(implementation: Implementation, case: Case) -> None:
    """Compare a score that closes over a traced array with the equation, with its gradient."""
    inputs, slopes, position = case.query_key_value(), case.normal(14, case.N), np.arange(case.S)
    distance = np.abs(position[:, None] - position) / 32
    penalty = slopes[:, None, None] * distance

    def function(query: Array, key: Array, value: Array, slopes: Array) -> Array:
        def add_slope(score: Array, query: Array, key: Array, head: Array) -> Array:
            distance = jnp.abs(query - key).astype(score.dtype) / 32
            return score - slopes[head].astype(score.dtype) * distance

        score = (scores.from_function(add_slope),)
        return implementation.function(query, key, value, score=score)

    cotangents = case.cotangents() if implementation.can("gradients") else None
    closing = replace(implementation, function=function)
    actual = closing.results((*inputs, slopes), case.dtype, cotangents)
    equation = {"score": lambda products: products - penalty, "cotangents": cotangents}
    expected = reference_attention(*inputs, **equation)
    if cotangents is not None:
        of_slopes = -(expected["gradient of scores"] * distance).sum(axis=(0, 2, 3))
        expected["gradient of slopes"] = of_slopes
    assert_close(actual, expected, case.tolerance)


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

gradients = partial(compare, reverse=True)
NONFINITE, NAN = properties.masked_nonfinite, properties.visible_nan
ALIGNED = ("unaligned lengths", "unaligned lengths, masked")

# Name: check, cases, and needs. Needs are capabilities, and earlier rows: if they failed, this row
# would fail for the same fault. `Implementation.results` adds "values" and those of the arguments.
CHECKS: dict[str, tuple[Any, ...]] = {
    "shapes and dtypes": (properties.shapes_and_dtypes, PLAIN),
    "values": (compare(plain), PLAIN),
    "scale": (compare(scaled), PLAIN),
    "large scores": (compare(large_scores), PLAIN),
    "grouping": (compare(plain), GROUPED, "grouped"),
    "value width": (compare(plain), WIDE, "value_width"),
    "mask": (compare(masked), FULL, "mask"),
    "order of operations": (compare(softcap_and_bias), FULL),
    "attention sinks": (compare(sinks), FULL),
    "batch": (compare(batches), SQUARE),
    "vmap": (vmap, PLAIN, "vmap", "jit"),
    "unaligned lengths": (compare(plain), UNALIGNED),
    "unaligned lengths, masked": (compare(masked), UNALIGNED[3:], "mask", "unaligned lengths"),
    "bfloat16": (compare(narrow), BFLOAT16),
    "float16": (compare(narrow), FLOAT16),
    "bfloat16: long sums": (compare(narrow), LONG_BFLOAT16, "bfloat16", "cross", ALIGNED[0]),
    "float16: long sums": (compare(narrow), LONG_FLOAT16, "float16", "cross", ALIGNED[0]),
    "float64": (compare(plain), FLOAT64),
    "weights": (compare(masked, "weights"), FULL, "weights"),
    "logsumexp": (compare(masked, "logsumexp"), FULL, "logsumexp"),
    "causality": (attends_exactly(patterns("causality")), SQUARE),
    "padding": (attends_exactly(patterns("padding")), SQUARE),
    "segments": (attends_exactly(patterns("segments")), SQUARE),
    "positions": (attends_exactly(patterns("positions")), SQUARE, "predicates", "causality"),
    "scores at positions": (compare(alibi), SQUARE),
    "predicates at unaligned lengths": (
        gradients(patterns("window", "documents")),
        UNALIGNED[5:],
        *("predicates", "segments", *ALIGNED),
    ),
    "cached decoding": (compare(one_query_at_a_time), SQUARE, "mask", "causality", "positions"),
    "gradients": (gradients(masked), SQUARE, "gradients"),
    "gradients at unaligned lengths": (gradients(masked), UNALIGNED[4:], "gradients", *ALIGNED),
    "gradients of scores": (gradients(softcap_and_bias), FULL, "gradients"),
    "forward mode": (compare(masked, forward=True), FULL),
    "second derivatives": (gradients(masked, forward=True), FULL, "gradients", "forward mode"),
    "gradients of logsumexp": (gradients(masked, "logsumexp"), FULL, "gradients", "logsumexp"),
    "fully masked rows": (compare(fully_masked, "weights", "logsumexp"), SQUARE),
    "gradients of fully masked rows": (
        gradients(fully_masked),
        SQUARE,
        *("gradients", "fully masked rows"),
    ),
    "left padding": (
        compare(patterns("left padding")),
        SQUARE,
        *("predicates", "padding", "fully masked rows"),
    ),
    "masked NaN and infinity": (partial(NONFINITE, with_gradients=False), SQUARE),
    "gradients with masked NaN and infinity": (
        partial(NONFINITE, with_gradients=True),
        SQUARE,
        "masked NaN and infinity",
    ),
    "visible NaN": (partial(NAN, with_gradients=False), SQUARE),
    "gradients of visible NaN": (partial(NAN, with_gradients=True), SQUARE, "visible NaN"),
    "returning more": (properties.returning_more, FULL),
    "dropout: reproducible": (properties.reproducible_dropout, PAIRS[:1]),
    "dropout: rate and scale": (properties.rate_of_dropout, PAIRS[1:]),
    "dropout: same pairs as attend": (properties.pairs_of_dropout, PAIRS, "dropout_by_position"),
    "dropout: gradients": (gradients(dropped), PAIRS[:1], "gradients"),
    "dropout: returned weights": (compare(dropped, "weights"), PAIRS[:1], "weights"),
    "closures in masks": (closures_in_masks, EVEN, "closures", "jit", "predicates"),
    "closures in scores": (closures_in_scores, EVEN, "closures", "jit", "scores"),
    "cost of vmap": (properties.cost_of_vmap, EVEN, "vmap", "jit", "values"),
    "sharded batch": (partial(properties.sharded, axis=0), EVEN, "sharding", "jit", "values"),
    "sharded heads": (partial(properties.sharded, axis=2), EVEN, "sharding", "jit", "values"),
}
ROWS = tuple(CHECKS)
# Row: the capability that its failure disables in later rows, beside one with the row's name.
DISABLES = {
    "grouping": "grouped",
    "value width": "value_width",
    "mask": "predicates",
    "order of operations": "scores",
    "positions": "predicates",
    "forward mode": "jvp",
    "dropout: reproducible": "dropout",
    "dropout: rate and scale": "dropout",
}
