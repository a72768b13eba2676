"""Two tables and a scalar product."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention.modules import SkipGram
from tests.attention.modules.inputs import filled

V, D = 7, 3


def test_a_score_is_the_product_of_a_centre_and_a_neighbour():
    model = filled(lambda: SkipGram(V, D, rngs=nnx.Rngs(0)))
    centers, neighbours = np.asarray(model.centers[...]), np.asarray(model.neighbours[...])
    center, others = jnp.array([2, 6]), jnp.array([[1, 2, 0, 5], [6, 6, 3, 4]])
    expected = np.einsum("bd,bmd->bm", centers[center], neighbours[others])
    np.testing.assert_allclose(model(center, others), expected, rtol=1e-5)
    np.testing.assert_allclose(model(center[1], others[1]), expected[1], rtol=1e-5)


def test_a_word_that_is_none_scores_nan():
    model = filled(lambda: SkipGram(V, D, rngs=nnx.Rngs(0)))
    scores = model(jnp.array([0, V]), jnp.array([[1, -1], [1, 2]]))
    assert np.isnan(scores).tolist() == [[False, True], [True, True]]
