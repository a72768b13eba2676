"""Perplexity of tokens and of words, by hand."""

import numpy as np
import pytest

from configs import toy_translation
from experiments.config import Config
from experiments.data.tokenizers import (
    SPECIALS,
    WORDS,
    EncodedExamples,
    EncodedPair,
    SentencePair,
    Tokenizers,
    Vocabulary,
    WordTokenizer,
)
from experiments.tasks.translation import Translation

PAIRS = [SentencePair("a b", "b"), SentencePair("b", "a b")]


@pytest.mark.parametrize(
    ("letters", "nll", "expected"),
    [
        (1, np.log(4), {"perplexity": 4}),  # every token is a word
        # 3·3 tokens + 2 EOS, 3 words + 2 EOS
        (3, np.log(4), {"perplexity": 4, "word_perplexity": 4 ** (11 / 5)}),
        (12, 100.0, {"perplexity": np.exp(100)}),  # e ** (100 * 38 / 5) is more than a float holds
        (1, 710.0, {}),
    ],
)
def test_word_perplexity_counts_words(letters, nll, expected, monkeypatch):
    config = Config.read(toy_translation.get_config("tiny").to_dict())
    words = WordTokenizer(Vocabulary((*SPECIALS, "a", "b")), WORDS)
    task = Translation(config, Tokenizers(words, words))
    encoded = EncodedExamples(
        EncodedPair([3], [3] * letters * len(pair.target.split())) for pair in PAIRS
    )
    task._prepared["test"] = PAIRS, encoded
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"nll": nll})
    scores = task.losses(task.learner.abstract_state, "test")
    assert {name: scores[name] for name in scores if name != "nll"} == pytest.approx(expected)
