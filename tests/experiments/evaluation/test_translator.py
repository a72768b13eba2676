"""Translation of plain text by a small untrained model: what it says matters less than how."""

import functools
import json
from unittest import mock

import jax
import numpy as np
import pytest
from flax import nnx

from attention.decoding import Rules, beam_search, greedy
from configs import toy_translation, toy_translation_rnn
from experiments.data.batching import EncodedPair, pad_batch
from experiments.data.tokenizers import Tokenizers, WordTokenizer
from experiments.data.vocabulary import EOS, PAD, SPECIALS, Vocabulary
from experiments.data.words import WORDS, Tokens
from experiments.evaluation.translator import Translator, generate, lengths_for
from experiments.translation import Task

SOURCE, TARGET = (Vocabulary((*SPECIALS, *letters)) for letters in ("abcdefgh", "vwxyz"))
SENTENCES = ["a b c", "h", "c c c c d", "b a"]


def tokenizers(tokens):
    return Tokenizers(*(WordTokenizer(words, tokens) for words in (SOURCE, TARGET)))


@pytest.fixture(scope="module")
def task():
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation.get_config("tiny")
        config.model.update({"width": 8, "num_heads": 2, "hidden": 12, "max_length": 9})
        config.data.bucket_lengths = (6,)
        config.train.warmup_steps = 0
        return Task(config, tokenizers(WORDS))


@pytest.fixture(scope="module")
def parameters(task):
    with jax.numpy_dtype_promotion("standard"):
        return task.learner.initial_state().parameters


def test_a_batch_says_what_each_sentence_says_alone(task, parameters):
    together = task.translator(parameters, SENTENCES, batch_size=2)
    alone = [task.translator(parameters, [each], batch_size=2)[0] for each in SENTENCES]
    assert together == alone
    assert len({*together}) > 1


def test_nothing_is_said_beyond_the_longest_sentence(task, parameters):
    for translation in task.translator(parameters, SENTENCES, batch_size=2):
        assert len(translation.split()) <= 9


def test_lengths_to_compile_for_are_halves_of_the_longest():
    assert lengths_for(80) == [20, 40, 80]
    assert lengths_for(33) == [17, 33]
    assert lengths_for(31) == [31]


def test_of_no_sentences_there_is_nothing_to_say(task, parameters):
    assert task.translator(parameters, [], batch_size=2) == []


def test_a_source_that_is_too_long_is_refused(task, parameters):
    with pytest.raises(ValueError, match="the model reads at most 8 ids, got 9"):
        task.translator.translate_ids(parameters, [[4], [5] * 9], batch_size=2)


def test_the_room_is_half_as_long_again_unless_the_rules_say_more():
    def rooms(**limits):
        rules = Rules(EOS, PAD, **limits)
        translator = Translator(None, None, max_length=80, rules=rules, beam=1, alpha=0.0)
        return [translator._room_for(length) for length in lengths_for(80)]

    assert rooms(max_length=80) == [30, 60, 80]
    assert rooms(max_length=200) == [30, 60, 200]
    assert rooms(max_length=50, min_length=40) == [40, 50, 50]


@pytest.mark.parametrize("beam", [1, 3])
def test_who_needs_more_room_is_asked_again(beam):
    """An answer of more than 24 tokens, to a source of few, is what it is with all the room."""
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation.get_config("tiny")
        config.model.update({"width": 8, "num_heads": 2, "hidden": 12, "max_length": 32})
        config.data.bucket_lengths = (6,)
        config.decoding.update({"beam": beam, "alpha": 0.6})
        config.seed = 1
        task = Task(config, tokenizers(WORDS))
        parameters = jax.tree.map(lambda leaf: 3 * leaf, task.learner.initial_state().parameters)
    sources = [SOURCE.encode(list(word)) for word in ("abc", "h" * 20, "ccccd", "ba", "a", "bdef")]
    with mock.patch.object(
        task.translator, "_translate", wraps=task.translator._translate
    ) as asked:
        said = task.translator.translate_ids(parameters, sources, batch_size=2)
    shapes = [call.args[1].shape for call in asked.mock_calls if call.args]
    assert shapes == [(2, 8, 16), (2, 8, 32)]  # places, turns, positions
    lengths = [len(ids) for ids in said]
    assert max(lengths) > 24 > min(lengths)  # or this would prove little
    model = nnx.merge(task.learner.definition, parameters)
    decode = greedy if beam == 1 else functools.partial(beam_search, beam=beam, alpha=0.6)
    batch = pad_batch([EncodedPair(source, ()) for source in sources], len(sources), 32)
    expected = generate(model, batch.source, batch.source_lengths, task.rules, decode, room=32)
    best = slice(None) if beam == 1 else (slice(None), 0)
    np.testing.assert_array_equal(expected.lengths[best], lengths)
    for ids, whole in zip(said, expected.tokens[best], strict=True):
        np.testing.assert_array_equal(ids, whole[: len(ids)])


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("  ", "the sentence is empty"),
        ("a " * 9, "the sentence has 9 tokens, and the model reads at most 8"),
        ("a q", "the word 'q' is not in the vocabulary"),
    ],
)
def test_what_cannot_be_read_is_named(task, sentence, words):
    with pytest.raises(ValueError, match=words):
        task.translator.encode(sentence)


@pytest.mark.parametrize("sentence", ["A b C.", "a b c. ", " a B c ."])
def test_a_full_stop_and_capital_letters_are_read_as_nothing(task, sentence):
    assert task.translator.encode(sentence) == task.translator.encode("a b c")


@pytest.mark.parametrize("sentence", ["a b c?", "a. b c", "a b c.."])
def test_other_marks_are_unknown_words(task, sentence):
    with pytest.raises(ValueError, match="is not in the vocabulary"):
        task.translator.encode(sentence)


def test_cross_attention_names_its_rows_and_columns(task, parameters):
    weights, source, target = task.translator.cross_attention(parameters, "a b c", "v w")
    assert source == ["a", "b", "c", "<eos>"]
    assert target == ["v", "w", "<eos>"]
    assert weights.shape == (2, 2, 3, 4)  # layers, heads, target words, source words
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)


def test_text_becomes_words_as_the_data_says():
    letters = tokenizers(Tokens(list, "".join))
    rules = Rules(EOS, PAD, max_length=9)
    translator = Translator(None, letters, max_length=9, rules=rules, beam=1, alpha=0.0)
    assert translator.encode("bad") == SOURCE.encode(["b", "a", "d"])


class TestDetails:
    """What a beam knows of its best hypotheses."""

    SENTENCE = "b a"

    @pytest.fixture(scope="class")
    @staticmethod
    def found(task):
        with jax.numpy_dtype_promotion("standard"):
            config = task.config.copy_and_resolve_references()
            config.seed = 1  # by which it says words, and looks at more than one
            config.decoding.update({"beam": 3, "alpha": 0.5, "details": True, "n_best": 2})
            task = Task(config, tokenizers(WORDS))
            state = task.learner.initial_state()
        (best,) = task.translator(state.parameters, [TestDetails.SENTENCE], batch_size=1)
        (answer,), _ = task.answers(state, [TestDetails.SENTENCE])
        answer = json.loads(answer)
        assert answer["source"] == ["b", "a", "<eos>"]
        said = answer["translations"]
        looks = [
            task.translator.cross_attention(
                state.parameters, TestDetails.SENTENCE, " ".join(one["tokens"][:-1])
            )[0]
            for one in said
        ]
        return best, said, looks

    def test_the_first_is_the_translation(self, found):
        best, (first, second), _ = found
        assert first["text"] == best != second["text"]
        assert first["score"] >= second["score"]

    def test_a_score_is_the_sum_over_the_penalty(self, found):
        for one in found[1]:
            penalty = ((5 + len(one["tokens"])) / 6) ** 0.5
            assert one["score"] == pytest.approx(sum(one["log_probs"]) / penalty, rel=1e-5)

    def test_each_token_is_aligned_with_the_source_token_it_saw_most(self, found):
        _, said, looks = found
        for one, weights in zip(said, looks, strict=True):
            assert one["text"] == " ".join(one["tokens"])
            most = weights.mean(axis=(0, 1)).argmax(axis=-1).tolist()
            assert one["alignment"] == most
            assert len({*one["alignment"]}) > 1


def test_a_model_that_looks_at_nothing_aligns_nothing():
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation_rnn.get_config("tiny")
        config.model.update({"attention": "none", "max_length": 9})
        config.decoding.update({"beam": 2, "details": True})
        config.data.bucket_lengths = (9,)
        task = Task(config, tokenizers(WORDS))
        (answer,), _ = task.answers(task.learner.initial_state(), ["a b"])
    (one,) = json.loads(answer)["translations"]
    assert one.keys() == {"text", "score", "tokens", "log_probs", "alignment"}
    assert one["alignment"] == [] and one["tokens"]
