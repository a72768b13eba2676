"""Warm start: parameters by path and shape, and folders that contain none."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx

from configs import char_lm
from experiments import learner, warm_start
from experiments.config import Config
from experiments.config.files import load_config
from experiments.config.parts import MeshPart, without_own_fields
from experiments.devices import compiled
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.warm_start import parameters_to_start_from
from experiments.workdir import Workdir


def task(tmp_path, **train):
    config = char_lm.get_config("tiny")
    config.train.update({"average": 1, "ema": 0.9, **train})
    return TASKS["language_model"].prepare(Config.read(config.to_dict()), tmp_path)


def test_a_folder_without_a_model_is_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(UsageError, match="contains neither a trained run nor released weights"):
            parameters_to_start_from(task(tmp_path, start_from=str(tmp_path / name)), tmp_path)


def test_continued_run_reads_its_own_tokenizers(tmp_path, monkeypatch):
    first, run = task(tmp_path), Workdir(tmp_path / "run")
    (run.checkpoints / "20").mkdir(parents=True)
    first.tokenizers.keep(run.path)
    monkeypatch.setattr(type(first), "learn_tokenizers", None)
    config = replace(first.config, train=replace(first.config.train, start_from="moved"))
    again = TASKS["language_model"].prepare(config, tmp_path, run)
    assert again.tokenizers.source.as_bytes() == first.tokenizers.source.as_bytes()


def test_released_weights_replace_all_but_the_excepted_parts(tmp_path, monkeypatch):
    """The average of the parameters starts there too, in memory of its own."""
    from attention.weights import save

    monkeypatch.setattr(learner, "compiled", compiled)  # which gives each part memory of its own
    with jax.numpy_dtype_promotion("standard"):
        first = task(tmp_path)
        saved = first.model(nnx.Rngs(7))
        save(saved, tmp_path / "released", config=without_own_fields(first.config.model))
        options = {"start_from": str(tmp_path / "released"), "start_except": ("embedding",)}
        other = task(tmp_path, **options)
        state = other.learner.initial_state(parameters_to_start_from(other, tmp_path))
    expected = dict(nnx.to_flat_state(nnx.state(saved)))
    for tree in (state.parameters, state.ema):
        for path, variable in nnx.to_flat_state(tree):
            same = np.array_equal(variable[...], expected[path][...])
            assert same == (path[0] != "embedding"), path
    leaves = [*jax.tree.leaves(state.parameters), *jax.tree.leaves(state.ema)]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)


def test_parameters_of_a_run_are_restored_onto_the_mesh_of_the_task(tmp_path, monkeypatch):
    """The other run was trained on eight devices, and there are two."""
    first, run = task(tmp_path), Workdir(tmp_path / "run")
    run.save_config(replace(first.config, mesh=MeshPart(fsdp=8)))
    run.checkpoints.mkdir()
    first.tokenizers.keep(run.path)

    def restore(_, task):
        assert dict(task.learner.mesh.shape) == {"data": 1, "fsdp": 2, "sequence": 1, "tensor": 1}
        state = nnx.state(task.model(nnx.Rngs(7)))
        return SimpleNamespace(state=SimpleNamespace(parameters=state))

    monkeypatch.setattr(warm_start, "restore", restore)
    with jax.numpy_dtype_promotion("standard"):
        other = task(tmp_path, start_from=str(run.path))
        other.config = replace(other.config, mesh=MeshPart(fsdp=2))
        assert parameters_to_start_from(other, tmp_path)


def test_a_run_with_vocabularies_of_another_kind_is_named(tmp_path):
    other = Workdir(tmp_path / "other")
    other.save_config(load_config("digits:tiny"))
    other.checkpoints.mkdir()
    with pytest.raises(UsageError, match=r"another kind: .* task='classification'"):
        task(tmp_path, start_from=str(other.path))
