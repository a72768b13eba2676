"""Keys that were looked at before are as those that are looked at now, and not looked at again."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.primitives.kernels.flash import attend_by_kernel
from attention.primitives.request import checked

from attention import attend, masks
from tests.attention.primitives.inputs import DIMS, POSITIONS, query_key_value

B, S, K = DIMS["BSK"]
QUERY, KEY, VALUE = query_key_value((B,))
VALUE = VALUE[..., : KEY.shape[-1]]
PLACES = [(0, 1, 2), (1, 5, 0)]  # seen by every query, and by some
BROKEN = np.zeros((B, S, K), bool)
BROKEN[tuple(zip(*PLACES, strict=True))] = True
BAD = KEY.at[(*PLACES[0], 3)].set(jnp.nan), VALUE.at[(*PLACES[1], 4)].set(jnp.inf)
MENDED = KEY.at[(*PLACES[0], 3)].set(0), VALUE.at[(*PLACES[1], 4)].set(0)
SETTINGS = {"mask": masks.causal(), "positions": POSITIONS}


def by_kernel(query, key, value, **arguments):
    return attend_by_kernel(checked(query, key, value, **arguments), interpret=True)["output"]


def named(name):
    return lambda *inputs, **arguments: attend(*inputs, implementation=name, **arguments)


@pytest.mark.parametrize(
    "function",
    [*(named(name) for name in ("reference", "tiled", "jax")), by_kernel],
    ids=["reference", "tiled", "jax", "pallas"],
)
def test_marks_say_what_a_nan_says(function):
    marked = function(QUERY, *MENDED, broken=BROKEN, **SETTINGS)
    np.testing.assert_array_equal(marked, function(QUERY, *BAD, **SETTINGS))
    assert jnp.isnan(marked).any() and not jnp.isnan(marked).all()


@pytest.mark.parametrize("name", ["reference", "tiled"])
def test_derivatives_and_statistics_too(name):
    returning = ("weights", "logsumexp", "entropy")

    def everything(key, value, broken):
        output, extras = named(name)(
            QUERY, key, value, broken=broken, returning=returning, **SETTINGS
        )
        return output, extras

    def loss(key, value, broken):
        return sum(jnp.nansum(leaf**2) for leaf in jax.tree.leaves(everything(key, value, broken)))

    chex.assert_trees_all_equal(everything(*MENDED, jnp.asarray(BROKEN)), everything(*BAD, None))
    ours, theirs = (
        jax.grad(loss, (0, 1))(*MENDED, jnp.asarray(BROKEN)),
        jax.grad(loss, (0, 1))(*BAD, None),
    )
    for mine, other in zip(ours, theirs, strict=True):
        seen = jnp.isfinite(BAD[0]) & jnp.isfinite(BAD[1])  # a number that is none has no slope
        np.testing.assert_allclose(jnp.where(seen, mine, 0), jnp.where(seen, other, 0), atol=1e-6)
        assert jnp.isfinite(mine).all() and mine.any()


def test_what_is_vouched_for_is_not_looked_at():
    def looks(broken):
        program = jax.make_jaxpr(lambda *inputs: attend(*inputs, broken=broken, **SETTINGS))
        return str(program(QUERY, KEY, VALUE)).count("is_finite")

    assert looks(None) - looks(BROKEN) == 2  # keys and values


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (BROKEN.astype(int), TypeError, "broken must be bool, True where a key was not finite"),
        (BROKEN[0], ValueError, r"broken must have the shape \(2, 7, 3\) of \[..., S, K\], got"),
    ],
    ids=["numbers", "one row"],
)
def test_marks_that_do_not_fit(broken, error, words):
    with pytest.raises(error, match=words):
        attend(QUERY, KEY, VALUE, broken=broken, **SETTINGS)
