"""Answers of encoders, with their candidates; the models are replaced by their probabilities."""

from types import SimpleNamespace

import numpy as np
import pytest

from configs import masked_lm, sentiment
from experiments.config import Config
from experiments.data.examples import SentencePair
from experiments.data.tokenizers import (
    SPACED,
    SPECIALS,
    WHOLE,
    Tokenizers,
    Vocabulary,
    WordTokenizer,
)
from experiments.tasks.classification import Classification
from experiments.tasks.masked_language_model import MaskedLanguageModeling

STATE = SimpleNamespace(parameters=None)


def words(text, tokens=SPACED):
    return WordTokenizer(Vocabulary((*SPECIALS, *text.split())), tokens)


def test_words_that_fill_gaps():
    config = Config.read(masked_lm.get_config("tiny").to_dict())
    task = MaskedLanguageModeling(config, Tokenizers(words("the cat dog"), None))

    def fill(parameters, tokens, lengths):
        ranks = np.broadcast_to(np.array([2, 1]), (*tokens.shape, 2))
        return np.where(ranks == 2, 0.75, 0.25), ranks

    task.__dict__["_fill"] = fill
    found = [*task.encoder_predictions(STATE, ["the _ the _", "the cat"])]
    candidates = [("dog", 0.75), ("cat", 0.25)]
    assert [*found[0].text] == ["the dog the dog"]
    assert found[0].choices == [(1, candidates), (3, candidates)]
    assert ([*found[1].text], found[1].choices) == (["the cat"], [])


def test_sample_of_a_long_sentence_is_an_error_message(monkeypatch):
    config = Config.read(masked_lm.get_config("tiny").to_dict())
    task = MaskedLanguageModeling(config, Tokenizers(words("the cat dog"), None))
    monkeypatch.setattr(task, "examples", lambda _: [SentencePair("the cat " * 20)])
    assert "the line has 40 tokens, and the model reads at most 23 (was the)" in task.sample(STATE)


@pytest.mark.parametrize(("pooling", "place"), [("class_token", 0), ("mean", None)])
def test_probabilities_of_classes(pooling, place):
    config = sentiment.get_config("tiny")
    config.model.pooling = pooling
    tokenizers = Tokenizers(words("the food is"), words("blame praise", WHOLE))
    task = Classification(Config.read(config.to_dict()), tokenizers)
    task.__dict__["_probabilities"] = lambda parameters, inputs, lengths: np.tile(
        [0.25, 0.75], (len(inputs), 1)
    )
    (found,) = task.encoder_predictions(STATE, ["the food"])
    assert found.choices == [(place, [("praise", 0.75), ("blame", 0.25)])]
    assert found.details()["probabilities"] == {"praise": 0.75, "blame": 0.25}
