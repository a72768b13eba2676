"""Masks and scores that close over traced arrays, in every transformation."""

import functools
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks, scores
from tests.attention.primitives.inputs import draw, in_tiles, jitted

T, N, H = 10, 2, 3
QUERY, KEY, VALUE = draw(*[(T, N, H)] * 3)
WEIGHT = jnp.float32(0.7)
TILES = {name: in_tiles(name, 4, 4) for name in ("reference", "tiled")}


def loss(weight, implementation, query=QUERY):
    """A function of a weight that the score function closes over."""
    score = scores.from_function(
        lambda s, q, k, n: s * weight + weight**2 * (q - k).astype(s.dtype)
    )
    output = attend(query, KEY, VALUE, mask=masks.causal(), score=score, **TILES[implementation])
    return jnp.sum(jnp.sin(output))


def in_scan(function):
    """Evaluate a function in the body of a scan."""

    def run(weight):
        def body(total, shift):
            return total + function(weight + shift), None

        return jax.lax.scan(body, jnp.zeros(()), jnp.arange(3.0) / 10)[0]

    return run


TRANSFORMS = {
    "grad in scan": lambda f: in_scan(jax.grad(f)),
    "grad of scan": lambda f: jax.jit(jax.grad(in_scan(f))),
    "vmap of grad": lambda f: lambda w: jax.jit(jax.vmap(jax.grad(f)))(w * jnp.arange(1.0, 3.0)),
    "hessian": lambda f: jax.jit(jax.hessian(f)),
    "grad of grad": lambda f: jax.jit(jax.grad(jax.grad(f))),
    "grad of checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_traced_weight_in_a_score_function(name):
    """Reference and tiles agree, and the derivative by the weight is not 0."""
    expected, actual = (
        TRANSFORMS[name](functools.partial(loss, implementation=implementation))(WEIGHT)
        for implementation in ("reference", "tiled")
    )
    assert np.abs(expected).min() > 1e-3
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("implementation", TILES)
def test_arrays_as_arguments_equal_closures(implementation):
    """Arrays of masks and scores as arguments and as closures, in value and gradient of jit."""
    table, ids = draw((5,))[0], jnp.arange(T) // 3

    @functools.partial(jax.jit, static_argnums=1)
    def run(table, closed):
        if closed:
            score = scores.from_function(lambda s, q, k, n: s + table[jnp.abs(q - k) % 5])
            mask = masks.from_function(lambda q, k: ids[q] >= ids[k])
        else:
            score = scores.from_function(lambda s, q, k, n, x: s + x[jnp.abs(q - k) % 5], table)
            mask = masks.from_function(lambda q, k, x: x[q] >= x[k], ids)
        output = attend(QUERY, KEY, VALUE, mask=mask, score=score, **TILES[implementation])
        return jnp.sum(jnp.sin(output))

    closed, given = (jax.value_and_grad(run)(table, closed) for closed in (True, False))
    chex.assert_trees_all_close(closed, given, rtol=1e-6, atol=1e-6)
    assert np.abs(given[1]).min() > 1e-4


@pytest.mark.parametrize("implementation", TILES)
def test_vmap_of_traced_document_ids_in_a_mask(implementation):
    ids, inputs = np.stack([np.arange(T) // 5, np.arange(T) // 3]), draw(*[(2, T, 1, H)] * 3)

    def one(query, key, value, ids):
        mask = masks.causal() & masks.from_function(lambda q, k: ids[q] == ids[k])
        return attend(query, key, value, mask=mask, **TILES[implementation])

    mask = masks.causal() & masks.segments(ids)
    expected = attend(*inputs, mask=mask, implementation="reference")
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(*inputs, ids), expected, 1e-4, 1e-5)


MAKERS = {
    "mask": lambda number: masks.from_function(lambda q, k: k <= q + number),
    "mask with tile_bounds": lambda number: masks.from_function(
        lambda q, k: k <= q + number,
        tile_bounds=lambda q, k: masks.TileBounds(k.low <= q.high + number, False),
    ),
    "score": lambda number: scores.from_function(lambda s, q, k, n: s * number.astype(s.dtype)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_lambda_defined_anew_does_not_compile_again(name):
    traces = []

    @jax.jit
    def run(part):
        traces.append(part)
        return attend(QUERY, KEY, VALUE, **{name.split()[0]: part}, **TILES["tiled"])

    outputs = [np.asarray(run(MAKERS[name](jnp.int32(number)))) for number in (1, 3)]
    for number, output in zip((1, 3), outputs, strict=True):
        options = {} if name == "score" else {"mask": masks.window(None, number)}
        query = np.float32(number) * QUERY if name == "score" else QUERY
        np.testing.assert_allclose(output, attend(query, KEY, VALUE, **options), 1e-4, 1e-5)
    assert len(traces) == 1


def test_no_traced_array_is_kept():
    """A second trace of the same functions would meet one of the first."""

    def loss(weight):
        score = scores.from_function(lambda s, q, k, n: jax.nn.relu(s * weight))
        mask = masks.from_function(lambda q, k: k * jnp.int32(weight > 0) <= q)
        return attend(QUERY, KEY, VALUE, score=score, mask=mask, **TILES["tiled"]).sum()

    for size in (2, 3):
        assert jnp.isfinite(jax.jit(jax.vmap(jax.grad(loss)))(jnp.ones(size))).all()


@pytest.mark.parametrize("enable_x64", [False, True])
def test_a_function_is_traced_once(enable_x64):
    """For each dtype of scores, when the score function is made."""
    traced = []

    def half(score, query, key, head):
        traced.append(score.dtype)
        return score / 2

    with jax.enable_x64(enable_x64):
        score = scores.from_function(half)
        for _ in range(2):
            attend(QUERY, KEY, VALUE, score=score)
    assert traced == [jnp.float32, jnp.float64][: 1 + enable_x64]


@pytest.mark.usefixtures("float64")
def test_a_score_for_another_dtype_keeps_its_arrays():
    """One that is equal takes its own, even where the program of the first is compiled."""
    run = jax.jit(lambda score: attend(QUERY, KEY, VALUE, score=score))
    for factor in (1.0, 2.0):
        array = jnp.asarray(factor)
        output = run(scores.from_function(lambda s, q, k, n, x=array: s * x.astype(s.dtype)))
        expected = attend(np.float32(factor) * QUERY, KEY, VALUE)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", TILES)
def test_functions_that_read_a_python_number(implementation):
    """They take it when the mask or the score is made."""
    distance, read, made = np.subtract.outer(np.arange(T), np.arange(T)), {}, []

    def window(query, key):
        return query - key < read["size"]

    def scale(score, query, key, head):
        return score * read["size"]

    for size in (1, 2, 3):
        read["size"] = size
        both = masks.from_function(lambda *x: window(*x)), masks.from_function(window)
        made.append((size, both, scores.from_function(scale)))
    run = functools.partial(attend, **TILES[implementation])
    by_definition = jitted(functools.partial(attend, implementation="reference"))
    for size, both, score in (*made, made[0]):
        expected = by_definition(QUERY, KEY, VALUE, mask=distance < size)
        for mask in both:
            np.testing.assert_allclose(run(QUERY, KEY, VALUE, mask=mask), expected, 1e-5, 1e-6)
        expected = by_definition(np.float32(size) * QUERY, KEY, VALUE)
        np.testing.assert_allclose(run(QUERY, KEY, VALUE, score=score), expected, 1e-5, 1e-5)


def with_custom_jvp(factor):
    """The identity, with `factor` as its derivative."""

    @jax.custom_jvp
    def identity(x):
        return x * 1

    identity.defjvp(lambda primals, tangents: (identity(*primals), factor * tangents[0]))
    return lambda s, q, k, n: identity(s)


def with_custom_vjp(factor):
    @jax.custom_vjp
    def identity(x):
        return x * 1

    identity.defvjp(lambda x: (identity(x), None), lambda _, cotangent: (factor * cotangent,))
    return lambda s, q, k, n: identity(s)


def with_table_of_inner_jit(factor):
    inner = jax.jit(lambda s: s * jnp.asarray(np.full(3, factor, np.float32))[s.astype(int) % 3])
    return lambda s, q, k, n: inner(s)


@pytest.mark.parametrize(
    "make, implementation",
    [
        (with_custom_jvp, "tiled"),
        (with_custom_vjp, "reference"),  # tiles need forward mode
        (with_table_of_inner_jit, "tiled"),
        (with_table_of_inner_jit, "reference"),
    ],
)
def test_programs_whose_text_is_equal_but_incomplete(make, implementation):
    """Derivative rules and constants of an inner jit are not part of the text of a jaxpr."""

    def gradient(query, factor):
        score = scores.from_function(make(factor))
        return jax.grad(lambda q: attend(q, KEY, VALUE, score=score, **options).sum())(query)

    options = TILES[implementation]
    # The factor of the inner jit applies to the scores, those of the rules to derivatives only.
    query = 5 * QUERY if make is with_table_of_inner_jit else QUERY
    expected = 5 * gradient(query, 1.0)
    np.testing.assert_allclose(gradient(QUERY, 5.0), expected, rtol=1e-4, atol=1e-6)


def test_constant_bool_array_compiles_as_fast_as_an_argument():
    """The compiler does not fold the reduction of the array to tiles."""
    shape = jax.ShapeDtypeStruct((2, 1024, 2, 8), "float32")
    allowed = np.random.default_rng(0).random((1024, 1024)) < 0.6

    def call(query, allowed):
        return attend(query, query, query, mask=allowed, implementation="tiled")

    def seconds(function, *shapes):
        lowered = jax.jit(function).lower(*shapes)
        start = time.perf_counter()
        lowered.compile()
        return time.perf_counter() - start

    as_argument = seconds(call, shape, jax.ShapeDtypeStruct((1024, 1024), bool))
    assert seconds(lambda query: call(query, allowed), shape) < 3 * as_argument + 0.5


@pytest.mark.parametrize("ids", [np.arange(T) // 3, [0] * T], ids=["NumPy array", "list"])
def test_closure_over_what_traced_numbers_cannot_index(ids):
    with pytest.raises(TypeError, match=r"convert it with jax\.numpy\.asarray"):
        masks.from_function(lambda query, key: ids[query] == ids[key])
