"""Perplexity of tokens and of words, by hand."""

import jax
import numpy as np
import pytest

from configs import toy_translation
from experiments.config import Config
from experiments.data.pairs import SentencePair
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.sources import Splits
from experiments.data.store import store_text
from experiments.data.tokenizers import Tokenizers, WordTokenizer
from experiments.data.vocabulary import SPECIALS, Vocabulary
from experiments.data.words import WORDS
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
def test_word_perplexity_counts_words(letters, nll, expected, monkeypatch, tmp_path):
    vocabulary = Vocabulary((*SPECIALS, "a", "b"))
    config = Config.read(toy_translation.get_config("tiny").to_dict())
    splits = Splits(config.data, tmp_path)
    splits["test"] = store_text(tmp_path, lambda: PAIRS)
    tokenizers = Tokenizers(*[WordTokenizer(vocabulary, WORDS)] * 2)
    task = Translation(config, tokenizers, splits)
    encoded = Encoded(EncodedPair([3], [3] * letters * len(pair.target.split())) for pair in PAIRS)
    monkeypatch.setattr(task, "ids", lambda _: encoded)
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"nll": nll})
    state = jax.eval_shape(task.learner.initial_state)
    found = task.losses(state, "test")
    assert {name: found[name] for name in found if name != "nll"} == pytest.approx(expected)
