"""The suite passes what is right, and sees each of many mistakes in the row it belongs to."""

import doctest
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks, testing
from attention.primitives.masks import Mask
from attention.testing import ROWS, check_attention, leaks
from tests.attention.testing import mutants
from tests.attention.testing.mutants import SUPPORTS, mutant

CAUSAL, LENGTHS = type(masks.causal()), type(masks.lengths(1))
SEGMENTS = type(masks.segments([0]))


def failing(report):
    """Name → verdict of the rows that fail."""
    return {row.name: row.verdict for row in report.failed}


def test_attend_keeps_every_promise():
    report = check_attention(attend)
    report.raise_if_failed()
    assert [row.verdict for row in report.rows] == ["pass"] * len(ROWS)
    assert report.ok


def test_numpy_keeps_every_promise_that_it_makes():
    report = check_attention(mutants.attention, SUPPORTS)
    report.raise_if_failed()
    verdicts = {row.name: row.verdict for row in report.rows}
    assert set(verdicts.values()) == {"pass", "not supported"}
    unsupported = {name for name, verdict in verdicts.items() if verdict == "not supported"}
    derivatives = {name for name in ROWS if "gradient" in name or "derivative" in name}
    assert unsupported == derivatives | {"forward mode", "order of operations", "vmap", "float64"}


@pytest.mark.parametrize("dtype, head_width", [("float16", None), ("bfloat16", 8)])
def test_inputs_of_another_dtype_or_width_are_judged_as_such(dtype, head_width):
    def narrow(query, key, value, **arguments):
        assert query.dtype in (jnp.dtype(dtype), jnp.bfloat16, jnp.float16)
        assert head_width is None or query.shape[-1] in (head_width, 16)
        return mutants.attention(query, key, value, **arguments)

    check_attention(narrow, SUPPORTS, dtype=dtype, head_width=head_width).raise_if_failed()


def test_the_examples_in_the_docstrings_are_right():
    for module in (testing, leaks):
        assert doctest.testmod(module).failed == 0


def test_who_claims_less_is_judged_by_less():
    """Only equal heads, widths and lengths, and no argument at all."""

    def plain(query, key, value):
        assert query.shape == key.shape == value.shape
        return mutants.attention(query, key, value)

    report = check_attention(plain, ())
    report.raise_if_failed()
    passed = [row.name for row in report.rows if row.verdict == "pass"]
    assert passed == [
        "shapes and dtypes",
        "values",
        "large scores",
        "batch",
        "unaligned lengths",
    ]


def without_batch(query, key, value, **arguments):
    if query.ndim != 4:
        raise ValueError("query must have 4 axes")
    return mutants.attention(query, key, value, **arguments)


def one_query_sees_all(mask, positions, T, S):
    allowed = mutants.dense(mask, positions, T, S)
    return np.ones_like(allowed) if T == 1 and allowed is not None else allowed


def later_predicate(kind):
    """Queries that believe to stand one position later than they do, under one kind of mask."""

    def dense(mask, positions, T, S):
        if isinstance(mask, kind):
            at = (np.arange(T), np.arange(S)) if positions is None else positions
            positions = np.asarray(at[0]) + 1, at[1]
        return mutants.dense(mask, positions, T, S)

    return dense


def longer_lengths(mask, positions, T, S):
    if isinstance(mask, LENGTHS):
        mask = masks.lengths(mask.lengths + 1)
    return mutants.dense(mask, positions, T, S)


def no_segments(mask, positions, T, S):
    return None if isinstance(mask, SEGMENTS) else mutants.dense(mask, positions, T, S)


def last_tile_unmasked(mask, positions, T, S):
    allowed = mutants.dense(mask, positions, T, S)
    return allowed if allowed is None or S <= 128 else allowed | (np.arange(S) >= 128)


def last_tile_of_predicates_forgotten(mask, positions, T, S):
    allowed = mutants.dense(mask, positions, T, S)
    return allowed & (np.arange(S) < 128) if isinstance(mask, Mask) else allowed


def last_tile_forgotten(exponentials, allowed):
    exponentials = np.where(np.arange(exponentials.shape[-1]) < 128, exponentials, 0)
    return mutants.normalise(exponentials, allowed)


def mean_of_nothing(exponentials, allowed):
    nothing = ~np.broadcast_to(allowed, exponentials.shape).any(axis=-1, keepdims=True)
    weights = mutants.normalise(exponentials, allowed)
    return np.where(nothing, 1 / exponentials.shape[-1], weights)


def matmul(weights, value):
    return np.einsum("...NTS,...SNH->...NTH", weights, value)


def rounded_scores(only):
    def scores(scores, dtype):
        return scores.astype(dtype).astype(float) if dtype == jnp.dtype(only) else scores

    return scores


def more_when_asked(output, dtype, returning):
    return (output * (1 + 2e-7 * len(returning))).astype(dtype)


def times(factor, name):
    return lambda extras: {each: extras[each] * (factor if each == name else 1) for each in extras}


def dropout_by_shape(dropout, N, T, S):
    return mutants.keep(dropout, N, T + S, S)[:, S:]


def dropout_without_growth(dropout, N, T, S):
    return (mutants.keep(dropout, N, T, S) > 0).astype(float)


def dropout_of_heads_alike(dropout, N, T, S):
    return np.broadcast_to(mutants.keep(dropout, N, T, S)[:1], (N, T, S))


def dropout_of_one_key(dropout, N, T, S):
    one = np.random.default_rng(0).random((N, T, S)) >= dropout.rate
    return one / (1 - dropout.rate)


def dropout_of_no_key(random):
    def keep(dropout, N, T, S):
        return (random.random((N, T, S)) >= dropout.rate) / (1 - dropout.rate)

    return keep


MUTANTS = {
    "forgets the scale": (mutant(factor=lambda scale, H: 1.0), "values"),
    "divides by the width": (mutant(factor=lambda scale, H: 1 / H), "values"),
    "drops the argument scale": (mutant(factor=lambda scale, H: H**-0.5), "scale"),
    "subtracts no peak": (
        mutant(exponentials=lambda scores: np.exp(scores.astype(np.float32))),
        "large scores",
    ),
    "groups by remainder": (mutant(kv_head=lambda N, K: np.arange(N) % K), "grouping"),
    "one head for all": (mutant(kv_head=lambda N, K: np.arange(N) * (K == N)), "grouping"),
    "cuts values to the width of keys": (
        lambda query, key, value, **arguments: mutants.attention(
            query, key, value[..., : key.shape[-1]], **arguments
        ),
        "value width",
    ),
    "ignores masks": (mutant(dense=lambda *given: None), "mask"),
    "inverts masks": (
        mutant(dense=lambda *given: None if given[0] is None else ~mutants.dense(*given)),
        "mask",
    ),
    "masks the batch by its first example": (
        mutant(dense=lambda mask, *rest: None if mask is None else mutants.dense(mask, *rest)[:1]),
        "mask",
    ),
    "causal off by one": (mutant(dense=later_predicate(CAUSAL)), "causality"),
    "counts padding short by one": (mutant(dense=longer_lengths), "padding"),
    "ignores segments": (mutant(dense=no_segments), "segments"),
    "ignores positions": (
        mutant(dense=lambda mask, positions, T, S: mutants.dense(mask, None, T, S)),
        "positions",
    ),
    "shows one query everything": (mutant(dense=one_query_sees_all), "cached decoding"),
    "means nothing": (mutant(normalise=mean_of_nothing), "fully masked rows"),
    "multiplies what is hidden by zero": (mutant(weighted_sum=matmul), "masked NaN and infinity"),
    "forgets the last tile": (mutant(normalise=last_tile_forgotten), "unaligned lengths"),
    "unmasks the last tile": (mutant(dense=last_tile_unmasked), "unaligned lengths, masked"),
    "forgets a tile of a predicate": (
        mutant(dense=last_tile_of_predicates_forgotten),
        "predicates at unaligned lengths",
    ),
    "rounds scores to bfloat16": (mutant(scores=rounded_scores("bfloat16")), "bfloat16"),
    "rounds scores to float16": (mutant(scores=rounded_scores("float16")), "float16"),
    "returns float32": (
        mutant(finish=lambda output, dtype, returning: output.astype(np.float32)),
        "shapes and dtypes",
    ),
    "changes when asked": (
        mutant(finish=more_when_asked),
        "returning more",
    ),
    "returns more than asked": (
        mutant(extras=lambda extras: extras | {"scores": np.zeros(1)}),
        "returning more",
    ),
    "doubles the weights": (
        mutant(extras=times(2, "weights")),
        "weights",
    ),
    "logarithm to base two": (
        mutant(extras=times(1 / np.log(2), "logsumexp")),
        "logsumexp",
    ),
    "drops by the shape": (mutant(keep=dropout_by_shape), "dropout: same pairs as attend"),
    "drops without growing": (mutant(keep=dropout_without_growth), "dropout: rate and scale"),
    "drops the same in all heads": (mutant(keep=dropout_of_heads_alike), "dropout: rate and scale"),
    "drops the same for all keys": (mutant(keep=dropout_of_one_key), "dropout: reproducible"),
    "drops differently for one key": (
        mutant(keep=dropout_of_no_key(np.random.default_rng(0))),
        "dropout: reproducible",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_fails_in_its_row(name):
    function, row = MUTANTS[name]
    report = check_attention(function, SUPPORTS)
    assert failing(report) == {row: "fail"}
    assert not report.ok
    assert report[row].example is not None
    assert report[row].detail in str(report)


def test_an_output_of_another_shape_fails_wherever_it_is_looked_at():
    def heads_first(query, key, value, **arguments):
        return np.swapaxes(mutants.attention(query, key, value, **arguments), -3, -2)

    report = check_attention(heads_first, SUPPORTS)
    assert failing(report) == {"shapes and dtypes": "fail", "values": "fail"}
    assert "has shape (1, 1, 2, 1), should be (1, 2, 1, 1)" in report["values"].detail


def test_an_exception_is_an_error_and_not_a_refusal():
    report = check_attention(without_batch, SUPPORTS)
    assert failing(report) == {"shapes and dtypes": "error"}
    assert "ValueError: query must have 4 axes" in report["shapes and dtypes"].detail


def test_a_refusal_is_taken_at_its_word():
    def refusing(query, key, value, **arguments):
        if "dropout" in arguments:
            raise NotImplementedError("no dropout here")
        return mutants.attention(query, key, value, **arguments)

    report = check_attention(refusing, SUPPORTS)
    assert report.ok
    assert report["dropout: rate and scale"].verdict == "not supported"
    assert report["dropout: rate and scale"].detail == "no dropout here"


# What a mistake says, in its smallest example.


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("forgets the scale", {"S": 2, "H": 2}),
        ("ignores masks", {"S": 2}),
        ("groups by remainder", {"N": 4, "K": 2}),
        ("causal off by one", {"T": 2, "S": 2}),
        ("means nothing", {}),
        ("multiplies what is hidden by zero", {"T": 2, "S": 2}),
        ("masks the batch by its first example", {"B": 2, "S": 2}),
    ],
)
def test_the_example_is_as_small_as_can_be(name, sizes):
    function, row = MUTANTS[name]
    example = check_attention(function, SUPPORTS, rows=(row,))[row].example
    expected = dict.fromkeys(("B", "T", "S", "N", "K", "H", "Hv"), 1) | sizes
    assert {axis: getattr(example, axis) for axis in expected} == expected


def test_a_failure_says_where_and_by_how_much():
    function, _ = MUTANTS["causal off by one"]
    row = check_attention(function, SUPPORTS, rows=("causality",))["causality"]
    assert row.detail.startswith(
        "with a mask by predicate, value 1 may not be seen but changes the output: output at "
        "batch 0, query 0, head 0, feature 0 is "
    )
    assert str(row).startswith("fail           causality: with")
    assert str(row).endswith("[B=1 T=2 S=2 N=1 K=1 H=1 Hv=1 float32 seed=0]")


def test_a_failed_report_raises_its_table():
    report = check_attention(MUTANTS["means nothing"][0], SUPPORTS, rows=("values", "fully masked rows"))
    with pytest.raises(AssertionError, match=r"1 pass, 1 fail\npass +values\nfail +empty rows: "):
        report.raise_if_failed()


def test_what_rests_on_a_failure_is_not_judged():
    report = check_attention(MUTANTS["ignores masks"][0], SUPPORTS)
    assert report["mask"].verdict == "fail"
    assert report["causality"].verdict == report["fully masked rows"].verdict == "not judged"
    assert report["causality"].detail == "rests on 'mask'"


def test_what_fails_is_not_asked_for_any_more():
    """The other rows judge the rest."""

    def equal_heads_and_widths(query, key, value, **arguments):
        assert query.shape[-2:] == key.shape[-2:] == value.shape[-2:]
        return mutants.attention(query, key, value, **arguments)

    report = check_attention(equal_heads_and_widths, SUPPORTS)
    assert failing(report) == {"grouping": "error", "value width": "error"}
    assert report["mask"].verdict == report["fully masked rows"].verdict == "pass"


def test_the_same_function_gets_the_same_report():
    check = functools.partial(check_attention, MUTANTS["ignores masks"][0], SUPPORTS)
    assert str(check()) == str(check())


# Rows whose every fault shows in the rows they rest on as well.


def nearer_keys_first(query, key, value, **arguments):
    return mutants.attention(
        query, key + np.arange(key.shape[-3])[:, None, None], value, **arguments
    )


def mixes_the_batch(query, key, value, **arguments):
    return mutants.attention(query, key, value + value.mean(axis=0), **arguments)


@pytest.mark.parametrize(
    "function, row", [(nearer_keys_first, "key order"), (mixes_the_batch, "batch")]
)
def test_a_row_sees_its_fault_alone(function, row):
    assert failing(check_attention(function, SUPPORTS, rows=(row,))) == {row: "fail"}


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"supports": ("gruoped",)}, r"got 'gruoped'; did you mean 'grouped'\?"),
        ({"rows": ("valuse",)}, r"got 'valuse'; did you mean 'values'\?"),
        ({"rows": ()}, "judged by no row"),
        ({"dtype": "int8"}, "dtype must be one of"),
    ],
)
def test_wrong_names_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_attention(mutants.attention, **arguments)
