"""Durations in every unit, and what is refused of them."""

from fractions import Fraction

import numpy as np
import pytest
from experiments.training.duration import num_steps, resolve_duration

from experiments.config import Config
from experiments.config.train import TrainPart
from experiments.data.epoch import Epoch
from experiments.data.rows import Encoded, EncodedPair
from experiments.data.text import RandomWindows
from experiments.data.windows import Buckets, PackedPairRows, PackedRows, Windows
from experiments.errors import UsageError

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
    assert num_steps(text, EPOCH) == steps


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("ten epochs", "needs a number, as in '10 epochs', got 'ten epochs'"),
        ("-1 epochs", "needs a number"),
        ("0 epochs", "needs a number"),
        ("1/0 epochs", "needs a number"),
        ("1e99999999 epochs", "needs a number"),
        ("inf steps", "needs a number"),
        ("3 epoch", "did you mean 'epochs'"),
        ("3", "duration: the unit"),
    ],
)
def test_mistakes_are_one_sentence(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainPart(duration=text)


def configuration(duration, steps=100, warmup=7):
    train = {"duration": duration, "steps": steps, "warmup_steps": warmup}
    return Config.read({"task": "translation", "train": train})


def test_a_duration_decides_the_steps_and_none_leaves_them():
    given = configuration("2 epochs")
    train = resolve_duration(given, lambda now: EPOCH).train
    assert (train.steps, train.duration) == (14, "")
    assert given.train.steps == 100
    plain = configuration("")
    assert resolve_duration(plain, None) is plain


def test_a_warmup_that_is_longer_is_refused():
    with pytest.raises(UsageError, match=r"'1 epochs': .* in \[0, steps=7\), got 7"):
        resolve_duration(configuration("1 epochs"), lambda now: EPOCH)


def test_a_warmup_may_be_longer_than_the_steps_that_a_duration_replaces():
    given = configuration("9 epochs", steps=20, warmup=25)
    assert resolve_duration(given, lambda now: EPOCH).train.steps == 63


PAIRS = Encoded(
    EncodedPair([3] * source, [3] * target) for source, target in ((2, 3), (1, 1), (3, 2))
)
TEXT = np.arange(11)


@pytest.mark.parametrize(
    "data, epoch",
    [
        # A batch of 8 positions has two rows of 4.
        (Windows(PAIRS, Buckets([4], 8), seed=0), Epoch(steps=2, examples=3, tokens=4 + 2 + 3)),
        (
            Windows(PAIRS, PackedPairRows((6, 7), 14), seed=0),
            Epoch(steps=1, examples=3, tokens=4 + 2 + 3),
        ),
        (
            Windows(Encoded([([3, 4],), ([5],)]), PackedRows([5], 15), seed=0),
            Epoch(steps=Fraction(1, 3), examples=2, tokens=5),
        ),
        (
            RandomWindows(TEXT, context=3, size=2, seed=0),
            Epoch(steps=2, examples=4, tokens=10),
        ),
    ],
)
def test_steps_examples_and_tokens_of_an_epoch(data, epoch):
    assert data.epoch == epoch
