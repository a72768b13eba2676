import jax
import numpy as np
import pytest

from experiments.data.packing import pad_batch
from experiments.data.tokenizers import EncodedPair, SentencePair
from experiments.tasks.translation import pair_features
from tests.experiments.analysis.page.test_model_data import translation


@pytest.fixture(scope="module")
def task():
    with jax.numpy_dtype_promotion("standard"):
        return translation({})


@pytest.fixture(scope="module")
def state(task):
    with jax.numpy_dtype_promotion("standard"):
        return task.learner.initial_state()


def test_maps_hidden_states_and_logits(task, state):
    pairs = ("the Zoe visits", "un deux"), ("the", "un deux trois")
    examples = [task.example(state, *pair) for pair in pairs]
    first, second = task.collector(state.parameters, examples, batch_size=3)
    maps = first.maps
    assert {*maps} == {"encoder", "decoder", "cross"}
    assert maps["cross"].keys == maps["encoder"].keys == ["the", "Zoe", "visits", "<eos>"]
    assert maps["cross"].queries == ["un", "deux", "<eos>"]
    assert maps["decoder"].queries == maps["decoder"].keys == ["<bos>", "un", "deux"]
    assert maps["encoder"].weights.shape == (1, 2, 4, 4)  # layers, heads, queries, keys
    assert maps["cross"].weights.shape == (2, 2, 3, 4)
    for kind in (*maps.values(), *second.maps.values()):
        assert kind.weights.shape[-2:] == (len(kind.queries), len(kind.keys))
        np.testing.assert_allclose(kind.weights.sum(axis=-1), 1, rtol=1e-5)
    assert first.hidden_states["encoder"].shape == (2, 4, 8)
    assert second.hidden_states["decoder"].shape == (3, 4, 8)
    assert second.logits["decoder"].shape == (12, 7)  # with those of padding


def test_pass_equals_that_of_the_loss(task, state):
    example = task.example(state, "the Zoe visits", "un deux")
    ids = (example.inputs[stack][example.text_slice(stack)] for stack in ("encoder", "decoder"))
    batch = pad_batch([EncodedPair(*ids)], 1, 12)

    def logits(model):
        return model.logits(pair_features(model, batch, None).features)

    (expected,) = task.learner.apply(logits)(state.parameters)
    (seen,) = task.collector(state.parameters, [example])
    np.testing.assert_array_equal(seen.logits["decoder"], expected)


def test_words_and_labels_of_unknown_words(task, state):
    example = task.example(state, "the ;; qqq", "un")
    assert example.words == {"encoder": [0, 2], "decoder": [0]}
    assert example.labels["encoder"] == ["the", "qqq", "<eos>"]
    assert example.unknown == {"encoder": [1], "decoder": []}
    given = task.example(state, "the", "un 😀")
    assert given.labels["decoder"] == ["<bos>", "un", "😀"] and given.predicted[1] == "😀"
    assert given.note == "not in the vocabulary, read as a placeholder: '😀'"


def test_layers_with_different_numbers_of_heads_are_not_drawn(monkeypatch, capsys):
    """A training ends with the picture: that there is none is no failure."""
    task = translation({"encoder_layers": 2, "per_layer": ({}, {"num_heads": 1})})
    monkeypatch.setattr(task, "examples", lambda split: [SentencePair("the Zoe", "un deux")])
    task.artifacts(task.learner.initial_state(), None)
    assert capsys.readouterr().out.startswith("no picture of the attention: layers with different")
