"""Checkpoints of Hugging Face: equal logits, equal continuations, and the same files again."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("attention.weights", reason="needs the extra attention[weights]")

from safetensors.numpy import load_file

from attention import weights
from attention.decoding import generate
from attention.primitives import masks
from tests.attention.primitives.inputs import jitted
from tests.attention.weights.checkpoints import (
    FAMILIES,
    FOLDER,
    assert_equal,
    assert_same,
    changed_copy,
    expected_of,
    model_of,
    tensors_of,
    without,
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
    again = weights.load(tmp_path)
    assert again.source == model_of(name).source  # config.json
    assert jax.tree.structure(again) == jax.tree.structure(model_of(name))
    assert_same(again, model_of(name))


def test_export_in_several_files(tmp_path):
    weights.save(model_of("llama"), tmp_path, max_bytes=10_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    original = tensors_of(FOLDER / "llama")
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in original.values())
    files = {path.name: [*load_file(path)] for path in tmp_path.glob("*.safetensors")}
    assert len(files) > 2
    assert index["weight_map"] == {name: file for file, names in files.items() for name in names}
    assert_equal(tensors_of(tmp_path), original)


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


def test_rotary_fields_of_older_versions_of_transformers(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 32}
    for name in ("rope_scaling", "rope_parameters"):
        fields = {"rope_parameters": None, "rope_theta": 100.0, name: scaling}
        folder = changed_copy("llama", tmp_path / name, **fields)
        assert_close(weights.load(folder), expected_of("llama"))


def without_prefix(tensors):
    """Names without a prefix, a mask, and a copy of the tied table."""
    named = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    mask = np.ones((1, 1, 32, 32), np.float32)
    return named | {"h.0.attn.bias": mask, "lm_head.weight": tensors["transformer.wte.weight"]}


def with_pooler(tensors):
    """Names of TensorFlow for the norms, and a pooler."""
    renamed = {n.replace("Norm.weight", "Norm.gamma"): each for n, each in tensors.items()}
    renamed = {n.replace("Norm.bias", "Norm.beta"): each for n, each in renamed.items()}
    return renamed | {"bert.pooler.dense.bias": np.zeros(12, np.float32)}


@pytest.mark.parametrize("name, tensors", [("gpt2", without_prefix), ("bert", with_pooler)])
def test_tensors_of_older_versions_of_transformers(name, tensors, tmp_path):
    folder = changed_copy(name, tmp_path / name, tensors=tensors)
    assert_same(weights.load(folder), model_of(name))


def test_output_bias_that_is_missing_is_zero(tmp_path):
    folder = changed_copy("bart", tmp_path / "bart", tensors=without("final_logits_bias"))
    np.testing.assert_array_equal(weights.load(folder).target_embedding.bias[...], 0)


@pytest.mark.parametrize(
    "name, original, copy",
    [
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("qwen2", "model.embed_tokens.weight", "lm_head.weight"),
        ("bart", "model.shared.weight", "model.encoder.embed_tokens.weight"),
        ("t5", "shared.weight", "lm_head.weight"),
        ("bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("bert", "cls.predictions.bias", "cls.predictions.decoder.bias"),
    ],
)
def test_copies_of_tied_tensors(name, original, copy, tmp_path):
    """An equal copy may be there, or be all that is there; another one is an error."""
    both = changed_copy(name, tmp_path / "both", tensors=lambda t: t | {copy: t[original]})
    alone = changed_copy(
        name, tmp_path / "alone", tensors=lambda t: without(original)(t) | {copy: t[original]}
    )
    for folder in (both, alone):
        assert_same(weights.load(folder), model_of(name))
    other = changed_copy(name, tmp_path / "other", tensors=lambda t: t | {copy: t[original] + 1})
    with pytest.raises(ValueError, match=f"different tensors '{original}' and '{copy}'"):
        weights.load(other)


@pytest.mark.parametrize("has_both", [True, False])
def test_bert_with_an_untied_output(has_both, tmp_path):
    """The bias beside the output is used; an older checkpoint has the other one alone."""
    output, bias = "cls.predictions.decoder", "cls.predictions.bias"

    def untied(tensors):
        tensors = tensors | {f"{output}.weight": tensors["bert.embeddings.word_embeddings.weight"]}
        if has_both:
            tensors |= {f"{output}.bias": tensors[bias], bias: np.zeros_like(tensors[bias])}
        return tensors

    folder = changed_copy("bert", tmp_path / "in", tensors=untied, tie_word_embeddings=False)
    model = weights.load(folder)
    assert_close(model, expected_of("bert"))
    weights.save(model, tmp_path / "out")
    original = tensors_of(FOLDER / "bert")[bias]
    np.testing.assert_array_equal(tensors_of(tmp_path / "out")[f"{output}.bias"], original)


QWEN = {"use_sliding_window": True, "sliding_window": ..., "max_window_layers": 1}
LAYERS = ["sliding_attention", "full_attention"]
WINDOWS = ({"window": None}, {"window": 4095})


@pytest.mark.parametrize(
    "name, settings, field, value",
    [
        ("t5", {"dense_act_fn": "silu"}, "activation", "silu"),
        ("mistral", {"sliding_window": ...}, "per_layer", ({"window": 4095},) * 2),
        ("mistral", {"sliding_window": None}, "per_layer", ()),
        ("qwen2", QWEN | {"layer_types": ...}, "per_layer", WINDOWS),
        ("qwen2", QWEN | {"layer_types": LAYERS}, "per_layer", WINDOWS[::-1]),
    ],
)
def test_fields_of_config_json(name, settings, field, value, tmp_path):
    folder = changed_copy(name, tmp_path / name, **settings)
    content = weights.Settings(json.loads((folder / "config.json").read_text()))
    assert getattr(weights.FAMILIES[name].config(content), field) == value
