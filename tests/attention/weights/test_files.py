"""Which files `load` reads, and what `save` writes over an earlier checkpoint."""

import json

import numpy as np
import pytest

pytest.importorskip("attention.weights", reason="needs the extra attention[weights]")

from safetensors.numpy import load_file, save_file

from attention import weights
from attention.weights import files
from tests.attention.weights.checkpoints import assert_same, changed_copy, model_of, tensors_of


def test_index_decides_which_copy_of_a_tensor_is_read(tmp_path):
    """Each shard contains stale copies of the tensors of the others."""
    folder = changed_copy("mistral", tmp_path / "stale")
    stale = {name: np.zeros_like(tensor) for name, tensor in tensors_of(folder).items()}
    for path in folder.glob("model-*.safetensors"):
        save_file(stale | load_file(path), path)
    assert_same(weights.load(folder), model_of("mistral"))
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())["weight_map"]
    del index["model.norm.weight"]
    path.write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ValueError, match=r"contains the tensor 'model.norm.weight' twice"):
        weights.load(folder)


def test_single_file_is_read_in_place_of_shards(tmp_path):
    folder = changed_copy("mistral", tmp_path / "both")
    tensors = {name: tensor + 1 for name, tensor in tensors_of(folder).items()}
    save_file(tensors, folder / "model.safetensors")
    read = weights.load(folder).embedding.tokens[...]
    np.testing.assert_array_equal(read, model_of("mistral").embedding.tokens[...] + 1)


def test_layers_of_different_dtypes_share_the_wider_one(tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"

    def rounded(dtype):
        return lambda all_: all_ | {name: all_[name].astype(np.float16).astype(dtype)}

    dtypes = "float16", "float32"
    copies = [changed_copy("llama", tmp_path / each, tensors=rounded(each)) for each in dtypes]
    assert_same(*map(weights.load, copies))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_failed_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    weights.save(model_of("llama"), tmp_path, max_bytes=10_000)
    before = contents(tmp_path)
    save_file, calls = files.save_file, []
    with pytest.raises(ValueError, match="max_bytes must be an integer, got '5GB'"):
        weights.save(model_of("gpt2"), tmp_path / "not made", max_bytes="5GB")

    def full_disk(*arguments, **options):
        calls.append(None)
        if len(calls) == 2:
            raise OSError("no space left on device")
        save_file(*arguments, **options)

    monkeypatch.setattr(files, "save_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        weights.save(model_of("gpt2"), tmp_path, max_bytes=10_000)
    assert contents(tmp_path) == before


def test_only_files_of_the_earlier_checkpoint_are_deleted(tmp_path):
    weights.save(model_of("llama"), tmp_path, max_bytes=10_000)
    others = {"model_step100.safetensors", "model-best.safetensors", "model.safetensors.bak"}
    for name in others:
        (tmp_path / name).write_bytes(b"of the user")
    weights.save(model_of("gpt2"), tmp_path)
    assert set(contents(tmp_path)) == {"config.json", "model.safetensors", *others}
    assert {(tmp_path / name).read_bytes() for name in others} == {b"of the user"}
    weights.load(tmp_path)
