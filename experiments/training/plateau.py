"""What the losses on the validation set say: which was the best, and how long ago."""

from collections.abc import Sequence

# The step and the loss of each evaluation, oldest first.
Losses = Sequence[tuple[int, float]]


def best_step(losses: Losses) -> int:
    """The step of the lowest loss, the first of several."""
    return min(losses, key=lambda evaluation: evaluation[1])[0]


def evaluations_since_best(losses: Losses) -> int:
    """How many evaluations in a row were no better than the best before them.

    >>> evaluations_since_best([(10, 3.0), (20, 2.0), (30, 2.5), (40, 2.0)])
    2
    """
    return sum(step > best_step(losses) for step, _ in losses) if losses else 0


def out_of_patience(losses: Losses, patience: int) -> bool:
    """Whether so many evaluations in a row were without gain; never with a patience of 0."""
    return 0 < patience <= evaluations_since_best(losses)


def stalls(losses: Losses, patience: int) -> bool:
    """Whether the last evaluation is the `patience`-th in a row, or twice that, without gain."""
    return evaluations_since_best(losses) % patience == 0 < evaluations_since_best(losses)
