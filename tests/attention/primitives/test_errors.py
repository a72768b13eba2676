"""Every error message is one sentence with the given and the expected value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Dropout, attend, block_mask, masks, merge
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
        # Shapes of query, key and value.
        wrong(
            ValueError,
            ["query [..., T, N, H] needs at least 3 axes", "(5, 11)"],
            (T, H),
            *VALID[1:],
        ),
        wrong(
            ValueError,
            ["key [..., S, K, H] needs at least 3 axes", "(7, 11)"],
            VALID[0],
            (S, H),
            VALID[2],
        ),
        wrong(
            ValueError,
            ["value [..., S, K, Hv] needs at least 3 axes", "(13,)"],
            *VALID[:2],
            (Hv,),
        ),
        wrong(
            ValueError,
            ["batch axes differ: (2,) in query but (3,) in key", "got query (2, 5, 6, 11)"],
            (2, *VALID[0]),
            (3, *VALID[1]),
            (3, *VALID[2]),
        ),
        wrong(
            ValueError,
            ["batch axes differ: (2,) in query but () in value"],
            (2, *VALID[0]),
            (2, *VALID[1]),
            VALID[2],
        ),
        wrong(
            ValueError,
            ["head widths H differ: 11 in query but 12 in key", "value (7, 3, 13)"],
            VALID[0],
            (S, K, 12),
            VALID[2],
        ),
        wrong(
            ValueError,
            ["key lengths S differ: 7 in key but 8 in value"],
            *VALID[:2],
            (8, K, Hv),
        ),
        wrong(
            ValueError,
            ["numbers of key/value heads K differ: 3 in key but 2 in value"],
            *VALID[:2],
            (S, 2, Hv),
        ),
        wrong(
            ValueError,
            ["6 query heads (axis N) cannot be shared evenly by 4 key/value", "K must divide N"],
            VALID[0],
            (S, 4, H),
            (S, 4, Hv),
        ),
        wrong(
            ValueError,
            ["6 query heads (axis N) cannot be shared evenly by 0 key/value heads"],
            VALID[0],
            (S, 0, H),
            (S, 0, Hv),
        ),
        # Positions.
        wrong(
            TypeError,
            ["positions must be a pair (query_positions, key_positions)"],
            *VALID,
            positions=ROWS,
        ),
        wrong(
            TypeError,
            ["query_positions must be integers, got float32"],
            *VALID,
            positions=(ROWS.astype(np.float32), COLUMNS),
        ),
        wrong(
            TypeError,
            ["key_positions must be integers, got bool"],
            *VALID,
            positions=(ROWS, COLUMNS > 3),
        ),
        wrong(
            ValueError,
            ["query_positions must end in an axis of 5", "got shape (7,)"],
            *VALID,
            positions=(COLUMNS, COLUMNS),
        ),
        wrong(
            ValueError,
            ["key_positions must end in an axis of 7", "got shape ()"],
            *VALID,
            positions=(ROWS, 3),
        ),
        wrong(
            ValueError,
            [
                "query_positions has the leading axes (3,)",
                "not broadcast to the batch axes (2,) of the",
            ],
            *BATCHED,
            positions=(np.zeros((3, T), int), COLUMNS),
        ),
        # Masks.
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
            ["a mask array has the axes [..., T, S], got shape (7,)"],
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
            ["(6, 5, 7) has the axes [batch, T, S]", "for a mask per head", "pass mask[None]"],
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
            ["the mask describes 7 queries (T)"],
            *VALID,
            mask=~masks.lengths(3) & masks.segments(COLUMNS),
        ),
        wrong(
            ValueError,
            [
                "5 queries and 7 keys do not determine the positions of the queries",
                "pass positions=(query_positions, key_positions)",
            ],
            *VALID,
            mask=masks.lengths(3) | ~masks.window(2),
        ),
        wrong(
            ValueError,
            ["mask has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            mask=np.ones((3, T, S), bool),
        ),
        wrong(
            ValueError,
            ["mask has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            mask=masks.lengths([1, 2, 3]),
        ),
        wrong(
            ValueError,
            ["mask has the leading axes (2,)", "batch axes () of the query"],
            *VALID,
            mask=masks.lengths([1, 2]),
        ),
        # Block masks and tiles.
        wrong(
            ValueError,
            ["this BlockMask is for 5 queries and 8 keys, but there are 5 and 7"],
            *VALID,
            mask=block_mask(masks.lengths(3), T, S + 1, tile_sizes=(2, 2)),
        ),
        wrong(
            ValueError,
            ["this BlockMask has tiles of (2, 2), not (4, 4)"],
            *VALID,
            mask=block_mask(masks.lengths(3), T, S, tile_sizes=(2, 2)),
            tile_sizes=(4, 4),
        ),
        wrong(
            ValueError,
            ["pass positions to block_mask, not to attend"],
            *VALID,
            mask=block_mask(masks.lengths(3), T, S, tile_sizes=(2, 2)),
            positions=(ROWS, COLUMNS),
        ),
        *(
            wrong(
                ValueError,
                [f"two integers of at least 1, got {sizes}", "tile_sizes must be (queries, keys)"],
                *VALID,
                tile_sizes=sizes,
            )
            for sizes in ((0, 8), (8, -1), (8,), 8, (8.0, 8))
        ),
        # Heads, precision and flags.
        wrong(
            ValueError,
            ["heads must end in an axis of 6, got shape (2,)"],
            *VALID,
            heads=np.arange(2),
        ),
        wrong(
            TypeError,
            ["heads must be integers, got float32"],
            *VALID,
            heads=np.ones(N, np.float32),
        ),
        wrong(
            ValueError,
            ["precision must be one of default, high, highest, got 'hihgest'", "did you mean"],
            *VALID,
            precision="hihgest",
        ),
        # Dropout and what to return.
        wrong(
            ValueError,
            ["dropout.rng has the leading axes (3,)", "batch axes (2,) of the query"],
            *BATCHED,
            dropout=Dropout(jax.random.split(RNG, 3), 0.1),
        ),
        wrong(
            ValueError,
            ["each name in returning must be one of weights, logsumexp", "got 'scores'"],
            *VALID,
            returning=("scores",),
        ),
        wrong(
            TypeError,
            ["returning takes a collection of names: write ('weights',)"],
            *VALID,
            returning="weights",
        ),
    ],
)
def test_wrong_arguments_raise(error, words, shapes, arguments):
    inputs = [jnp.zeros(shape) for shape in shapes]
    with pytest.raises(error) as caught:
        attend(*inputs, **arguments)
    for part in words:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_inputs_that_are_not_floats_raise(name, dtype):
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
        (lambda: masks.lengths([1.0, 2.0]), TypeError, "lengths must be integers, got float"),
        (lambda: masks.prefix(2.5), TypeError, "must be integers, got float"),
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
        (
            lambda: masks.cu_seqlens([0, 3], [0, 2, 3]),
            ValueError,
            "2 query_offsets and 3 key_offsets are for different numbers of sequences",
        ),
        (lambda: masks.cu_seqlens(3), ValueError, "query_offsets needs at least 1 axis"),
        (
            lambda: masks.window(2) & masks.cu_seqlens([0, 1, 4], [0, 3, 4]),
            ValueError,
            "pass causal=True to cu_seqlens",
        ),
        (lambda: empty_cache(2, 3, num_kv_heads=1, head_width=2), TypeError, "such as (2,), got 2"),
        (
            lambda: masks.cu_seqlens([0, 5, 3]),
            ValueError,
            "query_offsets are cumulative, so they never decrease, but 3 follows 5",
        ),
        (
            lambda: masks.cu_seqlens([0, 5], np.array([1, 3], np.uint8)),
            ValueError,
            "key_offsets are cumulative, so the first is 0, got 1",
        ),
        (
            lambda: masks.cu_seqlens(jnp.array([[0, 1], [-1, 2]])),
            ValueError,
            "the first is 0, got -1",
        ),
        (
            lambda: masks.cu_seqlens([0]),
            ValueError,
            "query_offsets are the starts of sequences and the last end, so 2 or more, got 1",
        ),
        (lambda: masks.lengths([3, -1]), ValueError, "lengths must be 0 or more, got -1"),
        (
            lambda: masks.lengths(3, query_lengths=jnp.int32(-2)),
            ValueError,
            "query_lengths must be 0 or more, got -2",
        ),
        (lambda: masks.prefix(-1), ValueError, "length must be 0 or more, got -1"),
        (
            lambda: masks.lengths(3, query_lengths=2.5),
            TypeError,
            "query_lengths must be integers, got float",
        ),
        (
            lambda: masks.from_array(np.eye(3, dtype=np.float32)),
            TypeError,
            "pass score=scores.bias_array(array)",
        ),
        (lambda: masks.from_array([True]), ValueError, "has the axes [..., T, S], got shape (1,)"),
        (
            lambda: masks.causal() & np.ones(3, bool),
            ValueError,
            "a mask array has the axes [..., T, S], got shape (3,)",
        ),
        *(
            (
                lambda lengths=lengths: block_mask(masks.causal(), *lengths),
                ValueError,
                f"two integers of at least 1, got {lengths[0]} and {lengths[-1]}",
            )
            for lengths in ((-3,), (6.5,), (T, 0))
        ),
        (
            lambda: masks.causal() | True,
            TypeError,
            "a mask composes with masks and bool arrays, not with bool",
        ),
        (
            lambda: masks.from_function(lambda query, key: query - key),
            TypeError,
            "(query_position, key_position) and must return bool[], got int32[]",
        ),
        (
            lambda: masks.from_function(lambda query, key: jnp.ones(3, bool) & (query == key)),
            TypeError,
            "must return bool[], got bool[3]",
        ),
        (
            lambda: masks.from_function(lambda query, key: query > 3 and key > 3),
            TypeError,
            "as traced numbers, which Python's if, and, or and range(...) do not accept",
        ),
        (
            lambda: masks.from_function(lambda query: query > 3),
            TypeError,
            "a mask function receives (query_position, key_position), and raised: ",
        ),
        (
            lambda: masks.from_function(lambda query, key: query > key, np.ones(3)),
            TypeError,
            "a mask function receives (query_position, key_position, array), and raised: ",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_masks_raise(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)


def test_mask_may_be_larger_than_the_inputs_with_explicit_positions():
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
        ({"dropout": 0.1}, "dropout must be Dropout(rng, rate), got float"),
        ({"dropout": Dropout(None, 0.1)}, "dropout rng must be a jax.random.key, got NoneType"),
        ({"dropout": Dropout(3, 0.1)}, "dropout rng must be a jax.random.key, got int"),
    ],
)
def test_wrong_mask_or_dropout_is_named(arguments, words):
    with pytest.raises(TypeError) as caught:
        attend(*query_key_value(), **arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("rate", ["0.1", None])
def test_dropout_rate_that_is_not_a_number_raises(rate):
    with pytest.raises(TypeError, match="dropout rate must be a Python number"):
        Dropout(RNG, rate)


def test_list_as_query_raises():
    _, key, value = query_key_value()
    with pytest.raises(TypeError, match="must be an array, got list"):
        attend([[[1.0]]], key, value)


def test_scale_with_axes_raises():
    with pytest.raises(ValueError, match=r"scale is one number for all scores, got shape \(6,\)"):
        attend(*query_key_value(), scale=jnp.ones(N))


def test_python_and_or_not_of_masks_raise():
    for compose in (
        lambda: masks.causal() and masks.lengths(3),
        lambda: masks.causal() or masks.lengths(3),
        lambda: not masks.causal(),
    ):
        with pytest.raises(TypeError, match="a mask is neither true nor false"):
            compose()


def test_calling_a_batched_mask_raises():
    with pytest.raises(ValueError, match=r"this mask is for a batch of \(2,\)"):
        masks.picture(masks.causal() & masks.lengths([2, 3]), 6)


def partial(*shape):
    *batch, num_queries, num_heads, _ = shape
    return jnp.zeros(shape), jnp.zeros((*batch, num_heads, num_queries))


@pytest.mark.parametrize(
    "partials",
    [
        [],
        [partial(T, N, Hv), partial(T + 1, N, Hv)],
        [partial(T, N, Hv), partial(2, T, N, Hv)],
        [partial(T, N, Hv), (partial(T, N, Hv)[0], jnp.zeros((T, N)))],
        [(partial(T, N, Hv)[0], jnp.zeros((T, N)))],
        [partial(T, N, Hv)[0]],
        [(partial(T, N, Hv)[0], {"logsumexp": partial(T, N, Hv)[1]})],
    ],
    ids=["none", "lengths", "batch axes", "swapped axes", "one of swapped axes", "array", "dict"],
)
def test_merge_of_partial_results_that_do_not_fit_raises(partials):
    with pytest.raises(ValueError, match="merge takes one or more pairs of output"):
        merge(partials)


def test_block_mask_of_an_array_raises():
    with pytest.raises(TypeError, match=r"mask.*masks\.from_array"):
        block_mask(np.ones((T, S), bool), T, S)


def test_block_mask_of_wrong_lengths_raises():
    with pytest.raises(ValueError, match="the mask describes 7 queries"):
        block_mask(masks.segments(COLUMNS), T, S)
    with pytest.raises(ValueError, match="5 queries and 7 keys do not determine the positions"):
        block_mask(masks.causal(), T, S)
    with pytest.raises(ValueError, match="tile_sizes must be"):
        block_mask(masks.causal(), T, tile_sizes=(0, 2))
