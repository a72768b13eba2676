"""How long to train, in what a person counts: steps, epochs, examples or tokens."""

import math
from collections.abc import Callable

from ml_collections import ConfigDict

from attention.modules.choice import one_of
from experiments.data.epoch import Epoch
from experiments.errors import UsageError

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
    return math.ceil(number * epoch.steps / in_an_epoch)


def settled(config: ConfigDict, epoch: Callable[[], Epoch]) -> ConfigDict:
    """A configuration whose `train.steps` are those of its `train.duration`, if it names one.

    Args:
        config: of the run.
        epoch: counts the data, if that is asked for.

    Raises:
        UsageError: a warm-up that is longer.
    """
    duration = config.train.duration
    if not duration:
        return config
    steps = num_steps(duration, epoch())
    if config.train.warmup_steps >= steps:
        raise UsageError(
            f"train.duration={duration!r} is {steps:,} steps, and "
            f"train.warmup_steps={config.train.warmup_steps} does not end before it"
        )
    print(f"{duration} are {steps:,} steps")
    config = config.copy_and_resolve_references()
    config.train.steps = steps
    return config


def _parse(text: str) -> tuple[float, str]:
    amount, _, unit = text.strip().partition(" ")
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"train.duration needs a number, as in '10 epochs', got {text!r}")
    one_of("the unit of train.duration", unit, UNITS)
    return number, unit
