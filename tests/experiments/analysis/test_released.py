"""Attention of checkpoints in the layout of Hugging Face, with tokens that are words."""

import numpy as np
import pytest

from experiments.analysis.released import collect, read
from tests.conftest import REPOSITORY

CHECKPOINTS = REPOSITORY / "tests" / "fixtures" / "checkpoints"


class Words:
    """Tokens such as w7, with id 7."""

    def encode(self, text):
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids, *, special_tokens):
        assert special_tokens
        return " ".join(f"w{number}" for number in ids)


def load(name):
    return pytest.importorskip("attention.weights").load(CHECKPOINTS / name, scan=False)


def test_encoder_decoder_generates_its_target():
    model, options = load("bart"), {"start": 2, "max_tokens": 3, "stop": []}
    example = read(model, Words(), "w5 w6", options)
    assert example.labels["encoder"] == ["w5", "w6"]
    assert example.labels["decoder"] == ["w2", *example.predicted[:2]]
    maps = collect(model, example).maps
    assert {*maps} == {"encoder", "decoder", "cross"}
    assert maps["cross"].weights.shape[-2:] == (3, 2)
    assert maps["cross"].queries == example.predicted
    np.testing.assert_array_equal(np.triu(maps["decoder"].weights, 1), 0)


def test_encoder():
    model = load("bert")
    example = read(model, Words(), "w5 w6 w7", {})
    maps = collect(model, example).maps
    assert {*maps} == {"encoder"}
    np.testing.assert_allclose(maps["encoder"].weights.sum(axis=-1), 1, rtol=1e-5)


def test_sentence_without_a_token():
    with pytest.raises(ValueError, match="the line has no token"):
        read(None, Words(), " ", {})
