"""Every refusal is one sentence that says what was given and what would do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, masks
from tests.attention.primitives.inputs import DIMS, K, N, S, T, query_key_value

H, Hv = DIMS["Hv"]


def refused(error, words, *shapes, **arguments):
    """What `attend` says to arrays of these shapes: the error, its words, the call."""
    return pytest.param(error, words, shapes, arguments, id=words[0])


FITTING = (T, N, H), (S, K, H), (S, K, Hv)
BATCHED = tuple((2, *shape) for shape in FITTING)
ROWS, COLUMNS = np.arange(T), np.arange(S)
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "error, words, shapes, arguments",
    [
        # Shapes of query, key and value.
        refused(
            ValueError,
            ["query [..., T, N, H] needs at least 3 axes", "(5, 11)"],
            (T, H),
            *FITTING[1:],
        ),
        refused(
            ValueError,
            ["key [..., S, K, H] needs at least 3 axes", "(7, 11)"],
            FITTING[0],
            (S, H),
            FITTING[2],
        ),
        refused(
            ValueError,
            ["value [..., S, K, Hv] needs at least 3 axes", "(13,)"],
            *FITTING[:2],
            (Hv,),
        ),
        refused(
            ValueError,
            ["batch axes differ: (2,) in query but (3,) in key", "got query (2, 5, 6, 11)"],
            (2, *FITTING[0]),
            (3, *FITTING[1]),
            (3, *FITTING[2]),
        ),
        refused(
            ValueError,
            ["batch axes differ: (2,) in query but () in value"],
            (2, *FITTING[0]),
            (2, *FITTING[1]),
            FITTING[2],
        ),
        refused(
            ValueError,
            ["head widths H differ: 11 in query but 12 in key", "value (7, 3, 13)"],
            FITTING[0],
            (S, K, 12),
            FITTING[2],
        ),
        refused(
            ValueError,
            ["key lengths S differ: 7 in key but 8 in value"],
            *FITTING[:2],
            (8, K, Hv),
        ),
        refused(
            ValueError,
            ["numbers of key/value heads K differ: 3 in key but 2 in value"],
            *FITTING[:2],
            (S, 2, Hv),
        ),
        refused(
            ValueError,
            ["6 query heads (axis N) cannot be shared evenly by 4 key/value", "K must divide N"],
            FITTING[0],
            (S, 4, H),
            (S, 4, Hv),
        ),
        refused(
            ValueError,
            ["6 query heads (axis N) cannot be shared evenly by 0 key/value heads"],
            FITTING[0],
            (S, 0, H),
            (S, 0, Hv),
        ),
        # Positions.
        refused(
            TypeError,
            ["positions must be a pair (query_positions, key_positions)"],
            *FITTING,
            positions=ROWS,
        ),
        refused(
            TypeError,
            ["query_positions must be integers, got float32"],
            *FITTING,
            positions=(ROWS.astype(np.float32), COLUMNS),
        ),
        refused(
            TypeError,
            ["key_positions must be integers, got bool"],
            *FITTING,
            positions=(ROWS, COLUMNS > 3),
        ),
        refused(
            ValueError,
            ["query_positions must end in an axis of 5", "got shape (7,)"],
            *FITTING,
            positions=(COLUMNS, COLUMNS),
        ),
        refused(
            ValueError,
            ["key_positions must end in an axis of 7", "got shape ()"],
            *FITTING,
            positions=(ROWS, 3),
        ),
        refused(
            ValueError,
            [
                "query_positions has the leading axes (3,)",
                "not broadcast to the batch axes (2,) of the",
            ],
            *BATCHED,
            positions=(np.zeros((3, T), int), COLUMNS),
        ),
        # Masks.
        refused(
            TypeError,
            [
                "a mask is a masks.Mask or a bool array (True = may attend), got float32",
                "pass mask=array == 0",
                "mask=array.astype(bool)",
            ],
            *FITTING,
            mask=np.zeros((T, S), np.float32),
        ),
        refused(
            TypeError, ["(True = may attend), got int32"], *FITTING, mask=np.ones((T, S), np.int32)
        ),
        refused(
            ValueError,
            ["a mask array has the axes [..., T, S], got shape (7,)"],
            *FITTING,
            mask=np.ones(S, bool),
        ),
        refused(
            ValueError,
            ["the mask describes 7 queries (T), but there are 5"],
            *FITTING,
            mask=np.ones((S, T), bool),
        ),
        refused(
            ValueError,
            ["the mask describes 1 keys (S), but there are 7"],
            *FITTING,
            mask=np.ones((T, 1), bool),
        ),
        refused(
            ValueError,
            ["the mask describes 6 keys (S), but there are 7"],
            *FITTING,
            mask=masks.from_array(np.ones((T, 6), bool)),
        ),
        refused(
            ValueError,
            ["the mask describes 7 queries (T)"],
            *FITTING,
            mask=~masks.lengths(3) & masks.segments(COLUMNS),
        ),
        refused(
            ValueError,
            [
                "5 queries and 7 keys leave open where the queries stand",
                "pass positions=(query_positions, key_positions)",
            ],
            *FITTING,
            mask=masks.lengths(3) | ~masks.window(2),
        ),
        refused(
            ValueError,
            ["mask has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            mask=np.ones((3, T, S), bool),
        ),
        refused(
            ValueError,
            ["mask has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            mask=masks.lengths([1, 2, 3]),
        ),
        refused(
            ValueError,
            ["mask has the leading axes (2,)", "batch axes () of the query"],
            *FITTING,
            mask=masks.lengths([1, 2]),
        ),
        # Dropout and what to return.
        refused(
            ValueError,
            ["dropout.key has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            dropout=Dropout(jax.random.split(KEY, 3), 0.1),
        ),
        refused(
            ValueError,
            ["each name in returning must be one of weights, logsumexp", "got 'scores'"],
            *FITTING,
            returning=("scores",),
        ),
        refused(
            TypeError,
            ["returning takes a collection of names: write ('weights',)"],
            *FITTING,
            returning="weights",
        ),
    ],
)
def test_attend_refuses(error, words, shapes, arguments):
    inputs = [jnp.zeros(shape) for shape in shapes]
    with pytest.raises(error) as caught:
        attend(*inputs, **arguments)
    for part in words:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_attend_refuses_inputs_that_are_not_floats(name, dtype):
    inputs = dict(zip(("query", "key", "value"), query_key_value(), strict=True))
    inputs[name] = jnp.ones(inputs[name].shape, dtype)
    with pytest.raises(TypeError, match=rf"^{name} \[.*must be floating point, got {dtype}"):
        attend(**inputs)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (
            lambda: masks.window(-1),
            ValueError,
            "a window reaches 0 or more positions, got before=-1",
        ),
        (lambda: masks.window(2, -3), ValueError, "got before=2 and after=-3"),
        (lambda: masks.block(0), ValueError, "a block holds at least 1 position, got size=0"),
        (lambda: masks.lengths([1.0, 2.0]), TypeError, "lengths must be integers, got float32"),
        (lambda: masks.prefix(2.5), TypeError, "must be integers, got float32"),
        (
            lambda: masks.segments(3),
            ValueError,
            "query_segments needs at least 1 axis, got shape ()",
        ),
        (
            lambda: masks.segments([0], 3),
            ValueError,
            "key_segments needs at least 1 axis, got shape ()",
        ),
        (lambda: masks.segments([0], [True]), TypeError, "key_segments must be integers, got bool"),
        (lambda: masks.from_array(np.eye(3, dtype=np.float32)), TypeError, "pass mask=array == 0"),
        (lambda: masks.from_array([True]), ValueError, "has the axes [..., T, S], got shape (1,)"),
        (
            lambda: masks.causal() & np.ones((3, 3), bool),
            TypeError,
            "not with ndarray: wrap a bool array in masks.from_array",
        ),
        (lambda: masks.causal() | True, TypeError, "a mask composes with masks, not with bool"),
        (
            lambda: masks.from_function(lambda query, key: query - key)(0, 0),
            TypeError,
            "a mask function must return bool, got int32",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_masks_refuse(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


def test_explicit_positions_lift_the_check_of_the_extent():
    """A mask may describe more than is there: the pairs outside simply do not occur."""
    whole = masks.from_array(np.tril(np.ones((50, 60), bool)))
    output = attend(*query_key_value(), mask=whole, positions=(ROWS + 2, COLUMNS))
    expected = attend(*query_key_value(), mask=masks.causal(), positions=(ROWS + 2, COLUMNS))
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"mask": masks.causal}, "call it if it makes a mask, as in masks.causal()"),
        ({"mask": lambda query, key: query > key}, "wrap a predicate in masks.from_function"),
        ({"mask": "causal"}, "a mask is a masks.Mask or a bool array, got 'causal'"),
        ({"dropout": 0.1}, "dropout must be Dropout(key, rate), got float"),
    ],
)
def test_what_is_no_mask_and_no_dropout_is_named(arguments, words):
    with pytest.raises(TypeError) as caught:
        attend(*query_key_value(), **arguments)
    assert words in str(caught.value)


def test_a_list_is_no_array():
    _, key, value = query_key_value()
    with pytest.raises(TypeError, match="must be an array, got list"):
        attend([[[1.0]]], key, value)


def test_a_scale_is_one_number():
    with pytest.raises(ValueError, match=r"scale is one number for all scores, got shape \(6,\)"):
        attend(*query_key_value(), scale=jnp.ones(N))


def test_and_or_and_not_would_lose_a_mask():
    for compose in (
        lambda: masks.causal() and masks.lengths(3),
        lambda: masks.causal() or masks.lengths(3),
        lambda: not masks.causal(),
    ):
        with pytest.raises(TypeError, match="a mask is neither true nor false"):
            compose()


def test_a_mask_for_a_batch_has_no_one_answer():
    with pytest.raises(ValueError, match=r"this mask is for a batch of \(2,\)"):
        masks.picture(masks.causal() & masks.lengths([2, 3]), 6)
