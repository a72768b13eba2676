"""Every error message is one sentence with the given and the expected value."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks, merge_attention
from attention.primitives.cache import empty_cache
from tests.attention.primitives.inputs import DIMS, K, N, S, T, query_key_value

H, Hv = DIMS["Hv"]


def wrong(error, words, *shapes, **arguments):
    """One call of `attend`: the error, parts of its message, shapes and arguments."""
    return pytest.param(error, words, shapes, arguments, id=words[0])


VALID = (T, N, H), (S, K, H), (S, K, Hv)
BATCHED = tuple((2, *shape) for shape in VALID)
ROWS, COLUMNS = np.arange(T), np.arange(S)
RNG = jax.random.key(0)


@pytest.mark.parametrize(
    "error, words, shapes, arguments",
    [
        wrong(
            TypeError,
            [
                "a mask is a masks.Mask or a bool array (True = may attend), got float32",
                "score=scores.bias_array(array)",
                "mask=array.astype(bool)",
            ],
            *VALID,
            mask=np.zeros((T, S), np.float32),
        ),
        wrong(
            TypeError, ["(True = may attend), got int32"], *VALID, mask=np.ones((T, S), np.int32)
        ),
        wrong(
            ValueError,
            ["a mask array has the axes [T, S]", "got shape (7,)"],
            *VALID,
            mask=np.ones(S, bool),
        ),
        wrong(
            ValueError,
            ["the mask describes 7 queries (T), but there are 5"],
            *VALID,
            mask=np.ones((S, T), bool),
        ),
        wrong(
            ValueError,
            ["the mask describes 2 keys (S), but there are 7"],
            *VALID,
            mask=np.ones((T, 2), bool),
        ),
        wrong(
            ValueError,
            ["the mask describes 4 heads (N), but there are 6"],
            *VALID,
            mask=np.ones((4, T, S), bool),
        ),
        wrong(
            ValueError,
            ["(6, 5, 7) beside the batch axes (2,)", "array[None] for a mask of each head"],
            *BATCHED,
            mask=np.ones((N, T, S), bool),
        ),
        wrong(
            ValueError,
            ["the mask describes 6 keys (S), but there are 7"],
            *VALID,
            mask=masks.from_array(np.ones((T, 6), bool)),
        ),
        wrong(
            ValueError,
            ["mask has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            mask=np.ones((3, 1, T, S), bool),
        ),
    ],
)
def test_wrong_mask_arrays_raise(error, words, shapes, arguments):
    inputs = [jnp.zeros(shape) for shape in shapes]
    with pytest.raises(error) as caught:
        attend(*inputs, **arguments)
    for part in words:
        assert part in str(caught.value)


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def heads(number):
    return {"key": zeros(S, number, H), "value": zeros(S, number, Hv)}


INPUTS = dict(zip(("query", "key", "value"), query_key_value(), strict=True))
BATCH = dict(zip(INPUTS, query_key_value((2,)), strict=True))
WRONG_TYPES = [
    ("query [..., T, N, H] must be an array, got list", {"query": [[[1.0]]]}),
    ("query [..., T, N, H] must be floating point, got int32", {"query": zeros(1, dtype="int32")}),
    ("key [..., S, K, H] must be floating point, got bool", {"key": zeros(1, dtype="bool")}),
    (
        "value [..., S, K, Hv] must be floating point, got compl",
        {"value": zeros(1, dtype="complex")},
    ),
    ("must be a pair (query_positions, key_positions)", {"positions": ROWS}),
    ("query_positions must be integers, got float", {"positions": (ROWS / 2, COLUMNS)}),
    ("key_positions must be integers, got bool", {"positions": (ROWS, COLUMNS > 3)}),
    ("call it if it makes a mask, as in masks.causal()", {"mask": masks.causal}),
    ("wrap a predicate in masks.from_function", {"mask": lambda query, key: query > key}),
    ("a mask is a masks.Mask or a bool array, got 'causal'", {"mask": "causal"}),
    ("heads must be integers, got float32", {"heads": zeros(N)}),
    ("dropout must be Dropout(rng, rate), got float", {"dropout": 0.1}),
    ("dropout rng must be a jax.random.key, got NoneType", {"dropout": Dropout(None, 0.1)}),
    ("dropout rng must be a jax.random.key, got int", {"dropout": Dropout(0, 0.1)}),
    ("takes a collection of names: write ('weights',)", {"returning": "weights"}),
]
WRONG_VALUES = [
    ("query [..., T, N, H] needs at least 3 axes, got shape (5, 11)", {"query": zeros(T, H)}),
    ("key [..., S, K, H] needs at least 3 axes, got shape (7, 11)", {"key": zeros(S, H)}),
    ("value [..., S, K, Hv] needs at least 3 axes, got shape (13,)", {"value": zeros(Hv)}),
    ("batch axes of query and key differ, (2,) and (3,)", BATCH | {"key": zeros(3, S, K, H)}),
    ("batch axes of query and value differ, (2,) and ()", BATCH | {"value": INPUTS["value"]}),
    ("widths H of query and key differ, 11 and 12: got query (5, 6, 11)", {"key": zeros(S, K, 12)}),
    ("lengths S of key and value differ, 7 and 8", {"value": zeros(8, K, Hv)}),
    ("heads K of key and value differ, 3 and 2", {"value": zeros(S, 2, Hv)}),
    ("be shared evenly by 4 key/value heads (axis K): K must divide N", heads(4)),
    ("6 query heads (axis N) cannot be shared evenly by 0 key/value heads", heads(0)),
    ("scale is one number for all scores, got shape (6,)", {"scale": zeros(N)}),
    ("query_positions must end in an axis of 5, got shape (7,)", {"positions": (COLUMNS, COLUMNS)}),
    ("key_positions must end in an axis of 7, got shape ()", {"positions": (ROWS, 3)}),
    (
        "query_positions has the leading axes (3,), which do not broadcast to the batch axes (2,)",
        BATCH | {"positions": (zeros(3, T, dtype=int), COLUMNS)},
    ),
    ("describes 7 queries (T)", {"mask": ~masks.lengths(3) & masks.segments(COLUMNS)}),
    (
        "5 queries and 7 keys do not determine the positions of the queries",
        {"mask": masks.lengths(3) | ~masks.window(2)},
    ),
    ("pass positions=(query_positions, key_positions)", {"mask": masks.causal()}),
    ("mask has the leading axes (3,)", BATCH | {"mask": masks.lengths([1, 2, 3])}),
    ("mask has the leading axes (2,)", {"mask": masks.lengths([1, 2])}),
    *(
        (
            f"tile_sizes must be (queries, keys), two integers of at least 1, got {given}",
            {"tile_sizes": given},
        )
        for given in ((0, 8), (8, -1), (8,), 8, (8.0, 8))
    ),
    ("heads must end in an axis of 6, got shape (2,)", {"heads": np.arange(2)}),
    ("default, high, highest, got 'hihgest'; did you mean", {"precision": "hihgest"}),
    (
        "dropout.rng has the leading axes (3,), which do not broadcast to the batch axes (2,)",
        BATCH | {"dropout": Dropout(jax.random.split(RNG, 3), 0.1)},
    ),
    ("must be one of weights, logsumexp, largest_score, got 'scores'", {"returning": ("scores",)}),
]


@pytest.mark.parametrize(
    "error, words, arguments",
    [
        *((TypeError, *each) for each in WRONG_TYPES),
        *((ValueError, *each) for each in WRONG_VALUES),
    ],
)
def test_wrong_arguments_raise(error, words, arguments):
    with pytest.raises(error, match=re.escape(words)):
        attend(**INPUTS | arguments)


RECEIVES = "a mask function receives (query_position, key_position"
RETURNS = f"{RECEIVES}) and must return bool[], got"


def same(query, key):
    return query == key


def bounds_of_tiles(function):
    return lambda: masks.from_function(same, tile_bounds=function)


def partial(*shape):
    *batch, num_queries, num_heads, _ = shape
    return zeros(*shape), zeros(*batch, num_heads, num_queries)


PARTIAL = partial(T, N, Hv)
WRONG_PARTIALS = [
    [],
    [PARTIAL, partial(T + 1, N, Hv)],
    [PARTIAL, partial(2, T, N, Hv)],
    [(PARTIAL[0], zeros(T, N))],
    [PARTIAL[0]],
    [(PARTIAL[0], {"logsumexp": PARTIAL[1]})],
]


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: masks.window(-1), ValueError, "reaches 0 or more positions, got before=-1"),
        (lambda: masks.window(2, -3), ValueError, "got before=2 and after=-3"),
        (lambda: masks.block(0), ValueError, "a block holds at least 1 position, got size=0"),
        (lambda: masks.lengths([1.0]), TypeError, "lengths must be integers, got float"),
        (lambda: masks.lengths([3, -1]), ValueError, "lengths must be 0 or more, got -1"),
        (lambda: masks.lengths(3, query_lengths=-2), ValueError, "must be 0 or more, got -2"),
        (lambda: masks.lengths(3, query_lengths=2.5), TypeError, "must be integers, got float"),
        (lambda: masks.prefix(2.5), TypeError, "must be integers, got float"),
        (lambda: masks.prefix(-1), ValueError, "length must be 0 or more, got -1"),
        (lambda: masks.segments(3), ValueError, "query_segments needs at least 1 axis"),
        (lambda: masks.segments([0], 3), ValueError, "key_segments needs at least 1 axis"),
        (lambda: masks.segments([0], [True]), TypeError, "key_segments must be integers, got bool"),
        (lambda: masks.cu_seqlens(3), ValueError, "query_offsets needs at least 1 axis"),
        (lambda: masks.cu_seqlens([0, 5, 3]), ValueError, "never decreasing, got [0 5 3]"),
        (lambda: masks.cu_seqlens([0, 5], np.uint8([1, 3])), ValueError, "key_offsets are cumul"),
        (lambda: masks.cu_seqlens(jnp.array([[0, 1], [-1, 2]])), ValueError, "0 first and never"),
        (lambda: masks.cu_seqlens([0, 3], [0, 2, 3]), ValueError, "different numbers of sequences"),
        (
            lambda: masks.window(2) & masks.cu_seqlens([0, 4], [0, 3]),
            ValueError,
            "causal=True to cu",
        ),
        (
            lambda: masks.from_array(np.eye(3, dtype=np.float32)),
            TypeError,
            "pass score=scores.bias_array(array)",
        ),
        (
            lambda: masks.from_array([True]),
            ValueError,
            "those of the weights, [..., N, T, S], got shape (1,)",
        ),
        (
            lambda: masks.causal() & np.ones(3, bool),
            ValueError,
            "those of the weights, [..., N, T, S], got shape (3,)",
        ),
        (
            lambda: masks.causal() | True,
            TypeError,
            "a mask is a masks.Mask or a bool array, got True",
        ),
        (lambda: masks.causal() and masks.full(), TypeError, "a mask is neither true nor false"),
        (lambda: masks.causal() or masks.full(), TypeError, "a mask is neither true nor false"),
        (lambda: not masks.causal(), TypeError, "a mask is neither true nor false"),
        (lambda: masks.picture(masks.lengths([2, 3]), 6), ValueError, "is for a batch of (2,)"),
        (lambda: masks.from_function(None), TypeError, "'NoneType' object is not callable"),
        (lambda: masks.from_function(lambda q, k: q - k), TypeError, f"{RETURNS} int32[]"),
        (
            lambda: masks.from_function(lambda q, k: ~zeros(3, dtype=bool)),
            TypeError,
            f"{RETURNS} bool[3]",
        ),
        (lambda: masks.from_function(lambda q, k: q > 3 and k > 3), TypeError, "as traced numbers"),
        (lambda: masks.from_function(lambda q: q > 3), TypeError, f"{RECEIVES}), and raised"),
        (lambda: masks.from_function(same, zeros(3)), TypeError, f"{RECEIVES}, array), and raised"),
        (lambda: empty_cache(2, 3, num_kv_heads=1, head_width=2), TypeError, "such as (2,), got 2"),
        (
            bounds_of_tiles(lambda query, key: key.low <= query.high),
            TypeError,
            "bool[], bool[], got",
        ),
        (bounds_of_tiles(lambda query: query), TypeError, "receives (query.low, "),
        *(
            (
                lambda partials=partials: merge_attention(partials),
                ValueError,
                "takes one or more pairs",
            )
            for partials in WRONG_PARTIALS
        ),
        *(
            (lambda rate=rate: Dropout(RNG, rate), TypeError, "rate must be a Python number")
            for rate in ("0.1", None, jnp.float32(0.1))
        ),
        *(
            (lambda rate=rate: Dropout(RNG, rate), ValueError, "must lie in [0, 1), got")
            for rate in (-0.1, 1.0, np.nan)
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_parts_raise(make, error, words):
    with pytest.raises(error, match=re.escape(words)):
        make()


def test_mask_may_be_larger_than_the_inputs_with_explicit_positions():
    whole = masks.from_array(np.tril(np.ones((50, 60), bool)))
    output = attend(*query_key_value(), mask=whole, positions=(ROWS + 2, COLUMNS))
    expected = attend(*query_key_value(), mask=masks.causal(), positions=(ROWS + 2, COLUMNS))
    np.testing.assert_array_equal(output, expected)
