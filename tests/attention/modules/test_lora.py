"""Selecting and freezing parameters by path, and LoRA."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attention.modules import (
    LanguageModel,
    TransformerConfig,
    apply_lora,
    label_parameters,
    linear,
    lora_factors,
    select_parameters,
)
from tests.attention.primitives.inputs import draw, jitted

DIMS = chex.Dimensions(L=2, D=7, N=3, H=5, F=11)
D, N, H = DIMS["DNH"]


class Model(nnx.Module):
    """A residual layer with kernels [D, N, H] and [N, H, D], and one that is stacked twice."""

    def __init__(self, *, rngs):
        self.query = linear({"embed": D}, {"heads": N, "head": H}, rngs=rngs)
        self.output = linear({"heads": N, "head": H}, {"embed": D}, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(D, D, rngs=rngs)])
        metadata = {"axes": ("embed", "hidden"), "num_inputs": 1}
        self.stacked = nnx.Param(draw(DIMS["LDF"], seed=3)[0], **metadata)

    def __call__(self, inputs):
        features = self.layers[0](inputs + self.output(jnp.tanh(self.query(inputs))))
        return features @ self.stacked[0] - features @ self.stacked[1]


LAYERS = ("layers.0", "output", "query")
PATHS = {"stacked", *(f"{layer}.{name}" for layer in LAYERS for name in ("bias", "kernel"))}
INPUTS, TARGETS = draw((13, D), (13, *DIMS["F"]))


@functools.cache
def model():
    return Model(rngs=nnx.Rngs(0))


def all_factors(parameters, rng=0, **options):
    make = functools.partial(lora_factors, parameters, rng=jax.random.key(rng), **options)
    return (
        make("query.kernel", "layers.*.kernel", rank=2, alpha=6.0)
        | make("output.kernel", rank=3)
        | make("stacked", rank=1)
    )


def filled(factors):
    """Return factors whose `up` is not 0."""
    leaves, structure = jax.tree.flatten(factors)
    return structure.unflatten(draw(*(leaf.shape for leaf in leaves), seed=5))


@jitted
def loss(model):
    return jnp.mean(jnp.square(model(INPUTS) - TARGETS))


def changed_paths(before, after):
    before, after = select_parameters(before, "*"), select_parameters(after, "*")
    return {path for path in before if not np.array_equal(before[path], after[path])}


TREES = {
    "model": lambda: model(),
    "state": lambda: nnx.state(model()),
    "dict": lambda: nnx.to_pure_dict(nnx.state(model())),
}
every_tree = pytest.mark.parametrize("tree", TREES)


class TestPaths:
    @every_tree
    def test_paths_are_those_of_the_attributes(self, tree):
        assert set(select_parameters(TREES[tree](), "*")) == PATHS
        selected = select_parameters(TREES[tree](), "*.kernel", "stacked")
        assert set(selected) == {path for path in PATHS if "bias" not in path}
        np.testing.assert_array_equal(selected["query.kernel"], model().query.kernel[...])

    @every_tree
    def test_first_matching_label_decides(self, tree):
        labels = {"query.*": "a", "*.kernel": "b"}
        labels = label_parameters(TREES[tree](), labels, default="default")
        assert isinstance(labels, dict if tree == "dict" else nnx.State)
        assert select_parameters(labels, "*") == dict.fromkeys(PATHS, "default") | {
            **{"query.kernel": "a", "query.bias": "a"},
            **{"output.kernel": "b", "layers.0.kernel": "b"},
        }

    def test_unknown_path_names_the_nearest(self):
        sentence = r"no parameter has a path that matches 'qery.*'; did you mean 'query.kernel'\?"
        with pytest.raises(ValueError, match=sentence):
            select_parameters(model(), "*.bias", "qery.kernel")
        with pytest.raises(ValueError, match=sentence):
            label_parameters(nnx.state(model()), {"qery.kernel": True}, default=False)


def test_only_chosen_parameters_change():
    definition, state = nnx.split(model())
    labels = label_parameters(state, {"output.*": "train"}, default="freeze")
    parts = {"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}
    optimizer = optax.multi_transform(parts, labels)
    gradient = jax.grad(lambda state: loss(nnx.merge(definition, state)))(state)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies numbers of several dtypes
        updates, _ = optimizer.update(gradient, optimizer.init(state), state)
        after = optax.apply_updates(state, updates)
    assert changed_paths(state, after) == {"output.kernel", "output.bias"}
    assert loss(nnx.merge(definition, after)) < loss(model())


class TestLoRA:
    @every_tree
    def test_the_change_is_zero_at_first(self, tree):
        tree = TREES[tree]()
        adapted = apply_lora(tree, all_factors(model()))
        chex.assert_trees_all_equal(adapted, tree)

    def test_the_change_is_the_scaled_product(self):
        factors = filled(all_factors(model()))
        before = select_parameters(model(), "*")
        after = select_parameters(apply_lora(model(), factors), "*")
        assert changed_paths(before, after) == set(factors)
        scales = {"query.kernel": 6 / 2, "layers.0.kernel": 6 / 2, "output.kernel": 1, "stacked": 1}
        for path, scale in scales.items():
            down, up = (np.asarray(a, np.float64) for a in (factors[path].down, factors[path].up))
            expected = before[path] + scale * (down @ up).reshape(before[path].shape)
            np.testing.assert_allclose(after[path], expected, rtol=1e-5, atol=1e-5)

    def test_low_precision_kernels_keep_their_dtype(self):
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model())
        factors = all_factors(half)
        chex.assert_type(jax.tree.leaves(factors), jnp.float32)
        chex.assert_type(jax.tree.leaves(apply_lora(half, filled(factors))), jnp.bfloat16)

    @pytest.mark.parametrize(
        "tree, pattern, rank, sentence",
        [
            ("dict", "output.kernel", 2, r"axes of output.kernel, \(3, 5, 7\), into inputs and"),
            ("model", "query.kernel", 8, "rank of query.kernel must lie in 1 to 7, got 8"),
            ("model", "*.bias", 1, r"no kernel has a path that matches '\*.bias'"),
        ],
    )
    def test_refused_factors(self, tree, pattern, rank, sentence):
        with pytest.raises(ValueError, match=sentence):
            lora_factors(TREES[tree](), pattern, rank=rank, rng=jax.random.key(0))

    def test_all_patterns_of_a_transformer(self):
        """Neither biases, norms nor embeddings get factors."""
        config = TransformerConfig(width=8, num_heads=2, hidden=12, norm="layer", decoder_layers=3)
        build = functools.partial(LanguageModel.from_config, config, vocab_size=5)
        transformer = jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))
        found = lora_factors(transformer, "*", rank=1, rng=jax.random.key(0))
        kernels = set(select_parameters(transformer, "*.kernel"))
        assert set(found) == kernels and len(kernels) == 6

    def test_factors_of_another_model(self):
        factors = all_factors(model())
        with pytest.raises(ValueError, match="no parameter has a path that matches 'other'"):
            apply_lora(model(), {"other": factors["stacked"]})
        with pytest.raises(ValueError, match=r"output.kernel has shape \(3, 5, 7\), its LoRA fac"):
            apply_lora(model(), {"output.kernel": factors["query.kernel"]})  # of the same size
