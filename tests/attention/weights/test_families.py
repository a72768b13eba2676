"""Checkpoints of Hugging Face: equal logits, equal continuations, and the same files again."""

import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

pytest.importorskip("safetensors", reason="needs the extra attention[weights]")
pytest.importorskip("tokenizers", reason="needs the extra attention[weights]")

from attention import weights
from attention.decoding import generate
from attention.modules import Layers, unstack_layers
from attention.primitives import masks
from tests.attention.primitives.inputs import jitted
from tests.attention.weights.checkpoints import (
    FAMILIES,
    FOLDER,
    assert_equal,
    assert_equal_models,
    changed_copy,
    expected_of,
    model_of,
    tensors_of,
)

# Relative to the largest logit; the float32 logits of Hugging Face differ from its own float64
# logits by up to 1e-6.
TOLERANCE = 1e-5


def logits_and_valid(model, given):
    """Return logits and, for each position, whether it is valid."""
    if "pixels" in given:
        logits = model(jnp.moveaxis(given["pixels"], 1, -1)).logits
        return logits, jnp.ones(logits.shape[:1], bool)
    mask = masks.lengths(given["lengths"])
    valid = jnp.arange(given["ids"].shape[1])[None] < given["lengths"][:, None]
    if "target" in given:
        output = model(given["ids"], given["target"], source_mask=mask, encoder_mask=mask)
        return output.logits, jnp.ones(given["target"].shape, bool)
    if "segments" in given:
        return model(given["ids"], mask=mask, token_types=given["segments"]).logits, valid
    return model(given["ids"]).logits, valid


run = jitted(logits_and_valid)


def assert_close(model, given):
    """Compare the logits at valid positions with those of Hugging Face."""
    logits, valid = run(model, given)
    assert logits.shape == given["logits"].shape
    wanted = np.asarray(given["logits"])[valid]
    difference = np.abs(np.asarray(logits, wanted.dtype)[valid] - wanted).max()
    assert difference < TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_hugging_face(name):
    assert_close(model_of(name), expected_of(name))


# The other families differ from these in what a cache does not change: "bart" has the positions of
# "gpt2" and the layers of "marian".
@pytest.mark.parametrize("name", ["gpt2", "mistral", "marian", "t5"])
def test_cached_greedy_continuation_equals_hugging_face(name):
    given, model = expected_of(name), model_of(name)
    output = generate(
        model,
        given["ids"],
        lengths=given["lengths"],
        max_tokens=given["greedy"].shape[1],
        start=model.source.settings.get("decoder_start_token_id"),
    )
    np.testing.assert_array_equal(output.tokens, given["greedy"])


@pytest.mark.parametrize("name", FAMILIES)
def test_export_of_an_import_is_the_same_checkpoint(name, tmp_path):
    weights.save(model_of(name), tmp_path)
    assert_equal(tensors_of(tmp_path), tensors_of(FOLDER / name))
    config, original = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path, FOLDER / name)
    )
    assert config == original
    again = weights.load(tmp_path)
    assert jax.tree.structure(again) == jax.tree.structure(model_of(name))
    assert_equal_models(again, model_of(name))


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_export_does_not_depend_on_how_layers_are_stacked(name, tmp_path):
    weights.save(unstack_layers(model_of(name)), tmp_path / "unstacked")
    weights.save(weights.load(FOLDER / name, scan=False), tmp_path / "never_stacked")
    for folder in tmp_path.iterdir():
        assert_equal(tensors_of(folder), tensors_of(FOLDER / name))


def test_export_in_several_files(tmp_path):
    weights.save(model_of("llama"), tmp_path, max_bytes=10_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    original = tensors_of(FOLDER / "llama")
    assert set(index["weight_map"]) == set(original)
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in original.values())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files == sorted(set(index["weight_map"].values()))
    assert_equal(tensors_of(tmp_path), original)
    weights.save(weights.load(tmp_path), tmp_path)  # in one file, in place of several
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_are_cast_while_loading(dtype, tmp_path):
    model = weights.load(FOLDER / "llama", param_dtype=dtype)
    leaves, originals = jax.tree.leaves(model), jax.tree.leaves(model_of("llama"))
    for ours, original in zip(leaves, originals, strict=True):
        np.testing.assert_array_equal(ours, np.asarray(original).astype(dtype), strict=True)
    weights.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == jnp.dtype(dtype).name
    loaded = weights.load(tmp_path)  # in the dtype of the file
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("name", ["llama", "t5", "bert", "vit"])
def test_computation_in_bfloat16_with_parameters_in_float32(name):
    model, given = weights.load(FOLDER / name, dtype="bfloat16"), expected_of(name)
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    logits = jax.eval_shape(logits_and_valid, model, given)[0]
    assert (logits.shape, logits.dtype) == (given["logits"].shape, jnp.bfloat16)


def test_gradients_change_what_is_exported(tmp_path):
    model = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(1), model_of("gpt2"))
    weights.save(model, tmp_path)
    for name, tensor in tensors_of(FOLDER / "gpt2").items():
        np.testing.assert_array_equal(tensors_of(tmp_path)[name], tensor + 1)


def test_options_change_the_config():
    model = weights.load(FOLDER / "mistral", scan=False)
    (layers,) = (part for _, part in nnx.iter_modules(model) if isinstance(part, Layers))
    assert layers.period == layers.n
    apart = unstack_layers(model_of("mistral"))
    chex.assert_trees_all_equal(jax.tree.leaves(model), jax.tree.leaves(apart))


def test_fields_of_older_versions_of_transformers(tmp_path):
    """Rotary positions in two fields."""
    old = {"rope_theta": 100.0, "rope_scaling": {"rope_type": "llama3", "factor": 4.0}}
    old["rope_scaling"] |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old["rope_scaling"]["original_max_position_embeddings"] = 32
    folder = changed_copy("llama", tmp_path / "llama", rope_parameters=None, **old)
    assert_close(weights.load(folder), expected_of("llama"))
    mixed = {"rope_theta": 100.0, "rope_parameters": old["rope_scaling"]}
    folder = changed_copy("llama", tmp_path / "mixed", **mixed)
    assert_close(weights.load(folder), expected_of("llama"))


def without_prefix(tensors):
    """Names without a prefix, a mask, and a copy of the tied table."""
    named = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    mask = np.ones((1, 1, 32, 32), np.float32)
    return named | {"h.0.attn.bias": mask, "lm_head.weight": tensors["transformer.wte.weight"]}


def with_pooler(tensors):
    """Names of TensorFlow for the norms, and a pooler."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {re.sub("LayerNorm.*", lambda m: names[m[0]], n): t for n, t in tensors.items()}
    return renamed | {"bert.pooler.dense.bias": np.zeros(12, np.float32)}


@pytest.mark.parametrize("name, tensors", [("gpt2", without_prefix), ("bert", with_pooler)])
def test_tensors_of_older_versions_of_transformers(name, tensors, tmp_path):
    folder = changed_copy(name, tmp_path / name, tensors=tensors)
    assert_equal_models(weights.load(folder), model_of(name))


def test_output_bias_that_is_missing_is_zero(tmp_path):
    def without_bias(tensors):
        return {name: value for name, value in tensors.items() if name != "final_logits_bias"}

    folder = changed_copy("bart", tmp_path / "bart", tensors=without_bias)
    np.testing.assert_array_equal(weights.load(folder).target_embedding.bias[...], 0)
