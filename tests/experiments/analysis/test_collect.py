import jax
import numpy as np
import pytest

from configs import toy_translation
from experiments.analysis.collect import Collector
from experiments.config import Config
from experiments.data.packing import pad_batch
from experiments.data.tokenizers import (
    SPECIALS,
    WORDS,
    EncodedPair,
    SentencePair,
    Tokenizers,
    WordTokenizer,
)
from experiments.tasks.translation import Translation, pair_features


def translation(**fields):
    config = toy_translation.get_config("tiny")
    sizes = {"width": 8, "num_heads": 2, "hidden": 12, "max_length": 9, "encoder_layers": 1}
    config.model.update({**sizes, "decoder_layers": 2, **fields})
    config.batch.bucket_lengths = (6,)
    config.train.warmup_steps = 0
    words = ((*SPECIALS, *letters) for letters in ("abcdefgh", "vwxyz"))
    tokenizers = Tokenizers(*(WordTokenizer(each, WORDS) for each in words))
    return Translation(Config.read(config.to_dict()), tokenizers)


@pytest.fixture(scope="module")
def task():
    with jax.numpy_dtype_promotion("standard"):
        return translation()


@pytest.fixture(scope="module")
def state(task):
    with jax.numpy_dtype_promotion("standard"):
        return task.learner.initial_state()


def test_maps_and_hidden_states(task, state):
    examples = [task.example(state, *pair) for pair in (("a b c", "v w"), ("c", "x y z"))]
    results = [*Collector(task)(state.parameters, examples, batch_size=3)]
    maps = results[0].maps
    assert {*maps} == {"encoder", "decoder", "cross"}
    assert maps["cross"].keys == maps["encoder"].keys == ["a", "b", "c", "<eos>"]
    assert maps["cross"].queries == ["v", "w", "<eos>"]
    assert maps["decoder"].queries == maps["decoder"].keys == ["<bos>", "v", "w"]
    assert maps["encoder"].weights.shape == (1, 2, 4, 4)  # layers, heads, queries, keys
    assert maps["cross"].weights.shape == (2, 2, 3, 4)
    for attended in results:
        for kind in attended.maps.values():
            assert kind.weights.shape[-2:] == (len(kind.queries), len(kind.keys))
            np.testing.assert_allclose(kind.weights.sum(axis=-1), 1, rtol=1e-5)
    assert results[0].hidden_states["encoder"].shape == (2, 4, 8)
    assert results[1].hidden_states["decoder"].shape == (3, 4, 8)


def test_pass_equals_that_of_the_loss(task, state):
    example = task.example(state, "a b c", "v w")
    ids = (example.inputs[stack][example.text_slice(stack)] for stack in ("encoder", "decoder"))
    batch = pad_batch([EncodedPair(*ids)], 1, 4)

    @task.learner.apply
    def logits(model):
        inputs = {"encoder": batch.source, "decoder": batch.target_inputs}
        lengths, returning = {"encoder": batch.source_lengths}, ("weights", "hidden_states")
        expected = model.logits(pair_features(model, batch, None).features)
        return expected, task.attended(model, inputs, lengths, returning)["decoder"].logits

    np.testing.assert_array_equal(*logits(state.parameters))


def test_words_of_both_sides(task, state):
    words = task.example(state, "a ?? b", "v w").words
    assert words == {"encoder": [0, 2], "decoder": [0, 1]}


def test_unknown_words_keep_their_labels(task, state):
    example = task.example(state, "a qqq", "v")
    assert example.labels["encoder"] == ["a", "qqq", "<eos>"]
    assert example.unknown == {"encoder": [1], "decoder": []}
    given = task.example(state, "a", "v 😀")
    assert given.labels["decoder"] == ["<bos>", "v", "😀"] and given.predicted[1] == "😀"
    assert given.note == "not in the vocabulary, read as a placeholder: '😀'"


def test_layers_with_different_numbers_of_heads_are_not_drawn(monkeypatch, capsys):
    """A training ends with the picture: that there is none is no failure."""
    task = translation(encoder_layers=2, per_layer=({}, {"num_heads": 1}))
    monkeypatch.setattr(task, "examples", lambda split: [SentencePair("a b c", "v w")])
    task.artifacts(task.learner.initial_state(), None)
    assert capsys.readouterr().out.startswith("no picture of the attention: layers with different")
