"""Durations in every unit, and what is refused of them."""

from fractions import Fraction

import numpy as np
import pytest

from experiments.config.parts import TrainPart, with_steps
from experiments.data.pipeline import Buckets, Epoch, PackedRows, ShuffledBatches, Windows
from experiments.data.tokenizers import EncodedExamples, EncodedPair

EPOCH = Epoch(steps=7, examples=60, tokens=1000)


@pytest.mark.parametrize(
    "text, steps",
    [
        ("5 steps", 5),
        ("3 epochs", 21),
        ("0.5 epochs", 4),
        ("120 examples", 14),
        ("1e3 tokens", 7),
        ("1 tokens", 1),
        (" 0.07  epochs", 1),
    ],
)
def test_every_unit_counts_steps(text, steps):
    train = TrainPart(duration=text, steps=20, warmup_steps=0)
    resolved = with_steps(train, lambda: EPOCH)
    assert (resolved.steps, resolved.duration, train.steps) == (steps, "", 20)


@pytest.mark.parametrize(
    "text", ["ten epochs", "-1 epochs", "0 epochs", "1/0 epochs", "inf epochs", "3 epoch", "3"]
)
def test_mistakes_are_one_sentence(text):
    with pytest.raises(ValueError, match="duration"):
        TrainPart(duration=text)


def test_warmup_that_is_longer_than_the_duration_becomes_a_quarter():
    train = TrainPart(duration="1 epochs", steps=5, warmup_steps=700)
    resolved = with_steps(train, lambda: EPOCH)
    assert resolved.warmup_steps == resolved.steps // 4
    assert with_steps(TrainPart(steps=200), None).steps == 200


PAIRS = EncodedExamples(
    EncodedPair([3] * source, [3] * target) for source, target in ((2, 3), (1, 1), (3, 2))
)


@pytest.mark.parametrize(
    "data, epoch",
    [
        # A batch of 8 positions has two rows of 4.
        (ShuffledBatches(PAIRS, Buckets([4], 8), seed=0), Epoch(steps=2, examples=3, tokens=9)),
        (ShuffledBatches(PAIRS, PackedRows((6, 7), 14), seed=0), Epoch(1, examples=3, tokens=9)),
        (
            ShuffledBatches(EncodedExamples([([3, 4],), ([5],)]), PackedRows([5], 15), seed=0),
            Epoch(steps=Fraction(1, 3), examples=2, tokens=5),
        ),
        (Windows(np.arange(11), context=3, size=2, seed=0), Epoch(2, 4, tokens=10)),
    ],
)
def test_steps_examples_and_tokens_of_an_epoch(data, epoch):
    assert data.epoch == epoch
