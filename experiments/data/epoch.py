"""The amount of training data, in steps, examples and tokens."""

from fractions import Fraction
from typing import NamedTuple


class Epoch(NamedTuple):
    """All of the training data once.

    Attributes:
        steps: batches that it makes; an epoch need not end with a batch.
        examples: sentences, pairs, windows or the like.
        tokens: labels that the loss counts.
    """

    steps: int | Fraction
    examples: int
    tokens: int
