"""How long to train, in what a person counts: steps, epochs, examples or tokens."""

import math
from collections.abc import Callable
from fractions import Fraction

from ml_collections import ConfigDict

from attention.primitives.choice import one_of
from experiments.data.epoch import Epoch
from experiments.errors import UsageError
from experiments.training.optimizer import check_warmup

MOST_STEPS = 2**31 - 1  # of the counter in a training state
UNITS = ("steps", "epochs", "examples", "tokens")


def check_duration(text: str) -> None:
    """Checks a duration as a person writes it; "" leaves `train.steps` as it is.

    Raises:
        ValueError: not a number above 0 and a unit.
    """
    if text:
        _parse(text)


def num_steps(text: str, epoch: Epoch) -> int:
    """How many steps a duration takes, the last one begun.

    >>> num_steps("10 epochs", Epoch(steps=7, examples=60, tokens=1000))
    70
    >>> num_steps("100 examples", Epoch(steps=7, examples=60, tokens=1000))
    12
    """
    number, unit = _parse(text)
    in_an_epoch = {"epochs": 1, **epoch._asdict()}[unit]
    return math.ceil(number * epoch.steps / in_an_epoch)  # exact, as these are fractions


def check_steps(steps: int) -> None:
    """Checks that the counter of a training state has room for them.

    Raises:
        ValueError: it has not.
    """
    if steps > MOST_STEPS:
        raise ValueError(f"train.steps must be at most {MOST_STEPS:,} steps, got {steps:,}")


def provisional(config: ConfigDict) -> ConfigDict:
    """A configuration as long as its warm-up at least, while its duration is not counted yet."""
    if not config.train.duration:
        return config
    config = config.copy_and_resolve_references()
    config.train.steps = max(config.train.steps, config.train.warmup_steps + 1)
    return config


def settled(config: ConfigDict, epoch: Callable[[ConfigDict], Epoch]) -> ConfigDict:
    """A configuration whose `train.steps` are those of its `train.duration`, if it names one.

    Args:
        config: of the run.
        epoch: counts the data by a configuration, if that is asked for.

    Raises:
        UsageError: a warm-up that is longer, or more steps than anybody counts.
    """
    duration = config.train.duration
    if not duration:
        return config
    steps = num_steps(duration, epoch(provisional(config)))
    try:
        check_steps(steps)
        check_warmup(config.train.warmup_steps, steps)
    except ValueError as error:
        raise UsageError(f"train.duration={duration!r}: {error}") from error
    print(f"{duration} are {steps:,} steps")
    config = config.copy_and_resolve_references()
    config.train.steps = steps
    return config


def _parse(text: str) -> tuple[Fraction, str]:
    amount, _, unit = " ".join(text.split()).partition(" ")
    try:
        is_positive = 0 < float(amount) < math.inf
    except ValueError:
        is_positive = False
    if not is_positive:
        raise ValueError(f"train.duration needs a number, as in '10 epochs', got {text!r}")
    one_of("the unit of train.duration", unit, UNITS)
    return Fraction(amount), unit
