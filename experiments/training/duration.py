"""Duration of a training in steps, epochs, examples or tokens."""

import math
from collections.abc import Callable
from dataclasses import replace

from experiments.config import Config
from experiments.config.train import parse_duration
from experiments.data.epoch import Epoch
from experiments.errors import as_usage_errors


def num_steps(text: str, epoch: Epoch) -> int:
    """Return the steps of a duration, rounded up.

    >>> num_steps("10 epochs", Epoch(steps=7, examples=60, tokens=1000))
    70
    >>> num_steps("100 examples", Epoch(steps=7, examples=60, tokens=1000))
    12
    """
    number, unit = parse_duration(text)
    in_an_epoch = {"epochs": 1, **epoch._asdict()}[unit]
    return math.ceil(number * epoch.steps / in_an_epoch)  # exact, as these are fractions


def resolve_duration(config: Config, epoch: Callable[[Config], Epoch]) -> Config:
    """Return a config with the steps of its `train.duration`, if it has one, in its place.

    Args:
        config: of the run.
        epoch: counts the data of a config; called only for a duration.

    Raises:
        UsageError: no step.
    """
    duration = config.train.duration
    if not duration:
        return config
    steps = num_steps(duration, epoch(config))
    with as_usage_errors(f"train.duration={duration!r}: train."):
        train = config.train.with_steps(steps)
    print(f"{duration} are {steps:,} steps, {train.warmup_steps:,} of them warm-up")
    return replace(config, train=train)
