"""The best of the validation losses, and the number of evaluations since."""

from collections.abc import Mapping, Sequence

from experiments.config.train import TrainPart
from experiments.errors import as_usage_errors, one_of

# The step and the monitored loss of each evaluation, oldest first.
Losses = Sequence[tuple[int, float]]


def monitored_loss(measured: Mapping[str, float], config: TrainPart) -> float:
    """Return the value of the validation split that training follows, negated if higher is better.

    >>> monitored_loss({"loss": 2.0, "accuracy": 0.5}, TrainPart(monitor="accuracy"))
    -0.5

    Raises:
        UsageError: there is no such value.
    """
    with as_usage_errors():
        one_of("train.monitor", config.monitor, tuple(measured))
    return measured[config.monitor] * (1 if config.is_lower_better else -1)


def best_step(losses: Losses) -> int:
    """Return the step of the lowest loss, the first of several."""
    return min(losses, key=lambda evaluation: evaluation[1])[0]


def evaluations_since_best(losses: Losses) -> int:
    """Return the number of evaluations after the best one.

    >>> evaluations_since_best([(10, 3.0), (20, 2.0), (30, 2.5), (40, 2.0)])
    2
    """
    return sum(step > best_step(losses) for step, _ in losses) if losses else 0


def out_of_patience(losses: Losses, patience: int) -> bool:
    """Return whether `patience` evaluations came after the best; never with a patience of 0."""
    return 0 < patience <= evaluations_since_best(losses)
