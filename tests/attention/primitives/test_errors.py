"""Every error message is one sentence with the given and the expected value."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks, merge_attention
from tests.attention.primitives.inputs import DIMS, K, N, S, T, query_key_value

H, Hv = DIMS["Hv"]
ROWS, COLUMNS = np.arange(T), np.arange(S)
RNG = jax.random.key(0)


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def bits(*shape):
    return {"mask": zeros(*shape, dtype=bool)}


def heads(number):
    return {"key": zeros(S, number, H), "value": zeros(S, number, Hv)}


INPUTS = dict(zip(("query", "key", "value"), query_key_value(), strict=True))
BATCH = dict(zip(INPUTS, query_key_value((2,)), strict=True))
WRONG_TYPES = [
    ("query [..., T, N, H] must be an array, got list", {"query": [[[1.0]]]}),
    ("key [..., S, K, H] must be floating point, got bool", {"key": zeros(1, dtype="bool")}),
    ("must be a pair (query_positions, key_positions)", {"positions": ROWS}),
    ("key_positions must be integers, got bool", {"positions": (ROWS, COLUMNS > 3)}),
    ("got float32: pass score=scores.bias_array(array) to add it", {"mask": zeros(T, S)}),
    ("call it if it makes a mask, as in masks.causal()", {"mask": masks.causal}),
    ("wrap a predicate in masks.from_function", {"mask": lambda query, key: query > key}),
    ("a mask is a masks.Mask or a bool array, got 'causal'", {"mask": "causal"}),
    ("compose several masks with & or |", {"mask": [masks.full(), masks.lengths(3)]}),
    ("heads must be integers, got float32", {"heads": zeros(N)}),
    ("dropout must be Dropout(rng, rate), got float", {"dropout": 0.1}),
    ("dropout rng must be a jax.random.key, got int", {"dropout": Dropout(0, 0.1)}),
    ("takes a collection of names: write ('weights',)", {"returning": "weights"}),
]
WRONG_VALUES = [
    ("query [..., T, N, H] needs at least 3 axes, got shape (5, 11)", {"query": zeros(T, H)}),
    ("batch axes of query and key differ, (2,) and (3,)", BATCH | {"key": zeros(3, S, K, H)}),
    ("widths H of query and key differ, 11 and 12: got query (5, 6, 11)", {"key": zeros(S, K, 12)}),
    ("lengths S of key and value differ, 7 and 8", {"value": zeros(8, K, Hv)}),
    ("heads K of key and value differ, 3 and 2", {"value": zeros(S, 2, Hv)}),
    ("be shared evenly by 4 key/value heads (axis K): K must divide N", heads(4)),
    ("6 query heads (axis N) cannot be shared evenly by 0 key/value heads", heads(0)),
    ("scale is one number for all scores, got shape (6,)", {"scale": zeros(N)}),
    ("query_positions must end in an axis of 5, got shape (7,)", {"positions": (COLUMNS, COLUMNS)}),
    ("positions has the leading axes (3,)", BATCH | {"positions": (zeros(3, T, dtype=int), ROWS)}),
    ("a mask array has the axes [T, S]", bits(S)),
    ("the mask describes 7 queries (T), but there are 5", bits(S, T)),
    (
        "the mask describes 2 keys (S), but there are 7",
        {"mask": masks.from_array(zeros(T, 2, dtype=bool))},
    ),
    ("the mask describes 4 heads (N), but there are 6", bits(4, T, S)),
    ("mask has the leading axes (3,)", BATCH | bits(3, 1, T, S)),
    ("describes 7 queries (T)", {"mask": ~masks.lengths(3) & masks.segments(COLUMNS)}),
    ("do not determine the positions of the queries", {"mask": masks.full() | ~masks.window(2)}),
    ("mask has the leading axes (3,)", BATCH | {"mask": masks.lengths([1, 2, 3])}),
    ("tile_sizes must be (queries, keys), two integers", {"tile_sizes": (0, 8)}),
    ("tile_sizes must be (queries, keys), two integers", {"tile_sizes": 8}),
    ("heads must end in an axis of 6, got shape (2,)", {"heads": np.arange(2)}),
    ("default, high, highest, got 'hihgest'; did you mean", {"precision": "hihgest"}),
    ("has the leading axes (3,)", BATCH | {"dropout": Dropout(jax.random.split(RNG, 3), 0.1)}),
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


RECEIVES = "a mask function receives (query_position, key_position), and raised"
RETURNS = "a mask function receives (query_position, key_position) and must return bool[], got"


def of_function(function, tile_bounds=None):
    return lambda: masks.from_function(function, tile_bounds=tile_bounds)


def partial(num_queries):
    return zeros(num_queries, N, Hv), zeros(N, num_queries)


WRONG_PARTIALS = [[], [partial(T), partial(T + 1)], [(zeros(T, N, Hv), zeros(T, N))], [zeros(T)]]


@pytest.mark.parametrize(
    "error, words, make",
    [
        (ValueError, "0 or more positions, got before=-1", lambda: masks.window(-1)),
        (ValueError, "a block holds at least 1 position, got size=0", lambda: masks.block(0)),
        (TypeError, "lengths must be integers, got float", lambda: masks.lengths([1.0])),
        (ValueError, "lengths must be 0 or more, got -1", lambda: masks.lengths([3, -1])),
        (ValueError, "must be 0 or more, got -2", lambda: masks.lengths(3, query_lengths=-2)),
        (ValueError, "length must be 0 or more, got -1", lambda: masks.prefix(-1)),
        (ValueError, "query_segments needs at least 1 axis", lambda: masks.segments(3)),
        (TypeError, "key_segments must be integers, got", lambda: masks.segments([0], [True])),
        (ValueError, "never decreasing, got [0 5 3]", lambda: masks.cu_seqlens([0, 5, 3])),
        (ValueError, "key_offsets are", lambda: masks.cu_seqlens([0, 5], np.uint8([1, 3]))),
        (ValueError, "different numbers of", lambda: masks.cu_seqlens([0, 3], [0, 2, 3])),
        (ValueError, "causal=True", lambda: masks.window(2) & masks.cu_seqlens([0, 4], [0, 3])),
        (TypeError, "score=scores.bias_array", lambda: masks.from_array(zeros(3, 3))),
        (ValueError, "[..., N, T, S], got shape (1,)", lambda: masks.from_array([True])),
        (TypeError, "is neither true nor false", lambda: masks.causal() and masks.full()),
        (ValueError, "a batch of (2,)", lambda: masks.picture(masks.lengths([2, 3]), 6)),
        (TypeError, f"{RETURNS} int32[]", of_function(lambda q, k: q - k)),
        (TypeError, "as traced numbers", of_function(lambda q, k: q > 3 and k > 3)),
        (TypeError, RECEIVES, of_function(lambda q: q > 3)),
        (TypeError, "bool[], bool[], got", of_function(lambda q, k: q == k, lambda q, k: q.low)),
        (TypeError, "receives (query.low, ", of_function(lambda q, k: q == k, lambda q: q)),
        *(
            (ValueError, "takes one or more pairs", lambda partials=each: merge_attention(partials))
            for each in WRONG_PARTIALS
        ),
        (TypeError, "rate must be a Python number", lambda: Dropout(RNG, jnp.float32(0.1))),
        (ValueError, "must lie in [0, 1), got", lambda: Dropout(RNG, 1.0)),
        (ValueError, "must lie in [0, 1), got", lambda: Dropout(RNG, np.nan)),
    ],
)
def test_wrong_parts_raise(error, words, make):
    with pytest.raises(error, match=re.escape(words)):
        make()
