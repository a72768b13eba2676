import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention.modules import CrossAttention
from experiments.analysis.collect import AttentionMaps
from experiments.analysis.cross_alignment import alignments
from experiments.analysis.value_norms import of_source, value_vectors, weighted_norms


def test_norms_of_weighted_values():
    weights = jnp.array([[[0.5, 0.5]], [[1.0, 0.0]]])  # two heads, one query, two keys
    values = jnp.array([[[3.0, 0], [0, 2]], [[0, 8], [9, 9]]])  # [S, N, D]
    # Key 0: 0.5 (3, 0) + 1 (0, 2); key 1: 0.5 (0, 8).
    np.testing.assert_allclose(weighted_norms(weights, values), [[2.5, 4]])


def test_values_of_any_source_follow_from_those_of_unit_vectors():
    attention = CrossAttention(6, num_heads=2, num_kv_heads=1, rngs=nnx.Rngs(0))
    attention.value.bias[...] = jnp.arange(3.0).reshape(1, 3)
    source = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    unit = np.asarray(value_vectors(attention, jnp.eye(7, 6, -1)))
    expected = value_vectors(attention, jnp.asarray(source))
    np.testing.assert_allclose(of_source(unit, source), expected, atol=1e-5)


def test_words_are_linked_by_weights_and_by_the_norms_of_what_they_add():
    weights = np.array([[[[0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]]])  # one layer and head
    maps = AttentionMaps("cross", [1], weights, ["le", "</s>"], ["the", "girl", "</s>"])
    values = np.array([[[1.0, 0]], [[0, 3]], [[1, 0]]])  # 0.4 · 3 is above 0.6 · 1
    found = alignments(maps, [0, 1], [0], [values])
    links = {
        (method.head, method.measure): each
        for method, each in found.items()
        if (method.reading, method.linked) == ("predicting", "target words")
        and not method.measure.startswith("balanced")
    }
    assert links == {(1, "weights"): {(0, 0)}, (0, "value norms"): {(1, 0)}}
