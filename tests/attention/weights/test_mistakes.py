"""Bad checkpoints are refused in one sentence, before a tensor is read."""

import json
import pickle

import numpy as np
import pytest
from flax import nnx

pytest.importorskip("safetensors", reason="needs the extra attention[weights]")
pytest.importorskip("tokenizers", reason="needs the extra attention[weights]")

from attention import weights
from attention.modules import LanguageModel, TransformerConfig
from tests.attention.modules.inputs import filled
from tests.attention.weights.checkpoints import FOLDER, changed_copy, model_of

NORM = "transformer.h.1.ln_2.weight"


def without(name):
    return lambda tensors: {each: value for each, value in tensors.items() if each != name}


QUERIES = "transformer.h.0.attn.c_attn.weight"
MORE = "transformer.h.2.ln_2.weight"
TENSORS = {
    f"the gpt2 checkpoint lacks the tensor '{NORM}'$": without(NORM),
    "lacks the tensor 'transformer.h.0.attn.c_attn.bias' and 27 more$": lambda tensors: {},
    f"contains the tensor '{MORE}', which a model .* does not have$": lambda tensors: (
        tensors | {MORE: tensors[NORM]}
    ),
    rf"the tensor '{NORM}' .* has shape \(15,\), .* needs \(16,\)$": lambda tensors: (
        tensors | {NORM: np.ones(15, np.float32)}
    ),
    rf"the tensor '{QUERIES}' .* has shape \(48, 16\), .* needs \(16, 48\)$": lambda tensors: (
        tensors | {QUERIES: np.ones((48, 16), np.float32)}
    ),
}


@pytest.mark.parametrize("words", TENSORS)
def test_tensors_that_do_not_fit(words, tmp_path):
    folder = changed_copy("gpt2", tmp_path / "bad", tensors=TENSORS[words])
    with pytest.raises(ValueError, match=words):
        weights.load(folder)


@pytest.mark.parametrize(
    "name, settings, words",
    [
        ("gpt2", {"model_type": "mamba"}, "must be one of gpt2, llama, .* got 'mamba'"),
        ("gpt2", {"model_type": "gpt"}, "did you mean 'gpt2'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "True is not supported"),
        ("gpt2", {"activation_function": "mish"}, "activation_function must be one of relu"),
        ("gpt2", {"n_embd": 20}, "the config needs"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True is not supported: it must be False"),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be one of default"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "of a llama .* lacks 'factor'"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "lacks 'low_freq_factor'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "be 1.0"),
        ("bart", {"decoder_ffn_dim": 7}, "equal encoder_ffn_dim and decoder_ffn_dim, got 20 and 7"),
        ("t5", {"tie_word_embeddings": False}, "must have tie_word_embeddings=True"),
        ("bert", {"position_embedding_type": "relative_key"}, "it must be 'absolute'"),
    ],
)
def test_config_that_is_not_supported(name, settings, words, tmp_path):
    folder = changed_copy(name, tmp_path / "bad", **settings)
    with pytest.raises(ValueError, match=words):
        weights.load(folder)


def test_options_that_are_not_supported():
    with pytest.raises(ValueError, match=r"got 'drpout'; did you mean 'dropout'\?"):
        weights.load(FOLDER / "gpt2", drpout=0.7)
    with pytest.raises(ValueError, match=r"model= is used as it is: it takes no dropout, nonsense"):
        weights.load(FOLDER / "gpt2", model=model_of("gpt2"), dropout=0.7, nonsense=3)


def language_model(**fields):
    config = TransformerConfig(
        width=16, num_heads=4, hidden=24, positions="learned", max_length=32, **fields
    )
    return filled(lambda: LanguageModel.from_config(config, vocab_size=53, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"gated": True}, "the model has the parameter 'decoder.layers.0.feed_forward.*gate"),
        ({"use_bias": False}, "contains the tensor '.*bias' .*, which the model= does not have"),
        ({"decoder_layers": 3}, "lacks the tensor 'transformer.h.2.*, which the model= needs"),
        ({}, r"the tensor '.*' of the gpt2 checkpoint has shape .*, and the model needs \("),
    ],
)
def test_model_of_another_structure(fields, words):
    with pytest.raises(ValueError, match=words):
        weights.load(FOLDER / "gpt2", model=nnx.eval_shape(lambda: language_model(**fields)))


def test_field_that_is_missing(tmp_path):
    folder = changed_copy("gpt2", tmp_path / "bad")
    settings = json.loads((folder / "config.json").read_text())
    del settings["n_layer"]
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"config.json of a gpt2 checkpoint lacks 'n_layer'"):
        weights.load(folder)


def test_name_that_is_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a folder: .* of the families gpt2, llama"):
        weights.load(tmp_path / "gpt2")


def test_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"contains no config.json"):
        weights.load(tmp_path)
    folder = changed_copy("gpt2", tmp_path / "bad")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"model.safetensors is not a safetensors file"):
        weights.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"contains no model.safetensors or"):
        weights.load(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="must contain a JSON object, got list"):
        weights.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        weights.load(folder)


def test_shard_that_is_missing_or_elsewhere(tmp_path):
    folder = changed_copy("mistral", tmp_path / "bad")
    shards = sorted(folder.glob("model-*.safetensors"))
    shards[1].unlink()
    with pytest.raises(FileNotFoundError, match=f"contains no {shards[1].name}"):
        weights.load(folder)
    index = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="which is not in its folder"):
        weights.load(folder)


class Explosion:
    def __reduce__(self):
        return pytest.fail, ("code of a checkpoint was run",)


def test_pickles_and_code_are_not_read(tmp_path):
    folder = changed_copy("gpt2", tmp_path / "bad", auto_map={"AutoModel": "modeling.Model"})
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Explosion()))
    weights.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="files in other formats are not read"):
        weights.load(folder)


def test_model_that_does_not_fit_the_layout(tmp_path):
    settings = json.loads((FOLDER / "gpt2" / "config.json").read_text())
    with pytest.raises(ValueError, match="unlike the gpt2 config"):
        weights.save(model_of("llama"), tmp_path, config=settings)
    with pytest.raises(ValueError, match="activation of the model is 'gelu', and the gpt2 config"):
        weights.save(model_of("gpt2"), tmp_path, config=settings | {"activation_function": "relu"})
    assert list(tmp_path.iterdir()) == []
