"""Bad checkpoints are refused in one sentence, before a tensor is read."""

import json

import numpy as np
import pytest
from flax import nnx

pytest.importorskip("attention.weights", reason="needs the extra attention[weights]")

from attention import weights
from attention.modules import LanguageModel, TransformerConfig
from tests.attention.modules.inputs import filled
from tests.attention.weights.checkpoints import FOLDER, changed_copy, model_of, without

NORM = "transformer.h.1.ln_2.weight"
MORE = "transformer.h.2.ln_2.weight"


def added(name, tensor):
    return lambda tensors: tensors | {name: tensor}


TENSORS = {
    f"the gpt2 checkpoint lacks the tensor '{NORM}', which a LanguageModel .* needs$": without(
        NORM
    ),
    "lacks the tensor '.*', which .* its config.json needs; 27 more": lambda tensors: {},
    f"contains the tensor '{MORE}', which .* its config.json does not use$": added(
        MORE, np.ones(16)
    ),
    rf"contains '{NORM}' with shape \(15,\), .* needs \(16,\)$": added(NORM, np.ones(15)),
    f"'{NORM}' with dtype I8: quantized checkpoints": added(NORM, np.ones(16, np.int8)),
    f"contains the tensor '{NORM}' twice$": added(NORM.removeprefix("transformer."), np.ones(16)),
}


@pytest.mark.parametrize("words", TENSORS)
def test_tensors_that_do_not_fit(words, tmp_path):
    folder = changed_copy("gpt2", tmp_path / "bad", tensors=TENSORS[words])
    with pytest.raises(ValueError, match=words):
        weights.load(folder)


@pytest.mark.parametrize(
    "name, settings, words",
    [
        ("gpt2", {"model_type": "gpt"}, "must be one of gpt2, llama, .* did you mean 'gpt2'"),
        ("gpt2", {"model_type": ...}, r"lacks 'model_type', .* experiments.load_run\(folder\)"),
        ("gpt2", {"n_layer": ...}, "config.json of a gpt2 checkpoint lacks 'n_layer'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "True is not supported"),
        ("gpt2", {"n_embd": 20}, "its config.json needs"),
        ("vit", {"patch_size": [2, 2]}, "config.json describes no vit model"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True is not supported: it must be False"),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "'yarn' is not supported: released"),
        ("llama", {"rope_scaling": {"type": "yarn"}}, "'yarn' is not supported: released"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type must be one of"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "of a llama .* lacks 'factor'"),
        ("llama", {"rope_parameters": {"low_freq_factor": 2}}, "low_freq_factor=2 is not"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "fields of rope_parameters must be"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "be 1.0"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types=.* is not supported"),
        ("qwen2", {"use_sliding_window": 1, "sliding_window": 3, "layer_types": ["a"]}, "2 times"),
        ("bart", {"decoder_ffn_dim": 7}, "decoder_ffn_dim=7 is not supported: it must be 20"),
        ("t5", {"tie_word_embeddings": False}, "scale_decoder_outputs=True is not supported"),
        ("t5", {"is_gated_act": True}, "is_gated_act=True is not supported"),
        ("t5", {"dense_act_fn": "mish"}, "dense_act_fn must be one of relu"),
        ("bert", {"position_embedding_type": "relative_key"}, "it must be 'absolute'"),
    ],
)
def test_config_that_is_not_supported(name, settings, words, tmp_path):
    folder = changed_copy(name, tmp_path / "bad", **settings)
    with pytest.raises(ValueError, match=words):
        weights.load(folder)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"drpout": 0.7}, r"load has no option 'drpout'; did you mean 'dropout'\?"),
        ({"dtype": "bf16"}, "dtype must be a floating dtype, such as 'bfloat16', got 'bf16'"),
        ({"param_dtype": "int8"}, "param_dtype must be a floating dtype"),
        ({"model": ..., "dropout": 0.7}, "model= is used as it is: it takes no dropout"),
    ],
)
def test_options_that_are_not_supported(options, words):
    with pytest.raises(ValueError, match=words):
        weights.load(FOLDER / "gpt2", **options)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"gated": True}, "the model has the parameter 'decoder.layers.0.feed_forward.*gate"),
        ({"decoder_layers": 3}, "lacks the tensor 'transformer.h.2.*, which model= needs"),
        ({"hidden": 24}, r"contains '.*' with shape .*, and model= needs \("),
    ],
)
def test_model_of_another_structure(fields, words):
    sizes = {"width": 16, "num_heads": 4, "hidden": 40, "max_length": 32} | fields
    config = TransformerConfig(positions="learned", **sizes)
    make = lambda: LanguageModel.from_config(config, vocab_size=53, rngs=nnx.Rngs(0))  # noqa: E731 - short
    with pytest.raises(ValueError, match=words):
        weights.load(FOLDER / "gpt2", model=nnx.eval_shape(lambda: filled(make)))


def test_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a folder: .* of the families gpt2, llama"):
        weights.load(tmp_path / "gpt2")
    with pytest.raises(FileNotFoundError, match=r"contains no config.json"):
        weights.load(tmp_path)
    folder = changed_copy("gpt2", tmp_path / "bad", auto_map={"AutoModel": "modeling.Model"})
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")
    weights.load(folder)  # neither of these
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"model.safetensors is not a safetensors file"):
        weights.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors or .* formats are not read"):
        weights.load(folder)
    for text, words in (("[1]", "must contain a JSON object, got list"), ("{", "is not JSON")):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=words):
            weights.load(folder)


@pytest.mark.parametrize(
    "error, index, words",
    [
        (ValueError, {"weight_map": {"a": 3}}, "must map names of tensors to names of files"),
        (ValueError, {"weight_map": {"a": "../model.safetensors"}}, "which is not in its folder"),
        (FileNotFoundError, {"weight_map": {"a": "b.safetensors"}}, "contains no b.safetensors"),
    ],
)
def test_index_that_is_damaged(error, index, words, tmp_path):
    folder = changed_copy("mistral", tmp_path / "bad")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(error, match=words):
        weights.load(folder)


def test_model_that_does_not_fit_the_layout(tmp_path):
    settings = json.loads((FOLDER / "gpt2" / "config.json").read_text())
    with pytest.raises(ValueError, match="activation of the model is 'gelu', and the gpt2 config"):
        weights.save(model_of("gpt2"), tmp_path, config=settings | {"activation_function": "relu"})
    assert list(tmp_path.iterdir()) == []
