"""Rows that do not compare one call with the equation: NaN, dropout, batches and dtypes."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives.dropout import Dropout, keep_factor
from attention.testing.case import Case
from attention.testing.implementation import Implementation, convert
from attention.testing.reference import (
    TOLERANCE,
    Arrays,
    Equation,
    difference,
    difference_of_results,
)

NONFINITE = (np.nan, np.inf, -np.inf)
DROPOUT_RATE = 0.25


def shapes_and_dtypes(implementation: Implementation, case: Case) -> str | None:
    """Check that the output is `[B, T, N, Hv]` in the dtype of the query."""
    for dtype in {case.dtype, *({"bfloat16", "float16"} & set(implementation.supports))}:
        inputs = convert(case.query_key_value(), dtype)
        run = partial(jax.eval_shape, implementation.function)
        output = (run if implementation.can("jit") else implementation.function)(*inputs)
        actual, shape = (output.shape, output.dtype.name), (case.B, case.T, case.N, case.Hv)
        if actual != (shape, dtype):
            return f"the output has shape and dtype {actual}, should be {(shape, dtype)}"
    return None


def vmap(implementation: Implementation, case: Case) -> str | None:
    """Compare `jax.vmap` over a further axis with the equation for each slice."""
    slices = [replace(case, seed=case.seed + n).query_key_value() for n in range(2)]
    stacked = tuple(map(np.stack, zip(*slices, strict=True)))
    outputs = implementation.wrap(jax.vmap(implementation.function))(stacked, case.dtype)
    for n, inputs in enumerate(slices):
        expected, tolerance = Equation(*inputs).output, TOLERANCE[case.dtype]
        if fault := difference("output", "BTNH", outputs[n], expected, tolerance):
            return f"slice {n}: {fault}"
    return None


def returning_more(implementation: Implementation, case: Case) -> str | None:
    """Check that `returning` does not change any bit of the output."""
    mask = {"mask": case.mask()} if implementation.can("mask") else {}
    run = partial(implementation.results, case.query_key_value(), case.dtype, **mask)
    names = tuple(name for name in ("weights", "logsumexp") if implementation.can(name))
    implementation.require(*names or ("weights",))
    for returning in sorted({names, *((name,) for name in names)}):
        results = run(returning=returning)
        if set(results) != {"output", *returning}:
            return f"returning={returning} returns {sorted(results)}"
        what, expected = f"output with returning={returning}", run()["output"]
        if fault := difference(what, "BTNH", results["output"], expected):
            return fault
    return None


def masked_nonfinite(
    implementation: Implementation, case: Case, *, with_gradients: bool
) -> str | None:
    """Check that results have the same bits for a masked NaN or infinity as for a masked 0.

    Without gradients, the last query attends to it, and the outputs of the others are compared.
    """
    mask = _mask_of_key_0(case, for_last=not with_gradients)
    cotangents = case.cotangents() if with_gradients else None
    for name, number in product(("key", "value"), NONFINITE) if case.S > 1 else ():
        actual, expected = (
            implementation.results(_with(case, name, new), case.dtype, cotangents, mask=mask)
            for new in (number, 0)
        )
        if not with_gradients:
            actual, expected = ({"output": x["output"][:, :-1]} for x in (actual, expected))
        if fault := difference_of_results(actual, expected, 0):
            return f"with {number} in masked {name} 0: {fault}"
    return None


def visible_nan(implementation: Implementation, case: Case, *, with_gradients: bool) -> str | None:
    """Check that a query that attends to a NaN, or contains one, has NaN results.

    With gradients, no other query has a NaN gradient, nor a key or value that the query masks. The
    cotangent of the query is random, then 0: 0 · NaN is NaN.
    """
    mask, last = _mask_of_key_0(case, for_last=True), np.arange(case.T) == case.T - 1
    last, seen = last[:, None, None], mask[:, -1, :, None, None]
    factors = ((1, 0) if with_gradients else (1,)) if case.S > 1 else ()
    for name, factor in product(("key", "value", "query"), factors):
        cotangents = {"output": np.where(last, factor, 1) * case.cotangents()["output"]}
        inputs, given = _with(case, name, np.nan), cotangents if with_gradients else None
        results = implementation.results(inputs, case.dtype, given, mask=mask)
        nan = {name: np.isnan(array).astype(float) for name, array in results.items()}
        expected = {"output": np.where(last, 1, nan["output"])}
        if with_gradients:
            expected["gradient of query"] = last * np.ones_like(nan["gradient of query"])
            expected["gradient of key"] = seen * nan["gradient of key"]
            expected["gradient of value"] = seen * nan["gradient of value"]
        if fault := difference_of_results(nan, expected, 0, "NaN in the "):
            return f"with NaN in a {name} and {factor} times the cotangent of its query: {fault}"
    return None


def _mask_of_key_0(case: Case, *, for_last: bool) -> np.ndarray:
    """Return a random mask in which the last query alone, or no query, may attend to key 0."""
    mask = case.mask()
    mask[..., -1] = True
    mask[..., 0] = False
    mask[:, -1, 0] = for_last
    return mask


def _with(case: Case, name: str, number: float) -> Arrays:
    """Return query, key and value with a number in the last query, key 0 or value 0."""
    inputs = dict(zip(("query", "key", "value"), case.query_key_value(), strict=True))
    inputs[name][:, -1 if name == "query" else 0] = number
    return tuple(inputs.values())


def reproducible_dropout(implementation: Implementation, case: Case) -> str | None:
    """Check that equal keys drop equal pairs, other keys other pairs, and rate 0 none."""
    run = partial(implementation, case.query_key_value(), case.dtype)
    kept, other = (run(dropout=dropout(seed)) for seed in (0, 1))
    if fault := difference("output with the same key", "BTNH", run(dropout=dropout()), kept):
        return fault
    if case.S > 4 and (kept == other).all():
        return "another key drops the same pairs"
    none = run(dropout=dropout(rate=0.0))
    return difference("output at rate 0", "BTNH", none, run(), TOLERANCE[case.dtype])


def rate_of_dropout(implementation: Implementation, case: Case) -> str | None:
    """Check that a quarter of the weights is dropped, per head, and the others scaled by 4/3."""
    rate = DROPOUT_RATE
    kept, weights = kept_weights(implementation, case)
    dropped = kept == 0
    expected = np.where(dropped, 0, weights / (1 - rate))
    if fault := difference("weight after dropout", "BNTS", kept, expected, TOLERANCE[case.dtype]):
        return fault
    # Five standard deviations; examples of a batch may drop the same pairs.
    spread = 5 * (rate * (1 - rate) / (case.N * case.T * case.S)) ** 0.5
    if abs(dropped.mean() - rate) > spread:
        return f"a share of {dropped.mean():.3f} of the weights is dropped, should be {rate}"
    if case.N > 1 and case.T * case.S > 64 and (dropped[:, :1] == dropped).all():
        return "all heads drop the same pairs"
    return None


def pairs_of_dropout(implementation: Implementation, case: Case) -> str | None:
    """Check that the dropped pairs are those of `attention.attend`, also at other positions."""
    queries, keys = (np.arange(size, dtype=np.int32) for size in (case.T, case.S))
    given = [((queries, keys), {})]
    if implementation.can("predicates"):
        given.append(((queries[::-1], keys), {"positions": (queries[::-1], keys)}))
    for positions, arguments in given:
        kept, _ = kept_weights(implementation, case, **arguments)
        factor = np.asarray(jax.jit(keep_factor)(dropout(), jnp.arange(case.N), *positions))
        actual, expected = np.sign(kept), np.sign(np.broadcast_to(factor, kept.shape))
        if fault := difference("whether a weight is kept", "BNTS", actual, expected):
            return fault
    return None


def dropout(seed: int = 0, rate: float = DROPOUT_RATE) -> Dropout:
    """Return the dropout of a random key."""
    return Dropout(jax.random.key(seed), rate)


def kept_weights(
    implementation: Implementation, case: Case, **arguments: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights `[B, N, T, S]` with and without dropout, computed with one-hot values."""
    query, key, _ = case.query_key_value()
    found = []
    for options in ({"dropout": dropout()}, {}):
        columns = []
        for start in range(0, case.S, case.Hv):  # Hv keys per call
            one_hot = np.eye(case.S, case.Hv, -start)[:, None, :]
            value = np.broadcast_to(one_hot, (case.B, case.S, case.K, case.Hv))
            columns.append(implementation((query, key, value), case.dtype, **options, **arguments))
        found.append(np.concatenate(columns, axis=-1)[..., : case.S].transpose(0, 2, 1, 3))
    return found[0], found[1]
