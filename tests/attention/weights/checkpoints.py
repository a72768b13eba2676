"""Checkpoints of the tests, and what Hugging Face computes with them."""

import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from attention import weights

FOLDER = Path(__file__).parents[2] / "fixtures" / "checkpoints"
FAMILIES = (
    *("gpt2", "llama", "mistral", "qwen2"),
    *("bart", "marian", "t5", "t5_v1_1"),
    *("bert", "vit"),
)


@functools.cache
def model_of(name):
    return weights.load(FOLDER / name)


def expected_of(name):
    return load_file(FOLDER / name / "expected.safetensors")


def tensors_of(folder):
    """Return all tensors of a checkpoint, of all its files."""
    found = {}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        found |= load_file(path)
    return found


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def assert_equal_models(left, right):
    """Compare the parameters by path."""
    left, right = (nnx.split(model)[1] for model in (left, right))
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(one, other)


def changed_copy(name, folder, *, tensors=None, **settings):
    """Copy a checkpoint, with other tensors and other fields of config.json; `...` deletes one."""
    shutil.copytree(FOLDER / name, folder)
    content = json.loads((folder / "config.json").read_text()) | settings
    content = {name: value for name, value in content.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))
    if tensors is not None:
        path = folder / "model.safetensors"
        save_file(tensors(load_file(path)), path)
    return folder


def without(name):
    return lambda tensors: {each: value for each, value in tensors.items() if each != name}
