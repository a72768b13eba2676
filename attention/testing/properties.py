"""Rows that do not compare a call with the equation: NaN, dropout, cost of vmap, shardings."""

import math
import re
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention.primitives import masks
from attention.primitives.dropout import Dropout, keep_factor
from attention.testing.implementation import Case, Implementation, convert, differentiate
from attention.testing.reference import Arrays, ContractError, assert_close, reference_attention

NONFINITE = (np.nan, np.inf, -np.inf)
DROPOUT_RATE = 0.25
COST_LIMIT = 1.5  # of vmap, as a multiple of the cost of a batch
COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def shapes_and_dtypes(implementation: Implementation, case: Case) -> None:
    """Check that the output is `[B, T, N, Hv]` in the dtype of the query."""
    narrow = filter(implementation.can, ("bfloat16", "float16"))
    for dtype in dict.fromkeys([case.dtype, *narrow]):
        inputs = convert(case.query_key_value(), dtype)
        run = partial(jax.eval_shape, implementation.function)
        output = (run if implementation.can("jit") else implementation.function)(*inputs)
        actual = output.shape, output.dtype.name
        expected = (case.B, case.T, case.N, case.Hv), dtype
        if actual != expected:
            raise ContractError(f"the output has shape and dtype {actual}, should be {expected}")


def returning_more(implementation: Implementation, case: Case) -> None:
    """Check that `returning` does not change any bit of the output."""
    mask = {"mask": case.mask()} if implementation.can("mask") else {}
    run = partial(implementation.results, case.query_key_value(), case.dtype, **mask)
    names = tuple(name for name in ("weights", "logsumexp") if implementation.can(name))
    implementation.require(*names or ("weights",))
    expected = run()
    for returning in sorted({names, *((name,) for name in names)}):
        results = run(returning=returning)
        if set(results) != {"output", *returning}:
            raise ContractError(f"returning={returning} returns {sorted(results)}")
        output = {"output": results["output"]}
        assert_close(output, expected, prefix=f"with returning={returning}: ")


def masked_nonfinite(implementation: Implementation, case: Case, *, with_gradients: bool) -> None:
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
        assert_close(actual, expected, prefix=f"with {number} in masked {name} 0: ")


def visible_nan(implementation: Implementation, case: Case, *, with_gradients: bool) -> None:
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
        words = f"with NaN in a {name} and {factor} times the cotangent of its query: NaN in the "
        assert_close(nan, expected, prefix=words)


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


def reproducible_dropout(implementation: Implementation, case: Case) -> None:
    """Check that equal keys drop equal pairs, other keys other pairs, and rate 0 none."""
    run = partial(implementation.results, case.query_key_value(), case.dtype)
    kept, other = (run(dropout=dropout(seed)) for seed in (0, 1))
    assert_close(run(dropout=dropout()), kept, prefix="with the same key: ")
    if case.S > 4 and (kept["output"] == other["output"]).all():
        raise ContractError("another key drops the same pairs")
    assert_close(run(dropout=dropout(rate=0.0)), run(), case.tolerance, "at rate 0: ")


def rate_of_dropout(implementation: Implementation, case: Case) -> None:
    """Check that a quarter of the weights is dropped, per head, and the others scaled by 4/3."""
    kept = weights(implementation, case, dropout=dropout())
    dropped = kept == 0
    expected = np.where(dropped, 0, weights(implementation, case) / (1 - DROPOUT_RATE))
    assert_close({"weights": kept}, {"weights": expected}, case.tolerance, "after dropout: ")
    # Five standard deviations; examples of a batch may drop the same pairs.
    spread = 5 * (DROPOUT_RATE * (1 - DROPOUT_RATE) / (case.N * case.T * case.S)) ** 0.5
    share = dropped.mean()
    if abs(share - DROPOUT_RATE) > spread:
        raise ContractError(f"{share:.3f} of the weights are dropped, should be {DROPOUT_RATE}")
    if case.N > 1 and case.T * case.S > 64 and (dropped[:, :1] == dropped).all():
        raise ContractError("all heads drop the same pairs")


def pairs_of_dropout(implementation: Implementation, case: Case) -> None:
    """Check that the dropped pairs are those of `attention.attend`, also at other positions."""
    queries, keys = (np.arange(size, dtype=np.int32) for size in (case.T, case.S))
    given = [((queries, keys), {})]
    if implementation.can("predicates"):
        given.append(((queries[::-1], keys), {"positions": (queries[::-1], keys)}))
    for positions, arguments in given:
        kept = weights(implementation, case, dropout=dropout(), **arguments)
        factor = np.asarray(jax.jit(keep_factor)(dropout(), jnp.arange(case.N), *positions))
        expected = np.sign(np.broadcast_to(factor, kept.shape))
        assert_close({"weights": np.sign(kept)}, {"weights": expected}, prefix="sign of the ")


def dropout(seed: int = 0, rate: float = DROPOUT_RATE) -> Dropout:
    """Return the dropout of a random key."""
    return Dropout(jax.random.key(seed), rate)


def weights(implementation: Implementation, case: Case, **arguments: object) -> np.ndarray:
    """Return the weights after dropout, `[B, N, T, S]`: the outputs for one-hot values."""
    query, key, _ = case.query_key_value()
    outputs = []
    for start in range(0, case.S, case.Hv):  # Hv keys per call
        one_hot = np.eye(case.S, case.Hv, -start)[:, None, :]
        value = np.broadcast_to(one_hot, (case.B, case.S, case.K, case.Hv))
        results = implementation.results((query, key, value), case.dtype, **arguments)
        outputs.append(results["output"])
    return np.concatenate(outputs, axis=-1)[..., : case.S].transpose(0, 2, 1, 3)


def cost_of_vmap(implementation: Implementation, case: Case) -> None:
    """Compare the cost of vmap over the examples with the cost of the batch."""
    mask = {"mask": masks.causal()} if implementation.can("predicates") else {}
    run = partial(differentiate, implementation.function, **mask)
    passes = {"forward": None}
    if implementation.can("gradients"):
        passes["forward and backward"] = case.cotangents()
    for name, cotangents in passes.items():
        arrays = convert((case.query_key_value(), cotangents), case.dtype)
        # Each example keeps a batch axis of 1, for functions that require one.
        examples = jax.tree.map(lambda array: array[:, None], arrays)
        mapped = _cost(jax.make_jaxpr(jax.vmap(run))(*examples))
        batch = _cost(jax.make_jaxpr(run)(*arrays))
        kinds = "sequential steps", "multiply-adds"
        for kind, actual, expected in zip(kinds, mapped, batch, strict=True):
            if actual > COST_LIMIT * max(1, expected):
                raise ContractError(
                    f"vmap over {case.B} examples needs {actual:.0f} {kind} {name}, and a batch of "
                    f"{case.B} needs {expected:.0f}"
                )


def _cost(jaxpr: Any) -> np.ndarray:  # noqa: ANN401 - jax.extend.core.Jaxpr or ClosedJaxpr
    """Return the sequential steps and the multiply-adds of a traced program.

    Sequential steps are iterations of loops, nested loops multiplied: a batching rule that maps
    over the examples one at a time has many. Multiply-adds are those of matrix products. A `cond`
    counts as the mean of its branches; if it becomes a `select` under vmap, because its predicate
    differs per example, as the sum. A `while` counts as one iteration.
    """
    total = np.zeros(2)
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        leaves = jax.tree.leaves(list(params.values()), is_leaf=_is_jaxpr)
        inner = [_cost(leaf) for leaf in leaves if _is_jaxpr(leaf)]
        if name == "dot_general":
            ((contracted, _), _) = params["dimension_numbers"]
            lengths = (equation.invars[0].aval.shape[axis] for axis in contracted)
            total[1] += math.prod(equation.outvars[0].aval.shape) * math.prod(lengths)
        elif name == "cond":
            total += np.mean(inner, axis=0)
        else:
            cost = sum(inner, np.zeros(2))
            cost[0] = max(cost[0], name in ("scan", "while"))
            total += cost * (params["length"] if name == "scan" else 1)
    return total


def _is_jaxpr(param: object) -> bool:
    return hasattr(param, "eqns")


def sharded(implementation: Implementation, case: Case, *, axis: int) -> None:
    """Check results, shardings and the compiled program for inputs sharded over two devices.

    The axis is 0 for the batch, and 2 for heads.
    """
    if len(jax.devices()) < 2:
        raise NotImplementedError("one device")
    inputs = case.query_key_value()
    cotangents = case.cotangents() if implementation.can("gradients") else None
    if any(array.shape[axis] % 2 for array in inputs):
        return  # a smaller case that two devices cannot share
    with_mask = implementation.can("predicates")

    def function(*inputs: Array, first: Array) -> Array:
        mask = masks.causal()
        if implementation.can("closures"):
            mask &= masks.from_function(lambda query, key: key >= first)
        return implementation.function(*inputs, **({"mask": mask} if with_mask else {}))

    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, "devices"))
    given = jax.device_put(convert((inputs, cotangents), case.dtype), sharding)
    first = jnp.int32(0)  # of the keys; traced
    compiled = jax.jit(partial(differentiate, function)).lower(*given, first=first).compile()
    if collectives := COLLECTIVE.findall(compiled.as_text()):
        raise ContractError(f"the compiled program has {', '.join(collectives)}")
    results = compiled(*given, first=first)
    for name, array in results.items():
        if not array.sharding.is_equivalent_to(sharding, array.ndim):
            raise ContractError(f"{name} has sharding {array.sharding}, should be {sharding}")
    mask = np.tri(case.T, dtype=bool) if with_mask else True
    expected = reference_attention(*inputs, mask, cotangents=cotangents)
    actual = {name: np.asarray(array, np.float64) for name, array in results.items()}
    assert_close(actual, expected, case.tolerance)
