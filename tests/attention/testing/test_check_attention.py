"""`check_attention` passes correct functions, and each mutant fails in exactly one row."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks
from attention.primitives.masks import Mask
from attention.testing import ROWS, check_attention
from tests.attention.testing import mutants
from tests.attention.testing.mutants import SUPPORTS, mutant


def failing(report):
    """Return name → verdict of the failed rows."""
    return {row.name: row.verdict for row in report.failed}


def test_attend_passes_every_row():
    """Those of unaligned lengths are about tiles: test_conformance.py checks them for "tiled"."""
    rows = [row for row in ROWS if "unaligned" not in row]
    report = check_attention(attend, rows=rows)
    report.raise_if_failed()
    assert [(row.name, row.verdict) for row in report.rows] == [(row, "pass") for row in rows]


@pytest.mark.parametrize("dtype, head_width", [("float16", None), ("bfloat16", 8)])
def test_dtype_and_head_width_of_the_inputs(dtype, head_width):
    def narrow(query, key, value, **arguments):
        assert query.dtype in (jnp.dtype(dtype), jnp.bfloat16, jnp.float16)
        assert head_width is None or query.shape[-1] in (head_width, 16)
        return mutants.attention(query, key, value, **arguments)

    check_attention(narrow, SUPPORTS, dtype=dtype, head_width=head_width).raise_if_failed()


def test_a_function_without_capabilities():
    """Inputs have equal heads, widths and lengths, and there are no further arguments."""

    def plain(query, key, value):
        assert query.shape == key.shape == value.shape
        return mutants.attention(query, key, value)

    report = check_attention(plain, ())
    report.raise_if_failed()
    passed = [row.name for row in report.rows if row.verdict == "pass"]
    assert passed == ["shapes and dtypes", "values", "large scores", "batch", "unaligned lengths"]


def mixes_two_batch_axes(output, dtype, returning):
    if output.ndim > 4:
        output = np.swapaxes(output.reshape(*output.shape[1::-1], *output.shape[2:]), 0, 1)
    return mutants.finish(output, dtype, returning)


def reverses_without_a_batch(output, dtype, returning):
    return mutants.finish(output if output.ndim > 3 else output[::-1], dtype, returning)


def masked(change):
    """Change the bool array of each mask: `change(allowed [..., T, S], mask, positions)`."""

    def dense(mask, positions, T, S):
        allowed = mutants.dense(mask, positions, T, S)
        return None if allowed is None else change(allowed, mask, positions)

    return mutant(dense=dense)


def negative_positions_visible(allowed, mask, positions):
    return allowed if positions is None else allowed | (np.asarray(positions[1]) < 0)[..., None, :]


def last_tile(allowed):
    return np.arange(allowed.shape[-1]) >= 128


def later_queries_if_causal(mask, positions, T, S):
    if isinstance(mask, masks.Window) and mask.before is None:
        queries, keys = (np.arange(T), np.arange(S)) if positions is None else positions
        positions = np.asarray(queries) + 1, keys
    return mutants.dense(mask, positions, T, S)


def longer_lengths(mask, positions, T, S):
    if isinstance(mask, masks.Lengths):
        mask = masks.lengths(mask.lengths + 1)
    return mutants.dense(mask, positions, T, S)


def no_segments(mask, positions, T, S):
    return None if isinstance(mask, masks.Segments) else mutants.dense(mask, positions, T, S)


def last_tile_omitted(exponentials, allowed):
    exponentials = np.where(np.arange(exponentials.shape[-1]) < 128, exponentials, 0)
    return mutants.normalise(exponentials, allowed)


def mean_in_fully_masked_rows(exponentials, allowed):
    masked = ~np.broadcast_to(allowed, exponentials.shape).any(axis=-1, keepdims=True)
    weights = mutants.normalise(exponentials, allowed)
    return np.where(masked, 1 / exponentials.shape[-1], weights)


def matmul(weights, value, dtype):
    return np.einsum("...NTS,...SNH->...NTH", weights, value)


def narrow_sums(only):
    """Accumulate the weighted sum of many values in a low precision."""

    def weighted_sum(weights, value, dtype):
        if dtype.name != only or weights.shape[-1] < 1024:
            return mutants.weighted_sum(weights, value, dtype)
        total = np.zeros((*weights.shape[:-1], value.shape[-1]), dtype)
        for weight, row in zip(np.moveaxis(weights, -1, 0), np.moveaxis(value, -3, 0), strict=True):
            total += (weight[..., None] * row[..., None, :]).astype(dtype)
        return total.astype(float)

    return weighted_sum


def rounded_scores(only):
    def scores(scores, dtype):
        return scores.astype(dtype).astype(float) if dtype.name == only else scores

    return scores


def more_when_returning(output, dtype, returning):
    return (output * (1 + 2e-7 * len(returning))).astype(dtype)


def times(factor, name):
    return lambda extras: {each: extras[each] * (factor if each == name else 1) for each in extras}


def dropout_by_shape(dropout, N, T, S):
    return mutants.keep(dropout, N, T + S, S)[:, S:]


def dropout_without_scaling(dropout, N, T, S):
    return (mutants.keep(dropout, N, T, S) > 0).astype(float)


def dropout_equal_in_all_heads(dropout, N, T, S):
    return np.broadcast_to(mutants.keep(dropout, N, T, S)[:1], (N, T, S))


def random_dropout(generator):
    def keep(dropout, N, T, S):
        return (generator().random((N, T, S)) >= dropout.rate) / (1 - dropout.rate)

    return keep


RANDOM = np.random.default_rng(0)
MUTANTS = {
    "omits the scale": (mutant(factor=lambda scale, H: 1.0), "values"),
    "ignores the argument scale": (mutant(factor=lambda scale, H: H**-0.5), "scale"),
    "does not subtract the maximum": (
        mutant(exponentials=lambda scores: np.exp(scores.astype(np.float32))), "large scores",
    ),
    "groups heads by remainder": (mutant(kv_head=lambda N, K: np.arange(N) % K), "grouping"),
    "cuts values to the width of keys": (
        lambda query, key, value, **arguments: mutants.attention(
            query, key, value[..., : key.shape[-1]], **arguments
        ),
        "value width",
    ),
    "ignores masks": (mutant(dense=lambda *given: None), "mask"),
    "masks the batch by its first example": (masked(lambda allowed, *_: allowed[:1]), "mask"),
    "mixes two batch axes": (mutant(finish=mixes_two_batch_axes), "batch"),
    "reverses queries without a batch axis": (mutant(finish=reverses_without_a_batch), "batch"),
    "causal off by one": (mutant(dense=later_queries_if_causal), "causality"),
    "attends to one padded key": (mutant(dense=longer_lengths), "padding"),
    "ignores segments": (mutant(dense=no_segments), "segments"),
    "ignores positions": (
        mutant(dense=lambda mask, positions, T, S: mutants.dense(mask, None, T, S)), "positions",
    ),
    "ignores the mask of a single query": (
        masked(lambda allowed, *_: allowed | (allowed.shape[-2] == 1)), "cached decoding",
    ),
    "mean in fully masked rows": (mutant(normalise=mean_in_fully_masked_rows), "fully masked rows"),
    "finite logsumexp of fully masked rows": (
        mutant(extras=lambda extras: {name: np.maximum(x, -1e30) for name, x in extras.items()}),
        "fully masked rows",
    ),
    "replaces NaN weights by zero": (
        mutant(normalise=lambda *given: np.nan_to_num(mutants.normalise(*given))), "visible NaN",
    ),
    "shows negative positions": (masked(negative_positions_visible), "left padding"),
    "sums in bfloat16": (mutant(weighted_sum=narrow_sums("bfloat16")), "bfloat16: long sums"),
    "sums in float16": (mutant(weighted_sum=narrow_sums("float16")), "float16: long sums"),
    "multiplies masked values by zero": (mutant(weighted_sum=matmul), "masked NaN and infinity"),
    "omits the last tile": (mutant(normalise=last_tile_omitted), "unaligned lengths"),
    "unmasks the last tile": (
        masked(lambda allowed, *_: allowed | last_tile(allowed)), "unaligned lengths, masked",
    ),
    "masks the last tile of a predicate": (
        masked(lambda allowed, mask, _: allowed & ~(isinstance(mask, Mask) & last_tile(allowed))),
        "predicates at unaligned lengths",
    ),
    "rounds scores to bfloat16": (mutant(scores=rounded_scores("bfloat16")), "bfloat16"),
    "rounds scores to float16": (mutant(scores=rounded_scores("float16")), "float16"),
    "returns float32": (
        mutant(finish=lambda output, dtype, returning: output.astype(np.float32)),
        "shapes and dtypes",
    ),
    "changes the output when returning more": (
        mutant(finish=more_when_returning), "returning more",
    ),
    "returns an extra entry": (
        mutant(extras=lambda extras: extras | {"scores": np.zeros(1)}), "returning more",
    ),
    "doubles the weights": (mutant(extras=times(2, "weights")), "weights"),
    "logarithm to base two": (mutant(extras=times(1 / np.log(2), "logsumexp")), "logsumexp"),
    "drops by shape": (mutant(keep=dropout_by_shape), "dropout: same pairs as attend"),
    "drops without scaling": (mutant(keep=dropout_without_scaling), "dropout: rate and scale"),
    "drops equally in all heads": (
        mutant(keep=dropout_equal_in_all_heads), "dropout: rate and scale",
    ),
    "drops equally for all keys": (
        mutant(keep=random_dropout(lambda: np.random.default_rng(0))), "dropout: reproducible",
    ),
    "drops at random for one key": (
        mutant(keep=random_dropout(lambda: RANDOM)), "dropout: reproducible",
    ),
    "drops by index": (
        mutant(at_positions=lambda factor, *positions: factor), "dropout: same pairs as attend",
    ),
    "returns weights after dropout": (
        mutant(returned=lambda weights, kept: kept), "dropout: returned weights",
    ),
}  # fmt: skip


# Sizes of the smallest failing example; the others are 1.
MINIMAL = {
    "omits the scale": {"S": 2, "H": 2},
    "ignores masks": {"S": 2},
    "groups heads by remainder": {"N": 4, "K": 2},
    "causal off by one": {"T": 2, "S": 2},
    "mean in fully masked rows": {},
    "multiplies masked values by zero": {"T": 2, "S": 2},
    "masks the batch by its first example": {"B": 2, "S": 2},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_fails_in_one_row_with_a_minimal_example(name):
    function, row = MUTANTS[name]
    report = check_attention(function, SUPPORTS)
    assert failing(report) == {row: "fail"}
    assert not report.ok
    assert report[row].detail in str(report)
    axes = "B", "T", "S", "N", "K", "H", "Hv"
    sizes = {axis: size for axis in axes if (size := getattr(report[row].example, axis)) > 1}
    assert sizes == MINIMAL.get(name, sizes)


@pytest.mark.parametrize(
    "error, verdict", [(NotImplementedError, "not supported"), (ValueError, "error")]
)
def test_a_function_that_refuses_other_batch_axes(error, verdict):
    def one_batch_axis(query, key, value, **arguments):
        if query.ndim != 4:
            raise error("query must have 4 axes\nand has others")
        return mutants.attention(query, key, value, **arguments)

    report = check_attention(one_batch_axis, SUPPORTS)
    assert report["batch"].verdict == verdict
    assert report["batch"].detail.endswith("query must have 4 axes")
    assert set(failing(report)) <= {"batch"}


def test_a_failure_contains_index_size_and_example():
    function, _ = MUTANTS["causal off by one"]
    report = check_attention(function, SUPPORTS, rows=("values", "causality"))
    assert report["causality"].detail.startswith(
        "mask 'causality' as a predicate: value 1 is masked but changes the output: output at "
        "batch 0, query 0, head 0, feature 0 is "
    )
    assert str(report).endswith("[B=1 T=2 S=2 N=1 K=1 H=1 Hv=1 float32 seed=0]")
    with pytest.raises(
        AssertionError, match=r"1 pass, 1 fail\npass +values\nfail +causality: mask"
    ):
        report.raise_if_failed()


def test_rows_that_depend_on_a_failed_row_are_skipped():
    report = check_attention(MUTANTS["ignores masks"][0], SUPPORTS)
    assert report["mask"].verdict == "fail"
    assert report["causality"].verdict == report["fully masked rows"].verdict == "skipped"
    assert report["causality"].detail == "'mask' failed"


def test_a_failed_capability_is_not_used_in_later_rows():
    def equal_heads_and_widths(query, key, value, **arguments):
        assert query.shape[-2:] == key.shape[-2:] == value.shape[-2:]
        return mutants.attention(query, key, value, **arguments)

    report = check_attention(equal_heads_and_widths, SUPPORTS)
    assert failing(report) == {"grouping": "error", "value width": "error"}
    assert report["mask"].verdict == report["fully masked rows"].verdict == "pass"


def test_reports_are_deterministic():
    check = functools.partial(check_attention, MUTANTS["ignores masks"][0], SUPPORTS)
    assert str(check()) == str(check())


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"supports": ("gruoped",)}, r"got 'gruoped'; did you mean 'grouped'\?"),
        ({"rows": ()}, "rows is empty"),
        ({"dtype": "int8"}, "dtype must be one of"),
    ],
)
def test_unknown_names_raise(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_attention(mutants.attention, **arguments)
