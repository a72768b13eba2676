"""Warm start: parameters by path and shape, and folders that contain none."""

import jax
import numpy as np
import pytest
from flax import nnx

from configs import char_lm
from experiments import learner
from experiments.config import Config, load_config
from experiments.config.parts import without_own_fields
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.sharding import compiled
from experiments.trained import parameters_to_start_from
from experiments.workdir import Workdir


def task(tmp_path, **train):
    config = char_lm.get_config("tiny")
    config.train.update({"average": 1, "ema": 0.9, **train})
    return TASKS["language_model"].prepare(Config.read(config.to_dict()), tmp_path)


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


def test_folders_without_a_fitting_model(tmp_path):
    with pytest.raises(UsageError, match="contains neither a trained run nor released weights"):
        parameters_to_start_from(task(tmp_path, start_from=str(tmp_path / "nowhere")), tmp_path)
    other = Workdir(tmp_path / "other")
    other.save_config(load_config("digits:tiny"))
    other.checkpoints.mkdir()
    with pytest.raises(UsageError, match=r"another kind: .* task='classification'"):
        task(tmp_path, start_from=str(other.path))
