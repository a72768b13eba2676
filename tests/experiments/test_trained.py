"""`experiments.load_run`: a trained run in Python, and the warm start from one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import experiments
from attention.modules import EncoderDecoder
from configs import char_lm
from experiments import learner
from experiments.config import Config, load_config
from experiments.config.parts import without_own_fields
from experiments.errors import UsageError
from experiments.registry import TASKS
from experiments.sharding import compiled
from experiments.trained import parameters_to_start_from
from experiments.workdir import Workdir
from tests.command_line.command import in_repository, make_untrained

SMALL = {"model.max_length": 16, "batch.bucket_lengths": (16,), "mesh.data": 2}
SENTENCES = ["the girl was happy", "", "the boy was here"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    layers = {"model.encoder_layers": 1, "model.decoder_layers": 1}
    folder = make_untrained(place, "toy_translation", **SMALL, **layers)
    with in_repository():
        return experiments.load_run(folder, cache=place / "cache")


def test_run_translates_as_prediction_does(run):
    translations = run.translate(SENTENCES)
    expected = ["".join(each.text) for each in run.task.predict(run.state, SENTENCES)]
    assert translations == expected and translations[1] == ""
    with pytest.raises(ValueError, match=r"line 2: the line has 16 tokens, and the model reads"):
        run.answer([SENTENCES[0], "the " * 16])


def test_model_of_a_run_is_called_with_tokens(run):
    assert isinstance(run.model, EncoderDecoder)
    assert run.config.model.max_length == 16
    source = jnp.asarray([run.tokenizers.source.encode(SENTENCES[0])])
    logits = run.model(source, source[:, :2]).logits
    assert logits.shape == (1, 2, len(run.tokenizers.target))


def test_saved_run_is_a_checkpoint(run, tmp_path):
    weights = pytest.importorskip("attention.weights")
    run.save(tmp_path)
    loaded = weights.load(tmp_path)
    assert type(loaded) is EncoderDecoder
    chex.assert_trees_all_equal(nnx.state(loaded), nnx.state(run.model))


def task(tmp_path, **train):
    config = char_lm.get_config("tiny")
    config.train.update({"average": 1, "ema": 0.9, **train})
    return TASKS["language_model"].prepare(Config.read(config.to_dict()), tmp_path)


def test_released_weights_replace_all_but_the_excepted_parts(tmp_path, monkeypatch):
    """The average of the parameters starts there too, in memory of its own."""
    from attention.weights import save

    monkeypatch.setattr(learner, "compiled", compiled)  # which gives each part memory of its own
    first = task(tmp_path)
    saved = first.model(nnx.Rngs(7))
    save(saved, tmp_path / "released", config=without_own_fields(first.config.model))
    options = {"start_from": str(tmp_path / "released"), "start_except": ("embedding",)}
    other = task(tmp_path, **options)
    arrays = parameters_to_start_from(other, tmp_path)
    state = other.learner.initial_state().with_arrays(arrays)
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
    with pytest.raises(UsageError, match="no part 'embeding'; did you mean 'embedding'"):
        parameters_to_start_from(task(tmp_path, start_from="a", start_except=("embeding",)), "")
    other = Workdir(tmp_path / "other")
    other.save_config(load_config("digits:tiny"))
    other.checkpoints.mkdir()
    with pytest.raises(UsageError, match=r"another kind: .* task='classification'"):
        task(tmp_path, start_from=str(other.path))
