"""Answers of encoders, with their candidates; the models are replaced by their probabilities."""

from types import SimpleNamespace

import numpy as np
import pytest

from configs import masked_lm, sentiment
from experiments.config import Config
from experiments.data.tokenizers import (
    SPACED,
    SPECIALS,
    WHOLE,
    SentencePair,
    Tokenizers,
    Vocabulary,
    WordTokenizer,
)
from experiments.tasks.classification import Classification
from experiments.tasks.masked_language_model import MaskedLanguageModeling

STATE = SimpleNamespace(parameters=None)


def words(text, tokens=SPACED):
    return WordTokenizer(Vocabulary((*SPECIALS, *text.split())), tokens)


@pytest.fixture
def masked():
    config = Config.read(masked_lm.get_config("tiny").to_dict())
    return MaskedLanguageModeling(config, Tokenizers(words("the cat dog"), None))


def test_words_that_fill_gaps(masked):
    def fill(parameters, tokens, lengths):
        ranks = np.broadcast_to(np.array([2, 1]), (*tokens.shape, 2))
        return np.where(ranks == 2, 0.75, 0.25), ranks

    masked.__dict__["_fill"] = fill
    filled, plain = masked.predict(STATE, ["the _ the _", "the cat"])
    candidates = [("dog", 0.75), ("cat", 0.25)]
    assert [*filled.text] == ["the dog the dog"]
    assert filled.choices == [(1, candidates), (3, candidates)]
    assert plain.error.startswith("the line has no gap")


def test_sample_of_sentences_that_cannot_be_read(masked, monkeypatch):
    texts = "", "the cat " * 20
    monkeypatch.setattr(masked, "examples", lambda _: [*map(SentencePair, texts)])
    (_, answer) = masked.sample(STATE).splitlines()
    assert "the line has 40 tokens, and the model reads at most 23 (was the)" in answer


@pytest.mark.parametrize(("pooling", "place"), [("class_token", 0), ("mean", None)])
def test_probabilities_of_classes(pooling, place):
    config = sentiment.get_config("tiny")
    config.model.pooling = pooling
    tokenizers = Tokenizers(words("the food is"), words("blame praise", WHOLE))
    task = Classification(Config.read(config.to_dict()), tokenizers)
    task.__dict__["_probabilities"] = lambda parameters, inputs, lengths: np.tile(
        [0.25, 0.75], (len(inputs), 1)
    )
    (answer,) = task.predict(STATE, ["the food"])
    assert answer.choices == [(place, [("praise", 0.75), ("blame", 0.25)])]
    assert answer.details()["probabilities"] == {"praise": 0.75, "blame": 0.25}
