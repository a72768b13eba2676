"""Translation of plain text by a small untrained model, in batches and one by one."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.decoding import (
    GenerationOutput,
    StoppingCriteria,
)
from configs import toy_translation, toy_translation_rnn
from experiments.analysis.collect import Collector
from experiments.config import Config
from experiments.config.build import as_config_dict
from experiments.config.parts import SearchPart
from experiments.data.tokenizers import (
    EOS,
    PAD,
    SPECIALS,
    WORDS,
    Tokenizers,
    Tokens,
    Vocabulary,
    WordTokenizer,
)
from experiments.tasks.translation import Translation
from experiments.tasks.translator import Translator, copy_words, lengths_for

SOURCE, TARGET = (Vocabulary((*SPECIALS, *letters)) for letters in ("abcdefgh", "vwxyz"))
SENTENCES = ["a b c", "h", "c c c c d", "b a"]


def tokenizers(tokens):
    return Tokenizers(*(WordTokenizer(words, tokens) for words in (SOURCE, TARGET)))


def drawn(task, seed):
    """Return parameters that do not depend on how modules draw theirs."""
    random = np.random.default_rng(seed)
    shapes = task.learner.abstract_state.parameters
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, 0.5, leaf.shape), leaf.dtype), shapes
    )


@pytest.fixture(scope="module")
def task():
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation.get_config("tiny")
        config.model.update({"width": 8, "num_heads": 2, "hidden": 12, "max_length": 9})
        config.batch.bucket_lengths = (6,)
        config.train.warmup_steps = 0
        return Translation(Config.read(config.to_dict()), tokenizers(WORDS))


@pytest.fixture(scope="module")
def parameters(task):
    with jax.numpy_dtype_promotion("standard"):
        return drawn(task, seed=17)  # gives different translations


def test_batch_equals_sentences_one_by_one(task, parameters):
    together = task.translator(parameters, SENTENCES, batch_size=2)
    alone = [task.translator(parameters, [each], batch_size=2)[0] for each in SENTENCES]
    assert together == alone
    assert len({*together}) > 1


def test_lengths_to_compile_for_are_halves_of_the_longest():
    assert lengths_for(160) == [40, 80, 160]
    assert lengths_for(65) == [33, 65]
    assert lengths_for(63) == [63]


def test_too_long_source_raises(task, parameters):
    with pytest.raises(ValueError, match="the model reads at most 8 ids, got 9"):
        task.translator.translate_ids(parameters, [[4], [5] * 9], batch_size=2)


def test_copied_words_are_aligned_one_to_one():
    weights = np.array([[0.1, 0.6, 0.3], [0.1, 0.5, 0.4], [0.8, 0.1, 0.1]])  # [T, S]
    assert copy_words(weights, {}) == ({}, [])
    assert copy_words(weights, {1: "b"}) == ({0: "b"}, [])
    assert copy_words(weights, {1: "b", 2: "c"}) == ({0: "b", 1: "c"}, [])
    assert copy_words(weights[:1], {0: "a", 1: "b"}) == ({0: "b"}, ["a"])
    assert copy_words(weights, {0: "a", 2: "c"}) == ({2: "a"}, ["c"])  # the others translate word 1


def test_a_token_whose_largest_weight_is_on_the_end_may_copy_an_unknown_word(task, monkeypatch):
    """Weights have an axis of the bucket, which is longer than the source."""
    weights = np.array([[0.4, 0.3, 0.3, 0, 0], [0.1, 0.4, 0.5, 0, 0], [0.2, 0.2, 0.6, 0, 0]])
    output = GenerationOutput(
        tokens=np.array([[5, 6, EOS]]),
        lengths=np.array([3]),
        scores=np.zeros(1),
        log_probs=np.zeros((1, 3)),
        observed=weights[None],
    )
    monkeypatch.setattr(Translator, "_generate", lambda *arguments, **options: output)
    sentence = task.translator.read("a q")
    ((found,),) = task.translator.hypotheses(None, [sentence], batch_size=1)
    assert found.text.split() == [*TARGET.decode([5]), "q"]
    assert found.alignment == [0, 2, 2]


def test_a_translation_is_one_line_with_all_its_characters():
    """Line feeds alone end a line, and the tokenizer is that of the data."""
    letters = Tokens(list, "".join)
    signs = Vocabulary((*SPECIALS, *"\u2028\x85\x0c\n"))
    both = Tokenizers(WordTokenizer(SOURCE, letters), WordTokenizer(signs, letters))
    stopping = StoppingCriteria(9, stop=EOS, pad=PAD)
    translator = Translator(None, both, SearchPart(), max_length=9, stopping=stopping)
    assert translator.read("bad").ids == SOURCE.encode(["b", "a", "d"])
    assert translator._text([3, 4, 5, 6, EOS]) == "\u2028\x85\x0c "


@pytest.fixture(scope="module")
def beam(task):
    """Return the best translation, two hypotheses, their weights, and details with a copied word.

    The rarest word, h, is the placeholder.
    """
    with jax.numpy_dtype_promotion("standard"):
        config = as_config_dict(task.config)
        config.decoding.update({"num_beams": 3, "length_penalty": 0.5, "n_best": 2})
        task = Translation(Config.read(config.to_dict()), tokenizers(WORDS))
        state = SimpleNamespace(parameters=drawn(task, seed=54))  # with which alignments differ
    (best,) = task.translator(state.parameters, ["b h a"], batch_size=1)
    (plain,), (unknown,) = (task.predict(state, [line]) for line in ("b h a", "b q a"))
    assert unknown.note == "not in the vocabulary, copied: 'q'"
    assert [*plain.text] == [best]
    said = plain.details()["translations"]
    examples = [task.example(state, "b h a", " ".join(one["tokens"][:-1])) for one in said]
    maps = [found.maps["cross"] for found in Collector(task)(state.parameters, examples)]
    return best, said, [each.weights.mean(axis=(0, 1)) for each in maps], unknown.details()


def test_scores_of_hypotheses(beam):
    best, (first, second), *_ = beam
    assert first["text"] == best != second["text"]
    assert first["score"] >= second["score"]
    for one in (first, second):
        penalty = ((5 + len(one["tokens"])) / 6) ** 0.5
        assert one["score"] == pytest.approx(sum(one["log_probs"]) / penalty, rel=1e-5)
        mean = np.prod(np.exp(one["log_probs"])) ** (1 / len(one["tokens"]))
        assert one["confidence"] == pytest.approx(mean, rel=1e-4)
        assert one["is_uncertain"] == (mean < 0.5)


def test_alignment_is_the_source_token_with_the_largest_weight(beam):
    _, said, weights, _ = beam
    for one, each in zip(said, weights, strict=True):
        assert one["text"] == " ".join(one["tokens"])
        assert one["alignment"] == each.argmax(axis=-1).tolist()
        assert len({*one["alignment"]}) > 1


def test_unknown_word_replaces_the_token_that_attends_to_it_most(beam):
    _, said, weights, unknown = beam
    assert (unknown["source"], unknown["unknown"]) == (["b", "q", "a", "<eos>"], ["q"])
    for one, each, copied in zip(said, weights, unknown["translations"], strict=True):
        words = one["text"].split()
        rows = each[: len(words), :-1]  # without the ends
        free = rows.argmax(axis=-1) == 1
        place = np.where(free, rows[:, 1], 0).argmax() if free.any() else len(words)
        assert copied["text"].split() == [*words[:place], "q", *words[place + 1 :]]


def test_model_without_attention_reads_a_placeholder():
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation_rnn.get_config("tiny")
        config.model.update({"attention": "none", "max_length": 9})
        config.batch.bucket_lengths = (9,)
        task = Translation(Config.read(config.to_dict()), tokenizers(WORDS))
        (found,) = task.predict(task.learner.initial_state(), ["a q"])
    assert found.note == "not in the vocabulary, read as 'h': 'q'"
    (one,) = found.details()["translations"]
    assert one["alignment"] == [] and one["tokens"]
