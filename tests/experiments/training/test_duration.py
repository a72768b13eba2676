"""Durations in every unit, and what is refused of them."""

import pytest
from ml_collections import ConfigDict

from experiments.data.epoch import Epoch
from experiments.errors import UsageError
from experiments.training.duration import check_duration, num_steps, settled

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
    ],
)
def test_every_unit_counts_steps(text, steps):
    assert num_steps(text, EPOCH) == steps


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("ten epochs", "needs a number, as in '10 epochs', got 'ten epochs'"),
        ("-1 epochs", "needs a number"),
        ("inf steps", "needs a number"),
        ("3 epoch", "did you mean 'epochs'"),
        ("3", "the unit of train.duration"),
    ],
)
def test_mistakes_are_one_sentence(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_duration(text)


def configuration(duration):
    return ConfigDict({"train": {"duration": duration, "steps": 100, "warmup_steps": 7}})


def test_a_duration_decides_the_steps_and_none_leaves_them():
    given = configuration("2 epochs")
    assert settled(given, lambda: EPOCH).train.steps == 14
    assert given.train.steps == 100
    plain = configuration("")
    assert settled(plain, None) is plain


def test_a_warmup_that_is_longer_is_refused():
    with pytest.raises(UsageError, match=r"'1 epochs' is 7 steps, and train\.warmup_steps=7 does"):
        settled(configuration("1 epochs"), lambda: EPOCH)
