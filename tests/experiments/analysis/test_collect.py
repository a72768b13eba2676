from types import SimpleNamespace

import jax
import numpy as np
import pytest

from configs import digits, packed_lm, toy_translation
from experiments.analysis.collect import Collector, Example
from experiments.config import Config
from experiments.data.examples import EncodedPair, SentencePair
from experiments.data.packing import pad_batch
from experiments.data.tokenizers import SPECIALS, WORDS, Tokenizers, Vocabulary, WordTokenizer
from experiments.tasks.classification import Classification
from experiments.tasks.language_model import CONTINUED, LanguageModeling
from experiments.tasks.translation import Translation, pair_features


def translation(**fields):
    config = toy_translation.get_config("tiny")
    sizes = {"width": 8, "num_heads": 2, "hidden": 12, "max_length": 9, "encoder_layers": 1}
    config.model.update({**sizes, "decoder_layers": 2, **fields})
    config.batch.bucket_lengths = (6,)
    config.train.warmup_steps = 0
    words = (Vocabulary((*SPECIALS, *letters)) for letters in ("abcdefgh", "vwxyz"))
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


@pytest.fixture(scope="module")
def found(task, state):
    with jax.numpy_dtype_promotion("standard"):
        examples = [task.example(state, *pair) for pair in (("a b c", "v w"), ("c", "x y z"))]
        return [*Collector(task)(state.parameters, examples, batch_size=3)]


def test_labels_of_both_axes(found):
    maps = found[0].maps
    assert {*maps} == {"encoder", "decoder", "cross"}
    assert maps["cross"].keys == maps["encoder"].keys == ["a", "b", "c", "<eos>"]
    assert maps["cross"].queries == ["v", "w", "<eos>"]
    assert maps["decoder"].queries == maps["decoder"].keys == ["<bos>", "v", "w"]
    assert maps["encoder"].weights.shape == (1, 2, 4, 4)  # layers, heads, queries, keys
    assert maps["cross"].weights.shape == (2, 2, 3, 4)


def test_patches_of_an_image():
    config = Config.read(digits.get_config("tiny").to_dict())
    task = Classification(config, Tokenizers(None, None))
    example = task.example(None, np.zeros((4, 6, 1)))
    patches = ["1,1", "1,2", "1,3", "2,1", "2,2", "2,3"]
    begin = ["<class>"] * (config.model.pooling == "class_token")
    assert example.labels["encoder"] == [*begin, *patches]


def test_weights_sum_to_one_without_padding(found):
    for attended in found:
        for maps in attended.maps.values():
            assert maps.weights.shape[-2:] == (len(maps.queries), len(maps.keys))
            np.testing.assert_allclose(maps.weights.sum(axis=-1), 1, rtol=1e-5)


def test_hidden_states_of_every_layer(found):
    assert found[0].hidden_states["encoder"].shape == (2, 4, 8)
    assert found[1].hidden_states["decoder"].shape == (3, 4, 8)


def test_pass_equals_that_of_the_loss(task, state):
    example = task.example(state, "a b c", "v w")
    ids = EncodedPair(
        *(example.inputs[stack][example.text_slice(stack)] for stack in ("encoder", "decoder"))
    )
    batch = pad_batch([ids], 1, 4)

    def logits(model, returning):
        inputs = {"encoder": batch.source, "decoder": batch.target_inputs}
        lengths = {"encoder": batch.source_lengths}
        if returning is None:
            return model.logits(pair_features(model, batch, None).features)
        return task.attended(model, inputs, lengths, returning)["decoder"].logits

    expected, *others = (
        task.learner.apply(lambda model, returning=returning: logits(model, returning))(
            state.parameters
        )
        for returning in (None, ("weights", "hidden_states"))
    )
    for other in others:
        np.testing.assert_array_equal(expected, other)


def test_links_of_words_are_those_of_their_tokens():
    example = Example({}, {}, {}, words={"encoder": [0, 0, 2], "decoder": [0, 1, 1]})
    assert example.token_links([(0, 1), (1, 0), (2, 0)]) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 0)]


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


def test_tokens_that_a_language_model_adds(monkeypatch):
    words = WordTokenizer(Vocabulary((*SPECIALS, *"abc")), WORDS)
    config = Config.read(packed_lm.get_config("tiny").to_dict())
    task = LanguageModeling(config, Tokenizers(words, None))
    monkeypatch.setattr(LanguageModeling, "greedy_ids", lambda _, state, ids, most: [3] * most)
    state = SimpleNamespace(parameters=None)
    example = task.example(state, "b c")
    assert example.labels["decoder"][:4] == ["<bos>", "b", "c", "a"]
    assert example.continuation == len(example.labels["decoder"]) - 3 == CONTINUED
    assert task.example(state, "b c", "").continuation == 0


def test_layers_with_different_numbers_of_heads_are_not_drawn(monkeypatch, capsys):
    """A training ends with the picture: that there is none is no failure."""
    task = translation(encoder_layers=2, per_layer=({}, {"num_heads": 1}))
    monkeypatch.setattr(task, "examples", lambda split: [SentencePair("a b c", "v w")])
    task.artifacts(task.learner.initial_state(), None)
    why = "layers with different numbers of heads have no maps of one shape"
    assert capsys.readouterr().out == f"no picture of the attention: {why}\n"
