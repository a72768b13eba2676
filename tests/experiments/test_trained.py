"""`experiments.load_run`: a trained run in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import experiments
from attention.modules import EncoderDecoder
from tests.command_line.command import in_repository, make_untrained

SMALL = {"model.max_length": 16, "batch.bucket_lengths": (16,), "mesh.data": 2}
SENTENCES = ["the girl was happy", "", "the boy was here"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    layers = {"model.encoder_layers": 1, "model.decoder_layers": 1}
    return make_untrained(place, "toy_translation", **SMALL, **layers)


@pytest.fixture(scope="module")
def run(folder):
    with in_repository():
        return experiments.load_run(folder, cache=folder.parent / "cache")


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
    pairs = zip(jax.tree.leaves(loaded), jax.tree.leaves(run.model), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)
