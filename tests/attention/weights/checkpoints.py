"""Checkpoints of the tests, and what Hugging Face computes with them."""

import functools
import json
import shutil
from pathlib import Path

import chex
from flax import nnx
from safetensors.numpy import load_file, save_file

from attention import weights

FOLDER = Path(__file__).parents[2] / "fixtures" / "checkpoints"
FAMILIES = ["gpt2", "llama", "mistral", "qwen2", "bart", "marian", "t5", "t5_v1_1", "bert", "vit"]


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


assert_equal = functools.partial(chex.assert_trees_all_equal, strict=True)


def assert_same(left, right):
    """Compare the parameters of two models by path."""
    assert_equal(nnx.state(left), nnx.state(right))


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
