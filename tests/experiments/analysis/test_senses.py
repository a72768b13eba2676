"""Word senses from constructed vectors with known answers."""

import numpy as np
import pytest

from experiments.analysis.senses import (
    SenseVectors,
    neighbour_mean,
    sense_accuracy,
)

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


def test_neighbours_by_hand():
    vectors = np.array([[1.0], [2], [4], [8], [16]])
    assert neighbour_mean(vectors, 2, 1) == pytest.approx((2 + 8) / 2)
    assert neighbour_mean(vectors, 0, 2) == pytest.approx((2 + 4) / 2)
    assert neighbour_mean(vectors, 4, 9) == pytest.approx((1 + 2 + 4 + 8) / 4)
    assert neighbour_mean(vectors[:1], 0, 3) == 0


def test_vectors_with_a_sense_direction_predict_every_sense():
    """The sense is a small component beside noise, a different one for each word."""

    def vector(word, sense):
        side = 1 if sense in ("rive", "bat 0") else -1
        noise = RANDOM.normal(size=7)
        noise[3 if word == "bank" else 5] = 0.01 * side * (1 if word == "bank" else -1)
        return noise

    scores = sense_accuracy(constructed(400, vector), constructed(80, vector))
    assert scores == {"accuracy": 1, "majority": pytest.approx(5 / 8)}
