"""The numbers that come out: shapes, dtypes, and the equation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from attention.primitives import scores
from attention.testing import reference
from attention.testing.case import Case
from attention.testing.compare import TOLERANCE, difference
from attention.testing.promise import FULL, LONG, PLAIN, SQUARE, Promise
from attention.testing.subject import Subject


def shapes_and_dtypes(subject: Subject, case: Case) -> str | None:
    """The output is `[..., T, N, Hv]` in the dtype of the query."""
    dtypes = {case.dtype, *({"bfloat16", "float16"} & subject.supports)}
    batches = [(case.B,), (), (2, case.B)] if subject.can("leading_axes") else [(case.B,)]
    for dtype, batch in [(dtype, (case.B,)) for dtype in sorted(dtypes)] + [
        (case.dtype, batch) for batch in batches
    ]:
        inputs = [
            np.broadcast_to(array[0], (*batch, *array.shape[1:]))
            for array in case.query_key_value()
        ]
        inputs = subject.given(inputs, dtype)
        run = jax.eval_shape if subject.can("jit") else lambda function, *inputs: function(*inputs)
        output = run(subject.function, *inputs)
        expected = (*batch, case.T, case.N, case.Hv)
        if output.shape != expected:
            return f"the output of a batch {batch} has shape {output.shape}, should be {expected}"
        if output.dtype != jnp.dtype(dtype):
            return f"the output for a query in {dtype} has dtype {output.dtype}"
    return None


def values(subject: Subject, case: Case) -> str | None:
    """Without any argument: the equation in float64."""
    return _equation(subject, case)


def mask(subject: Subject, case: Case) -> str | None:
    """With a random mask, which differs from example to example."""
    return _equation(subject, case, mask=case.mask())


def scale(subject: Subject, case: Case) -> str | None:
    """Another scale."""
    return _equation(subject, case, scale=0.3)


def large_scores(subject: Subject, case: Case) -> str | None:
    """Scores of some thousands, whose exponentials no float holds."""
    query, key, value = case.query_key_value()
    inputs = query * 128, key * 8, value
    expected = reference.attention(*inputs).output
    # A score of s is rounded by s times a rounding, and moves the weights by as much.
    largest = np.abs(np.einsum("BTNH,BSNH->BNTS", *_repeated(*inputs)[:2])).max()
    tolerance = TOLERANCE[case.dtype] + 4 * float(jnp.finfo(case.dtype).eps) * largest
    return difference("output", "BTNH", subject(inputs, case.dtype), expected, tolerance)


def precision(subject: Subject, case: Case) -> str | None:
    """Narrow inputs are rounded twice at most, as weights and as output: never as scores."""
    query, key, value = case.query_key_value()
    inputs = query * 4, key * 2, value  # exact: powers of two
    expected = reference.attention(*inputs)
    _, _, spread = _repeated(query, key, np.abs(value))
    magnitude = np.einsum("BNTS,BSNH->BTNH", expected.weights, spread)
    rounding = float(jnp.finfo(case.dtype).eps) / 2
    error = subject(inputs, case.dtype) - expected.output
    limit = 1.25 * rounding * (magnitude + np.abs(expected.output)) + 1e-4
    excess = difference("output error over its limit", "BTNH", np.abs(error) / limit, 0 * error, 1)
    return excess and excess.replace("should be 0", "should be 1 at most")


def float64(subject: Subject, case: Case) -> str | None:
    """Float64 stays float64, to the last digits."""
    with jax.enable_x64(True):
        return _equation(subject, case) or shapes_and_dtypes(subject, case)


def order_of_operations(subject: Subject, case: Case) -> str | None:
    """Scale, then the scores in their order, then the mask."""
    bias = np.asarray(case.normal(9, case.N, case.T, case.S), np.float32)
    given = (scores.softcap(2.0), scores.bias_array(jnp.asarray(bias)))
    allowed = case.mask()
    inputs = case.query_key_value()
    expected = reference.attention(
        *inputs, allowed, score=lambda products: 2 * np.tanh(products / 2) + bias
    )
    output = subject(inputs, case.dtype, mask=allowed, score=given)
    return difference("output", "BTNH", output, expected.output, TOLERANCE[case.dtype])


def key_order(subject: Subject, case: Case) -> str | None:
    """Keys, values and columns of the mask in another order are the same keys."""
    (query, key, value), allowed = case.query_key_value(), case.mask()
    order = case.random(8).permutation(case.S)
    straight = subject((query, key, value), case.dtype, mask=allowed)
    inputs = query, key[:, order], value[:, order]
    shuffled = subject(inputs, case.dtype, mask=np.ascontiguousarray(allowed[..., order]))
    return difference("output", "BTNH", shuffled, straight, TOLERANCE[case.dtype])


def batch(subject: Subject, case: Case) -> str | None:
    """A batch is its examples one at a time."""
    arguments = {"mask": case.mask()} if subject.can("mask") else {}
    inputs = case.query_key_value()
    together = subject(inputs, case.dtype, **arguments)
    for b in range(case.B):
        each = tuple(array[b : b + 1] for array in inputs)
        arguments_of_it = {name: array[b : b + 1] for name, array in arguments.items()}
        alone = subject(each, case.dtype, **arguments_of_it)
        found = difference("output", "BTNH", together[b : b + 1], alone, TOLERANCE[case.dtype])
        if found:
            return f"example {b}, alone as batch 0: {found}"
    return None


def vmap(subject: Subject, case: Case) -> str | None:
    """Lifted over one more axis, it is itself on every slice."""
    one, other = case.query_key_value(), replace(case, seed=case.seed + 1).query_key_value()
    stacked = tuple(np.stack(pair) for pair in zip(one, other, strict=True))
    lifted = jax.jit(jax.vmap(subject.function))(*subject.given(stacked, case.dtype))
    for place, inputs in enumerate((one, other)):
        straight = subject(inputs, case.dtype)
        lifted_one = np.asarray(lifted[place], np.float64)
        found = difference("output", "BTNH", lifted_one, straight, TOLERANCE[case.dtype])
        if found:
            return f"slice {place}: {found}"
    return None


def weights(subject: Subject, case: Case) -> str | None:
    """Returned on request."""
    return _returned(subject, case, "weights", "BNTS")


def logsumexp(subject: Subject, case: Case) -> str | None:
    """Returned on request."""
    return _returned(subject, case, "logsumexp", "BNT")


def asking_for_more(subject: Subject, case: Case) -> str | None:
    """Returning something beside the output changes no bit of it."""
    arguments = {"mask": case.mask()} if subject.can("mask") else {}
    inputs = case.query_key_value()
    alone = subject(inputs, case.dtype, **arguments)
    names = [name for name in ("weights", "logsumexp") if subject.can(name)]
    if not names:
        raise NotImplementedError("without weights or logsumexp")
    for asked in {(name,) for name in names} | {tuple(names)}:
        output, extras = subject(inputs, case.dtype, returning=asked, **arguments)
        if set(extras) != set(asked):
            return f"returning={asked} returns {sorted(extras)}"
        found = difference(f"output with returning={asked}", "BTNH", output, alone)
        if found:
            return found
    return None


def _returned(subject: Subject, case: Case, name: str, axes: str) -> str | None:
    arguments = {"mask": case.mask()} if subject.can("mask") else {}
    inputs = case.query_key_value()
    expected = getattr(reference.attention(*inputs, **arguments), name)
    _, extras = subject(inputs, case.dtype, returning=(name,), **arguments)
    return difference(name, axes, extras[name], expected, TOLERANCE[case.dtype])


def _equation(subject: Subject, case: Case, **arguments: object) -> str | None:
    inputs = case.query_key_value()
    output = subject(inputs, case.dtype, **arguments)
    expected = reference.attention(*inputs, **arguments).output
    return difference("output", "BTNH", output, expected, TOLERANCE[case.dtype])


def _repeated(
    query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    groups = query.shape[2] // key.shape[2]
    return query, np.repeat(key, groups, axis=2), np.repeat(value, groups, axis=2)


WIDE = Case(B=2, T=5, S=61, N=4, K=2, H=16, Hv=16)

ROWS = (
    Promise("shapes and dtypes", shapes_and_dtypes, (PLAIN,)),
    Promise("values", values, (PLAIN,)),
    Promise("scale", scale, (PLAIN,), ("scale",), ("values",)),
    Promise("large scores", large_scores, (PLAIN,), (), ("values",)),
    Promise("grouping", values, (replace(PLAIN, K=2), FULL), ("grouped",), ("values",), "grouped"),
    Promise(
        "value width", values, (replace(PLAIN, Hv=5),), ("value_width",), ("values",), "value_width"
    ),
    Promise("mask", mask, (FULL,), ("mask",), ("values",)),
    Promise(
        "order of operations", order_of_operations, (FULL,), ("scores", "mask"), ("values", "mask")
    ),
    Promise("key order", key_order, (FULL,), ("mask",), ("mask",)),
    Promise("batch", batch, (SQUARE,), (), ("mask",)),
    Promise("vmap", vmap, (PLAIN,), ("vmap", "jit"), ("values",)),
    Promise("lengths of no tile", values, LONG, (), ("values",)),
    Promise(
        "lengths of no tile, masked",
        mask,
        (LONG[2], LONG[4], LONG[5]),
        ("mask",),
        ("mask", "lengths of no tile"),
    ),
    Promise(
        "bfloat16", precision, (replace(WIDE, dtype="bfloat16"),), ("bfloat16",), ("grouping",)
    ),
    Promise("float16", precision, (replace(WIDE, dtype="float16"),), ("float16",), ("values",)),
    Promise("float64", float64, (replace(PLAIN, dtype="float64"),), ("float64",), ("values",)),
    Promise("weights", weights, (FULL,), ("weights",), ("mask",)),
    Promise("logsumexp", logsumexp, (FULL,), ("logsumexp",), ("mask",)),
)
ASKING = (Promise("asking for more", asking_for_more, (FULL,), (), ("mask",)),)
