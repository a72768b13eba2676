"""Word senses from constructed vectors with known answers."""

import numpy as np
import pytest

from experiments.analysis.senses import (
    Occurrence,
    SenseVectors,
    neighbour_mean,
    occurrences,
    sense_accuracy,
)
from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language.corpus import sample
from experiments.data.toy_language.lexicon import SENSES

RANDOM = np.random.default_rng(0)


def constructed(number, vector_of):
    """Return vectors of two words: 3/4 of "bank" is "banque", half of "bat" is either sense."""
    words = np.array(["bank", "bat"] * (number // 2))
    turns = np.arange(number) // 2 % 4
    senses = np.array(
        [
            ("rive" if turn == 0 else "banque") if word == "bank" else f"bat {turn % 2}"
            for word, turn in zip(words, turns, strict=True)
        ]
    )
    vectors = np.array([vector_of(*pair) for pair in zip(words, senses, strict=True)])
    return SenseVectors(words, senses, vectors)


def test_sense_is_the_aligned_french_word():
    pairs = [
        SentencePair(
            "the banker sees the bank", "le banquier voit la banque", "0-0 1-1 2-2 3-3 4-4"
        ),
        SentencePair("Paul sees", "Paul voit", "0-0 1-1"),
        SentencePair("the muddy banks", "les rives boueuses", "0-0 1-2 2-1"),
    ]
    assert occurrences(pairs) == [
        Occurrence(0, 4, "bank", "banque"),
        Occurrence(2, 2, "bank", "rive"),
    ]


def test_every_sense_of_the_toy_language_is_found():
    pairs = [*sample(seed=0, n=6_000)]
    found = occurrences(pairs)
    assert {(one.word, one.sense) for one in found} == {
        (noun.english, noun.french) for noun in SENSES
    }
    for number, place, word, _ in found:
        assert pairs[number].source.split()[place] in (word, word + "s", word + "es")


def test_neighbours_by_hand():
    vectors = np.array([[1.0], [2], [4], [8], [16]])
    assert neighbour_mean(vectors, 2, 1) == pytest.approx((2 + 8) / 2)
    assert neighbour_mean(vectors, 0, 2) == pytest.approx((2 + 4) / 2)
    assert neighbour_mean(vectors, 1, 2) == pytest.approx((1 + 4 + 8) / 3)
    assert neighbour_mean(vectors, 4, 9) == pytest.approx((1 + 2 + 4 + 8) / 4)
    assert neighbour_mean(vectors[:1], 0, 3) == 0


def test_constant_vectors_predict_the_majority_sense():
    constant = {"bank": RANDOM.normal(size=7), "bat": RANDOM.normal(size=7)}
    train, test = (constructed(number, lambda word, _: constant[word]) for number in (160, 80))
    scores = sense_accuracy(train, test)
    assert scores == {"accuracy": pytest.approx(5 / 8), "majority": pytest.approx(5 / 8)}


def test_vectors_with_a_sense_direction_predict_every_sense():
    """The sense is a small component beside noise, a different one for each word."""

    def vector(word, sense):
        side = 1 if sense in ("rive", "bat 0") else -1
        noise = RANDOM.normal(size=7)
        noise[3 if word == "bank" else 5] = 0.01 * side * (1 if word == "bank" else -1)
        return noise

    scores = sense_accuracy(constructed(400, vector), constructed(80, vector))
    assert scores == {"accuracy": 1, "majority": pytest.approx(5 / 8)}


def test_word_with_one_sense_in_train():
    train = SenseVectors(np.array(["pen"] * 2), np.array(["stylo"] * 2), np.ones((2, 3)))
    test = SenseVectors(np.array(["pen"] * 2), np.array(["stylo", "enclos"]), np.ones((2, 3)))
    assert sense_accuracy(train, test) == {"accuracy": 0.5, "majority": 0.5}
