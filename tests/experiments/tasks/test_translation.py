"""Translation of plain text by a small untrained model, in batches and one by one."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from configs import toy_translation, toy_translation_rnn
from experiments.analysis.collect import Collector
from experiments.config import Config
from experiments.config.parts import MeshPart
from experiments.data.tokenizers import SPECIALS, WORDS, Tokenizers, WordTokenizer
from experiments.sharding import FEWEST_ROWS, by_rows, make_mesh
from experiments.tasks.translation import Translation, copy_words

VOCABULARIES = [(*SPECIALS, *letters) for letters in ("abcdefgh", "vwxyz")]
TOKENIZERS = Tokenizers(*(WordTokenizer(words, WORDS) for words in VOCABULARIES))
SENTENCES = ["a b c", "h", "c c c c d", "b a"]


@pytest.fixture(scope="module")
def task():
    with jax.numpy_dtype_promotion("standard"):
        config = toy_translation.get_config("tiny")
        config.model.update({"width": 8, "num_heads": 2, "hidden": 12, "max_length": 9})
        config.batch.bucket_lengths = (6,)
        config.decoding.update(
            {"num_beams": 3, "length_penalty": 0.5, "n_best": 2, "hypotheses": 6}
        )
        return Translation(Config.read(config.to_dict()), TOKENIZERS)


def drawn(task, seed):
    """Return parameters that do not depend on how modules draw theirs."""
    random = np.random.default_rng(seed)
    shapes = task.learner.abstract_state.parameters
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(0, 0.5, leaf.shape), leaf.dtype), shapes
    )


@pytest.fixture(scope="module")
def parameters(task):
    return drawn(task, seed=54)  # with which alignments differ


def test_batch_equals_sentences_one_by_one(task):
    parameters = drawn(task, seed=17)  # with which translations differ
    ids = [TOKENIZERS.source.encode(sentence) for sentence in SENTENCES]
    together = task.translate_ids(parameters, ids)
    for source, target in zip(ids, together, strict=True):
        (alone,) = task.translate_ids(parameters, [source])
        np.testing.assert_array_equal(alone, target)
    assert len({*map(str, together)}) > 1


def test_copied_words_are_aligned_one_to_one():
    weights = np.array([[0.1, 0.6, 0.3], [0.1, 0.5, 0.4], [0.8, 0.1, 0.1]])  # [T, S]
    assert copy_words(weights, {}) == ({}, [])
    assert copy_words(weights, {1: "b", 2: "c"}) == ({0: "b", 1: "c"}, [])
    assert copy_words(weights[:1], {0: "a", 1: "b"}) == ({0: "b"}, ["a"])
    assert copy_words(weights, {0: "a", 2: "c"}) == ({2: "a"}, ["c"])  # the others translate word 1


def test_scores_alignments_and_copies_of_hypotheses(task, parameters):
    """The rarest word, h, is read in place of an unknown one."""
    state = SimpleNamespace(parameters=parameters)
    plain, unknown = (next(task.predict(state, [line])) for line in ("b h a", "b q a"))
    assert unknown.note == "not in the vocabulary, copied: 'q'"
    hypotheses, copies = (answer.details()["translations"] for answer in (plain, unknown))
    (best,) = task.translate_ids(parameters, [TOKENIZERS.source.encode("b h a")])
    assert hypotheses[0]["ids"] == best.tolist() != hypotheses[1]["ids"]
    assert hypotheses[0]["score"] >= hypotheses[1]["score"]
    examples = [task.example(state, "b h a", " ".join(h["tokens"][:-1])) for h in hypotheses]
    maps = [attended.maps["cross"].weights for attended in Collector(task)(parameters, examples)]
    for hypothesis, copied, heads in zip(hypotheses, copies, maps, strict=True):
        log_probs, weights = hypothesis["log_probs"], heads.mean(axis=(0, 1))
        penalty = ((5 + len(log_probs)) / 6) ** 0.5
        assert hypothesis["score"] == pytest.approx(sum(log_probs) / penalty, rel=1e-5)
        assert hypothesis["confidence"] == pytest.approx(np.exp(np.mean(log_probs)), rel=1e-4)
        assert hypothesis["alignment"] == weights.argmax(axis=-1).tolist()
        # The unknown word replaces the token that attends to it most, or follows the others.
        words = hypothesis["text"].split()
        rows = weights[: len(words), :-1]  # without the ends
        free = rows.argmax(axis=-1) == 1
        place = np.where(free, rows[:, 1], 0).argmax() if free.any() else len(words)
        assert copied["text"].split() == [*words[:place], "q", *words[place + 1 :]]


def test_more_beams_than_target_tokens(task, parameters):
    decoding = replace(task.config.decoding, num_beams=20)
    (ranked,) = task.hypotheses(parameters, [task.read("a b")], decoding)
    assert len({*(translation["text"] for translation in ranked)}) == 2


def test_model_without_attention_reads_a_placeholder():
    config = toy_translation_rnn.get_config("tiny")
    config.model.attention = "none"
    task = Translation(Config.read(config.to_dict()), TOKENIZERS)
    (answer,) = task.predict(task.learner.initial_state(), ["a q"])
    assert answer.note == "not in the vocabulary, read as 'h': 'q'"
    (translation,) = answer.details()["translations"]
    assert translation["alignment"] == [] and translation["tokens"]


@pytest.mark.parametrize("axes", [(), (None, "fsdp")])
@pytest.mark.parametrize("rows", [17, 15])
def test_rows_are_computed_where_the_parameters_are(rows, axes):
    mesh, traced = make_mesh(MeshPart(fsdp=2)), []

    def scaled(scale, rows, more):
        traced.append(len(rows))
        return scale * rows, more + rows[:, 0]

    arrays = np.arange(2.0 * rows).reshape(rows, 2), np.ones(rows)
    scale = jax.device_put(jnp.array([[3.0, 4.0]]), NamedSharding(mesh, PartitionSpec(*axes)))
    products, sums = by_rows(scaled)(scale, *arrays)
    is_divided = not axes and rows >= 2 * FEWEST_ROWS
    assert traced[-1] == (-(-rows // 2) if is_divided else rows)
    np.testing.assert_array_equal(products, np.array([[3, 4]]) * arrays[0])
    np.testing.assert_array_equal(sums, 1 + arrays[0][:, 0])
