"""Translation of plain text by a small untrained model, in batches and one by one."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention.decoding import (
    GNMT,
    Beam,
    GenerationOutput,
    Greedy,
    StoppingCriteria,
    generate,
)
from configs import toy_translation, toy_translation_rnn
from experiments.analysis.collect import Collector
from experiments.config import Config
from experiments.config.build import as_config_dict
from experiments.data.tokenizers import Tokenizers, WordTokenizer
from experiments.data.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary
from experiments.data.words import WORDS, Tokens
from experiments.inference import translator as translating
from experiments.inference.translator import Translator, copy_words, lengths_for
from experiments.tasks.translation import Translation

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


def test_translations_are_at_most_as_long_as_the_longest_sentence(task, parameters):
    for translation in task.translator(parameters, SENTENCES, batch_size=2):
        assert len(translation.split()) <= 9


def test_lengths_to_compile_for_are_halves_of_the_longest():
    assert lengths_for(160) == [40, 80, 160]
    assert lengths_for(65) == [33, 65]
    assert lengths_for(63) == [63]


def test_no_sentences(task, parameters):
    assert task.translator(parameters, [], batch_size=2) == []


def test_too_long_source_raises(task, parameters):
    with pytest.raises(ValueError, match="the model reads at most 8 ids, got 9"):
        task.translator.translate_ids(parameters, [[4], [5] * 9], batch_size=2)


@pytest.mark.parametrize(("num_beams", "seed"), [(1, 47), (3, 29)])
def test_unfinished_rows_are_decoded_again_with_more_steps(num_beams, seed, monkeypatch):
    """A translation of more than 24 tokens, of a short source, equals that of one long loop."""
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation.get_config("tiny")
        config.model.update({"width": 8, "num_heads": 2, "hidden": 12, "max_length": 32})
        config.batch.bucket_lengths = (6,)
        config.decoding.update({"num_beams": num_beams, "length_penalty": 0.6})
        task = Translation(Config.read(config.to_dict()), tokenizers(WORDS))
        parameters = drawn(task, seed)  # some translations end, and others do not
    sources = [SOURCE.encode(list(word)) for word in ("abc", "h" * 20, "ccccd", "ba", "a", "bdef")]
    shapes = []

    def compile(program):
        def run(model, *arrays):
            shapes.append(max((array.shape for array in arrays), key=len))
            return compiled(model, *arrays)

        compiled = by_rows(program)
        return run

    by_rows = translating.by_rows
    monkeypatch.setattr(translating, "by_rows", compile)
    monkeypatch.setattr(translating, "SHORTEST", 16)
    found = task.translator.translate_ids(parameters, sources, batch_size=2)
    assert shapes == [(2, 8, 16), (2, 8, 32)]  # slots, rows per slot, tokens
    lengths = [len(ids) for ids in found]
    assert max(lengths) > 24 > min(lengths)  # so that some rows are decoded again
    model = nnx.merge(task.learner.definition, parameters)
    strategy = Greedy() if num_beams == 1 else Beam(num_beams, length_penalty=GNMT(0.6))
    options = {"strategy": strategy, "max_tokens": 32, "start": BOS, "stop": EOS}
    expected = generate(model, [[*source, EOS] for source in sources], buckets=[32], **options)
    np.testing.assert_array_equal(expected.lengths, lengths)
    for ids, whole in zip(found, expected.tokens, strict=True):
        np.testing.assert_array_equal(ids, whole[: len(ids)])


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


def test_translator_uses_the_tokenizer_of_the_data():
    letters = tokenizers(Tokens(list, "".join))
    options = {"num_beams": 1, "length_penalty": 0.0}
    stopping = StoppingCriteria(9, stop=EOS, pad=PAD)
    translator = Translator(None, letters, max_length=9, stopping=stopping, **options)
    assert translator.read("bad").ids == SOURCE.encode(["b", "a", "d"])


class TestDetails:
    """Details of the best hypotheses of a beam."""

    SENTENCE = "b q a"

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls, task):
        with jax.numpy_dtype_promotion("standard"):
            config = as_config_dict(task.config)
            config.decoding.update({"num_beams": 3, "length_penalty": 0.5, "n_best": 2})
            task = Translation(Config.read(config.to_dict()), tokenizers(WORDS))
            parameters = drawn(task, seed=54)  # with which alignments differ
            state = SimpleNamespace(parameters=parameters)
        read = "b h a"  # the rarest word is the placeholder
        (best,) = task.translator(state.parameters, [read], batch_size=1)
        (plain,), (unknown,) = (task.predict(state, [each]) for each in (read, cls.SENTENCE))
        assert unknown.note == "not in the vocabulary, copied: 'q'"
        assert [*plain.text] == [best]
        said = plain.details()["translations"]
        examples = [task.example(state, read, " ".join(one["tokens"][:-1])) for one in said]
        looks = [
            attended.maps["cross"].weights
            for attended in Collector(task)(state.parameters, examples)
        ]
        return best, said, looks, unknown.details()

    def test_first_is_the_translation(self, found):
        best, (first, second), *_ = found
        assert first["text"] == best != second["text"]
        assert first["score"] >= second["score"]

    def test_score_is_the_sum_over_the_penalty(self, found):
        for one in found[1]:
            penalty = ((5 + len(one["tokens"])) / 6) ** 0.5
            assert one["score"] == pytest.approx(sum(one["log_probs"]) / penalty, rel=1e-5)

    def test_confidence_is_the_geometric_mean_of_probabilities(self, found):
        for one in found[1]:
            mean = np.prod(np.exp(one["log_probs"])) ** (1 / len(one["tokens"]))
            assert one["confidence"] == pytest.approx(mean, rel=1e-4)
            assert one["is_uncertain"] == (mean < 0.5)

    def test_alignment_is_the_source_token_with_the_largest_weight(self, found):
        _, said, looks, _ = found
        for one, weights in zip(said, looks, strict=True):
            assert one["text"] == " ".join(one["tokens"])
            most = weights.mean(axis=(0, 1)).argmax(axis=-1).tolist()
            assert one["alignment"] == most
            assert len({*one["alignment"]}) > 1

    def test_unknown_word_replaces_the_token_that_attends_to_it_most(self, found):
        _, said, looks, unknown = found
        assert (unknown["source"], unknown["unknown"]) == (["b", "q", "a", "<eos>"], ["q"])
        for one, weights, copied in zip(said, looks, unknown["translations"], strict=True):
            words = one["text"].split()
            rows = weights.mean(axis=(0, 1))[: len(words), :-1]  # without the ends
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
