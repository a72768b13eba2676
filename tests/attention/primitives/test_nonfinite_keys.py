"""`nonfinite_keys`: flags give the same results as the NaN they replace, without another check."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import attend, masks
from tests.attention.primitives.inputs import (
    DIMS,
    POSITIONS,
    changed,
    jitted,
    query_key_value,
)

B, S, K = DIMS["BSK"]
QUERY, KEY, VALUE = query_key_value((B,))
VALUE = VALUE[..., : KEY.shape[-1]]
PLACES = [(0, 1, 2), (1, 5, 0)]  # visible to every query, and to some
FLAGS = np.zeros((B, S, K), bool)
FLAGS[tuple(zip(*PLACES, strict=True))] = True
BAD = changed(KEY, (*PLACES[0], 3), np.nan), changed(VALUE, (*PLACES[1], 4), np.inf)
FINITE = changed(KEY, (*PLACES[0], 3), 0), changed(VALUE, (*PLACES[1], 4), 0)
SETTINGS = {"mask": masks.causal(), "positions": POSITIONS}


@pytest.mark.parametrize("name", ["reference", "tiled", "jax"])
def test_nonfinite_flags_match_nan_values(name):
    flagged = attend(QUERY, *FINITE, nonfinite_keys=FLAGS, implementation=name, **SETTINGS)
    np.testing.assert_array_equal(flagged, attend(QUERY, *BAD, implementation=name, **SETTINGS))
    assert np.isnan(flagged).any() and not np.isnan(flagged).all()


@pytest.mark.parametrize("name", ["reference", "tiled"])
def test_derivatives_and_statistics_match_nan_values(name):
    returning = ("weights", "logsumexp", "entropy")

    def everything(key, value, flags):
        return attend(
            QUERY,
            key,
            value,
            nonfinite_keys=flags,
            returning=returning,
            implementation=name,
            **SETTINGS,
        )

    def loss(key, value, flags):
        return sum(jnp.nansum(leaf**2) for leaf in jax.tree.leaves(everything(key, value, flags)))

    run = jitted(everything)
    chex.assert_trees_all_equal(run(*FINITE, FLAGS), run(*BAD, None))
    gradient = jitted(jax.grad(loss, (0, 1)))
    ours, theirs = gradient(*FINITE, FLAGS), gradient(*BAD, None)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
        # One example and head of each kind: NaN reaches the keys of the same head only.
        assert np.isnan(mine[0, 1, 2]).all() and np.isnan(mine[1, 5, 0]).all()
        assert np.isfinite(mine[0, :, :2]).all() and np.isfinite(mine[1, :, 1:]).all()


def test_flagged_keys_are_not_checked():
    def checked_lengths(flags):
        """Whether an axis of S is checked, for each check for finite numbers."""
        program = jax.make_jaxpr(lambda *inputs: attend(*inputs, nonfinite_keys=flags, **SETTINGS))
        shapes = re.findall(r"bool\[([\d,]+)\] = is_finite", str(program(QUERY, KEY, VALUE)))
        return [str(S) in shape.split(",") for shape in shapes]

    assert any(checked_lengths(None))
    assert not any(checked_lengths(FLAGS))


@pytest.mark.parametrize(
    ("flags", "given"),
    [(FLAGS.astype(int), r"int32 \(2, 7, 3\)"), (FLAGS[0], r"bool \(7, 3\)")],
    ids=["numbers", "one row"],
)
def test_flags_of_another_shape_or_dtype(flags, given):
    sentence = r"nonfinite_keys must be bool of shape \(2, 7, 3\) for \[..., S, K\], got " + given
    with pytest.raises(ValueError, match=sentence):
        attend(QUERY, KEY, VALUE, nonfinite_keys=flags, **SETTINGS)
