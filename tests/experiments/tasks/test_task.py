"""Measurements of all tasks, checks before the first step, and continuations of texts."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from configs import packed_lm, toy_translation
from experiments.config import Config
from experiments.config.parts import TextPart
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import (
    BOS,
    EOS,
    WORDS,
    Characters,
    EncodedExamples,
    EncodedPair,
    SentencePair,
    Words,
)
from experiments.errors import UsageError
from experiments.registry import EVALUATORS, TASKS
from experiments.tasks.language_model import Continuation
from experiments.tasks.translation import Translation
from tests.experiments.data.corpora import learn

TEXT = "the cat sees l'Afrique and the queens"


def prepare(cache, module, **changes):
    config = module.get_config("tiny")
    config.update_from_flattened_dict(changes)
    return TASKS[config.task].prepare(Config.read(config.to_dict()), cache)


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("cache"), toy_translation)


def with_train(task, **fields):
    config = replace(task.config, train=replace(task.config.train, **fields))
    return type(task)(config, task.tokenizers, task.splits)


def test_numbers_of_metrics_and_evaluators_are_floats(translation, monkeypatch):
    """A checkpoint contains the monitored one as JSON."""
    numbers = {"first": np.float32(1.5), "second": jnp.float32(2), "note": "words"}
    monkeypatch.setitem(EVALUATORS, "numbers", lambda *_: numbers)
    monkeypatch.setattr(Translation, "answer_split", lambda self, *_: ["a"] * 20)
    task = with_train(translation, evaluators=("exact_match", "numbers"))
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"loss": 1.0})
    values = task.validate(SimpleNamespace(parameters=None))
    expected = {"loss": 1.0, "sentences": 20, "exact_match": 0.0, "first": 1.5, "second": 2.0}
    assert values == expected and type(values["first"]) is type(values["second"]) is float


def test_mistakes_are_reported_before_the_first_step(translation, tmp_path):
    task = with_train(translation, evaluators=("bleu",), monitor="chrf")
    names = "loss, nll, accuracy, sentences, bleu"
    with pytest.raises(UsageError, match=f"train.monitor must be one of {names}, got 'chrf'"):
        task.check()
    with pytest.raises(UsageError, match=r"raise batch\.row_length"):
        prepare(tmp_path, packed_lm, **{"batch.row_length": 5}).check()


@pytest.mark.parametrize(
    ("letters", "nll", "expected"),
    [
        (1, np.log(4), {"perplexity": 4}),  # every token is a word
        # 3·3 tokens + 2 EOS, 3 words + 2 EOS
        (3, np.log(4), {"perplexity": 4, "word_perplexity": 4 ** (11 / 5)}),
        (1, 710.0, {}),  # more than a float holds
    ],
)
def test_word_perplexity_counts_words(letters, nll, expected, translation, monkeypatch):
    task = with_train(translation)
    pairs = [SentencePair("a b", "b"), SentencePair("b", "a b")]
    ids = [EncodedPair([3], [3] * letters * len(pair.target.split())) for pair in pairs]
    monkeypatch.setattr(task, "_examples_and_ids", lambda split: (pairs, EncodedExamples(ids)))
    monkeypatch.setattr(task, "batches", lambda split: None)
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"nll": nll})
    monkeypatch.setattr(task, "answer_split", lambda *_: ["b", "a b"])
    scores = task.measure(task.learner.abstract_state, "test")[0]["test"]
    found = {name: scores[name] for name in scores if "perplexity" in name}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [(Subwords(), [BOS], [EOS]), (Words(WORDS), [BOS], [EOS]), (Characters(), [], [])],
)
def test_prompt_and_continuation_are_the_text(text, begin, end, tmp_path):
    config = TextPart(kind="char", size=275)  # no subword contains a blank and a letter
    tokenizer = learn(text, config, [SentencePair(TEXT, TEXT)], tmp_path).source
    ids = tokenizer.encode(TEXT)
    for place in range(len(ids)):
        continuation = Continuation(tokenizer, (*begin, *ids[:place]))
        assert tokenizer.decode(ids[:place]) + continuation.decode([*ids[place:], *end]) == TEXT
