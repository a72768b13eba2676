"""Data that serves every task, measurements, checks before the first step, continuations."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults, packed_lm, toy_translation
from experiments.config import Config
from experiments.config.parts import TextPart
from experiments.data.subwords import Subwords
from experiments.data.tokenizers import WORDS, Characters, EncodedExamples, SentencePair, Words
from experiments.errors import UsageError
from experiments.registry import EVALUATORS, TASKS
from experiments.tasks.language_model import Continuation
from tests.experiments.data.corpora import learn

SMALL = {"width": 16, "num_heads": 2, "hidden": 8, "max_length": 96}
REVIEWS = [("a good film", "yes"), ("a bad film", "no")] * 5
TEXT = "the cat sees l'Afrique and the queens"


def prepare(cache, config, **changes):
    config.update_from_flattened_dict(changes)
    return TASKS[config.task].prepare(Config.read(config.to_dict()), cache)


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("cache"), toy_translation.get_config("tiny"))


def with_train(task, **fields):
    config = replace(task.config, train=replace(task.config.train, **fields))
    return type(task)(config, task.tokenizers, task.splits)


def test_numbers_of_metrics_and_evaluators_are_floats(translation, monkeypatch):
    """A checkpoint contains the monitored one as JSON."""
    numbers = {"first": np.float32(1.5), "second": jnp.float32(2), "note": "words"}
    monkeypatch.setitem(EVALUATORS, "numbers", lambda *_: numbers)
    task = with_train(translation, evaluators=("exact_match", "numbers"))
    monkeypatch.setattr(task, "answer_split", lambda *_: ["a"] * 20)
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"loss": 1.0})
    values = task.validate(SimpleNamespace(parameters=None))
    expected = {"loss": 1.0, "sentences": 20, "exact_match": 0.0, "first": 1.5, "second": 2.0}
    assert values == expected and {*map(type, values.values())} == {float}


def test_mistakes_are_reported_before_the_first_step(translation, tmp_path):
    task = with_train(translation, evaluators=("bleu",), monitor="chrf")
    with pytest.raises(UsageError, match="one of loss, nll, accuracy, sentences, bleu, got 'chrf'"):
        task.check()
    with pytest.raises(UsageError, match=r"raise batch\.row_length"):
        prepare(tmp_path, packed_lm.get_config("tiny"), **{"batch.row_length": 5}).check()


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
    ids = [([3], [3] * letters * len(pair.target.split())) for pair in pairs]
    monkeypatch.setattr(task, "_examples_and_ids", lambda split: (pairs, EncodedExamples(ids)))
    monkeypatch.setattr(task, "batches", lambda split: None)
    monkeypatch.setattr(task.learner, "losses", lambda *_: {"nll": nll})
    monkeypatch.setattr(task, "answer_split", lambda *_: ["b", "a b"])
    scores = task.measure(task.learner.abstract_state, "test")[0]["test"]
    found = {name: scores[name] for name in scores if "perplexity" in name}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [(Subwords(), [1], [2]), (Words(WORDS), [1], [2]), (Characters(), [], [])],
)
def test_prompt_and_continuation_are_the_text(text, begin, end, tmp_path):
    config = TextPart(kind="char", size=275)  # no subword contains a blank and a letter
    tokenizer = learn(text, config, [SentencePair(TEXT, TEXT)], tmp_path).source
    ids = tokenizer.encode(TEXT)
    for place in range(len(ids)):
        continuation = Continuation(tokenizer, (*begin, *ids[:place]))
        assert tokenizer.decode(ids[:place]) + continuation.decode([*ids[place:], *end]) == TEXT


def task_of(name, data, cache, **fields):
    config = defaults.new(name, data, steps=4)
    config.model.update({field: SMALL[field] for field in SMALL if field in config.model})
    if "text" in config:
        config.text.size = 288
    if "row_length" in config.batch:
        config.batch.row_length = 0 if name == "translation" else 96
    return prepare(cache, config, **{f"data.{field}": fields[field] for field in fields})


def check_trains(task):
    batch = task.training_batches()[0]
    state, _ = jax.eval_shape(task.learner.train_step, task.learner.abstract_state, batch)
    for split in task.known_splits:
        for measured in task.batches(split):
            jax.eval_shape(task.learner.evaluate_step, state.parameters, measured)


@pytest.mark.parametrize("name", sorted({*TASKS} - {"classification"}))
def test_parallel_text(name, captions, tmp_path):
    files = {"train": "train", "validation": "validation", "test": "test_2016"}
    task = task_of(name, "parallel", tmp_path, path=str(captions), files=files)
    assert (task.tokenizers.target is None) == (name != "translation")
    check_trains(task)


@pytest.mark.parametrize("name", ["language_model", "masked_language_model", "word_vectors"])
def test_subwords_of_a_text_whose_lines_are_longer_than_the_model_reads(name, tmp_path):
    text = [" ".join(f"{number} one two three" for number in range(n)) for n in range(1, 60)]
    (tmp_path / "mine.txt").write_text("\n".join(text))
    task = task_of(name, "text", tmp_path, path=str(tmp_path / "mine.txt"))
    check_trains(task)
    shown = task.first_examples("train", 50)[-1].source
    task.read(f"{shown} _")
    ids, learned = task.ids("train"), task.tokenizers.source
    assert (len(ids) > len(task.examples("train"))) == (name != "word_vectors")
    assert ids.lengths.max() == 96 or name == "word_vectors"
    lines = "".join(f"_{pair.source}" for pair in task.examples("train")).replace(" ", "_")
    assert "".join(learned.token(number) for one in ids for number in one.source) == lines


def test_classes_of_texts(tmp_path):
    for split in ("train", "validation", "test"):
        lines = ["text,label", *map(",".join, REVIEWS)]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    fields = {"source": "text", "target": "label", "path": str(tmp_path)}
    task = task_of("classification", "csv", tmp_path / "cache", **fields)
    check_trains(task)
    assert len(task.tokenizers.target) == 3 + 2
    (batch,) = task.batches("test")
    source, target = task.tokenizers
    rows = zip(batch.inputs, batch.lengths, batch.labels, strict=True)
    texts = [(source.decode(ids[:size]), target.token(label + 3)) for ids, size, label in rows]
    assert (texts[: len(REVIEWS)], np.sum(batch.counted)) == (REVIEWS, 10)
    task.tokenizers.keep(tmp_path)
    assert task.load_tokenizers(task.config, tmp_path) == task.tokenizers
