"""Shapes, dtypes and values, compared with the equation in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives import scores
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.check import FULL, PLAIN, SQUARE, UNALIGNED, Check
from attention.testing.compare import TOLERANCE, difference
from attention.testing.implementation import Implementation


def shapes_and_dtypes(implementation: Implementation, case: Case) -> str | None:
    """Check that the output is `[..., T, N, Hv]` in the dtype of the query."""
    dtypes = {case.dtype, *({"bfloat16", "float16"} & implementation.supports)}
    batches = [(case.B,), (), (2, case.B)] if implementation.can("leading_axes") else [(case.B,)]
    for dtype, batch in [(dtype, (case.B,)) for dtype in sorted(dtypes)] + [
        (case.dtype, batch) for batch in batches
    ]:
        inputs = [
            np.broadcast_to(array[0], (*batch, *array.shape[1:]))
            for array in case.query_key_value()
        ]
        inputs = implementation.convert(inputs, dtype)
        run = (
            jax.eval_shape
            if implementation.can("jit")
            else lambda function, *inputs: function(*inputs)
        )
        output = run(implementation.function, *inputs)
        expected = (*batch, case.T, case.N, case.Hv)
        if output.shape != expected:
            return f"the output of a batch {batch} has shape {output.shape}, should be {expected}"
        if output.dtype != jnp.dtype(dtype):
            return f"the output for a query in {dtype} has dtype {output.dtype}"
    return None


def values(implementation: Implementation, case: Case) -> str | None:
    """Compare with the equation, without further arguments."""
    return _equation(implementation, case)


def mask(implementation: Implementation, case: Case) -> str | None:
    """Compare with the equation under a random mask, different for each example."""
    return _equation(implementation, case, mask=case.mask())


def scale(implementation: Implementation, case: Case) -> str | None:
    """Compare with the equation for another scale."""
    return _equation(implementation, case, scale=0.3)


def large_scores(implementation: Implementation, case: Case) -> str | None:
    """Compare with the equation for scores of some thousands: their exponentials overflow."""
    query, key, value = case.query_key_value()
    inputs = query * 128, key * 8, value
    expected = reference.attention(*inputs).output
    # The rounding error of a score is relative to it, and changes the weights by as much.
    largest = np.abs(np.einsum("BTNH,BSNH->BNTS", *_repeated(*inputs)[:2])).max()
    tolerance = TOLERANCE[case.dtype] + 4 * float(jnp.finfo(case.dtype).eps) * largest
    return difference("output", "BTNH", implementation(inputs, case.dtype), expected, tolerance)


def precision(implementation: Implementation, case: Case) -> str | None:
    """Check that only weights and output are rounded to the low precision, and not scores."""
    query, key, value = case.query_key_value()
    inputs = query * 4, key * 2, value  # exact: powers of two
    expected = reference.attention(*inputs)
    _, _, spread = _repeated(query, key, np.abs(value))
    magnitude = np.einsum("BNTS,BSNH->BTNH", expected.weights, spread)
    rounding = float(jnp.finfo(case.dtype).eps) / 2
    error = implementation(inputs, case.dtype) - expected.output
    limit = 1.25 * rounding * (magnitude + np.abs(expected.output)) + 1e-4
    found = difference("output error over its limit", "BTNH", np.abs(error) / limit, 0 * error, 1)
    return found and found.replace("should be 0", "should be 1 at most")


def long_sums(implementation: Implementation, case: Case) -> str | None:
    """Check that long sums accumulate in float32: at most one rounding of weights and output.

    All values are positive, so that a sum in low precision stops growing.
    """
    query, key, value = case.query_key_value()
    value = np.abs(value)
    expected = reference.attention(query, key, value).output
    rounding = float(jnp.finfo(case.dtype).eps) / 2
    error = np.abs(implementation((query, key, value), case.dtype) - expected)
    limit = 2.5 * rounding * expected + 1e-4
    found = difference("output error over its limit", "BTNH", error / limit, 0 * error, 1)
    return found and found.replace("should be 0", "should be 1 at most")


def float64(implementation: Implementation, case: Case) -> str | None:
    """Compare with the equation to the precision of float64."""
    with jax.enable_x64(True):
        return _equation(implementation, case) or shapes_and_dtypes(implementation, case)


def order_of_operations(implementation: Implementation, case: Case) -> str | None:
    """Check the order: scale, then score functions in their order, then the mask."""
    inputs, allowed, (given, score) = case.query_key_value(), case.mask(), softcap_and_bias(case)
    expected = reference.attention(*inputs, allowed, score=score).output
    output = implementation(inputs, case.dtype, mask=allowed, score=given)
    return difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])


def attention_sinks(implementation: Implementation, case: Case) -> str | None:
    """Check that a sink per head takes its share of the weights, after the score functions."""
    inputs, allowed, (given, score) = case.query_key_value(), case.mask(), softcap_and_bias(case)
    sinks = np.asarray(case.normal(15, case.N), np.float32)
    without = reference.attention(*inputs, allowed, score=score)
    share = 1 / (1 + np.exp(sinks[:, None] - without.logsumexp))
    expected = without.output * np.swapaxes(share, 1, 2)[..., None]
    given = (*given, scores.attention_sinks(jnp.asarray(sinks)))
    output = implementation(inputs, case.dtype, mask=allowed, score=given)
    return difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])


def softcap_and_bias(case: Case) -> tuple[tuple[scores.Score, ...], reference.Score]:
    """Return two score functions, and what they compute in NumPy."""
    bias = np.asarray(case.normal(9, case.N, case.T, case.S), np.float32)
    given = (scores.softcap(2.0), scores.bias_array(jnp.asarray(bias)))
    return given, lambda products: 2 * np.tanh(products / 2) + bias


def key_order(implementation: Implementation, case: Case) -> str | None:
    """Check that a permutation of the keys does not change the output."""
    (query, key, value), allowed = case.query_key_value(), case.mask()
    order = case.random(8).permutation(case.S)
    expected = implementation((query, key, value), case.dtype, mask=allowed)
    inputs = query, key[:, order], value[:, order]
    permuted = implementation(inputs, case.dtype, mask=np.ascontiguousarray(allowed[..., order]))
    return difference("output", "BTNH", permuted, expected, TOLERANCE[case.dtype])


def batch(implementation: Implementation, case: Case) -> str | None:
    """Check that a batch equals its examples, one at a time or with other batch axes."""
    arguments = implementation.mask_of(case)
    inputs = case.query_key_value()
    batched = implementation(inputs, case.dtype, **arguments)
    for b in range(case.B):
        example = tuple(array[b : b + 1] for array in inputs)
        example_arguments = {name: array[b : b + 1] for name, array in arguments.items()}
        alone = implementation(example, case.dtype, **example_arguments)
        found = difference("output", "BTNH", batched[b : b + 1], alone, TOLERANCE[case.dtype])
        if found:
            return f"example {b}, alone as batch 0: {found}"
    if not implementation.can("leading_axes"):
        return None
    order = np.arange(case.B)
    for examples in (0, np.stack([order, order, order[::-1]])):  # no batch axis, and two
        chosen = {name: array[examples] for name, array in arguments.items()}
        output = implementation(tuple(array[examples] for array in inputs), case.dtype, **chosen)
        flat = (each.reshape(-1, *batched.shape[1:]) for each in (output, batched[examples]))
        found = difference("output", "BTNH", *flat, TOLERANCE[case.dtype])
        if found:
            return f"with batch shape {np.shape(examples)}, flattened: {found}"
    return None


def vmap(implementation: Implementation, case: Case) -> str | None:
    """Check that `jax.vmap` over a further axis equals the function of each slice."""
    first, second = case.query_key_value(), replace(case, seed=case.seed + 1).query_key_value()
    stacked = tuple(np.stack(pair) for pair in zip(first, second, strict=True))
    outputs = jax.jit(jax.vmap(implementation.function))(
        *implementation.convert(stacked, case.dtype)
    )
    for index, inputs in enumerate((first, second)):
        expected = implementation(inputs, case.dtype)
        output = np.asarray(outputs[index], np.float64)
        found = difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])
        if found:
            return f"slice {index}: {found}"
    return None


def weights(implementation: Implementation, case: Case) -> str | None:
    """Compare the returned weights."""
    return _returned(implementation, case, "weights", "BNTS")


def logsumexp(implementation: Implementation, case: Case) -> str | None:
    """Compare the returned logsumexp."""
    return _returned(implementation, case, "logsumexp", "BNT")


def returning_more(implementation: Implementation, case: Case) -> str | None:
    """Check that `returning` does not change any bit of the output."""
    arguments = implementation.mask_of(case)
    inputs = case.query_key_value()
    alone = implementation(inputs, case.dtype, **arguments)
    names = [name for name in ("weights", "logsumexp") if implementation.can(name)]
    if not names:
        raise NotImplementedError("without weights or logsumexp")
    for returning in {(name,) for name in names} | {tuple(names)}:
        output, extras = implementation(inputs, case.dtype, returning=returning, **arguments)
        if set(extras) != set(returning):
            return f"returning={returning} returns {sorted(extras)}"
        found = difference(f"output with returning={returning}", "BTNH", output, alone)
        if found:
            return found
    return None


def _returned(implementation: Implementation, case: Case, name: str, axes: str) -> str | None:
    arguments = implementation.mask_of(case)
    inputs = case.query_key_value()
    expected = getattr(reference.attention(*inputs, **arguments), name)
    _, extras = implementation(inputs, case.dtype, returning=(name,), **arguments)
    return difference(name, axes, extras[name], expected, TOLERANCE[case.dtype])


def _equation(implementation: Implementation, case: Case, **arguments: object) -> str | None:
    inputs = case.query_key_value()
    output = implementation(inputs, case.dtype, **arguments)
    expected = reference.attention(*inputs, **arguments).output
    return difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])


def _repeated(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    groups = query.shape[2] // key.shape[2]
    return query, np.repeat(key, groups, axis=2), np.repeat(value, groups, axis=2)


WIDE = Case(B=2, T=5, S=61, N=4, K=2, H=16, Hv=16)
MANY_KEYS = Case(B=1, T=5, S=1024, N=2, K=2, H=16, Hv=16)

CHECKS = (
    Check("shapes and dtypes", shapes_and_dtypes, (PLAIN,)),
    Check("values", values, (PLAIN,)),
    Check("scale", scale, (PLAIN,), ("scale",), ("values",)),
    Check("large scores", large_scores, (PLAIN,), (), ("values",)),
    Check("grouping", values, (replace(PLAIN, K=2), FULL), ("grouped",), ("values",), "grouped"),
    Check(
        "value width", values, (replace(PLAIN, Hv=5),), ("value_width",), ("values",), "value_width"
    ),
    Check("mask", mask, (FULL,), ("mask",), ("values",)),
    Check(
        "order of operations", order_of_operations, (FULL,), ("scores", "mask"), ("values", "mask")
    ),
    Check(
        "attention sinks", attention_sinks, (FULL,), ("scores", "mask"), ("order of operations",)
    ),
    Check("key order", key_order, (FULL,), ("mask",), ("mask",)),
    Check("batch", batch, (SQUARE,), (), ("shapes and dtypes", "mask")),
    Check("vmap", vmap, (PLAIN,), ("vmap", "jit"), ("values",)),
    Check("unaligned lengths", values, UNALIGNED, (), ("values",)),
    Check(
        "unaligned lengths, masked",
        mask,
        (UNALIGNED[2], UNALIGNED[4], UNALIGNED[5]),
        ("mask",),
        ("mask", "unaligned lengths"),
    ),
    Check("bfloat16", precision, (replace(WIDE, dtype="bfloat16"),), ("bfloat16",), ("grouping",)),
    Check("float16", precision, (replace(WIDE, dtype="float16"),), ("float16",), ("values",)),
    Check(
        "bfloat16: long sums",
        long_sums,
        (replace(MANY_KEYS, dtype="bfloat16"),),
        ("bfloat16", "cross"),
        ("bfloat16", "unaligned lengths"),
    ),
    Check(
        "float16: long sums",
        long_sums,
        (replace(MANY_KEYS, dtype="float16"),),
        ("float16", "cross"),
        ("float16", "unaligned lengths"),
    ),
    Check("float64", float64, (replace(PLAIN, dtype="float64"),), ("float64",), ("values",)),
    Check("weights", weights, (FULL,), ("weights",), ("mask",)),
    Check("logsumexp", logsumexp, (FULL,), ("logsumexp",), ("mask",)),
)
RETURNING = (Check("returning more", returning_more, (FULL,), (), ("mask",)),)
