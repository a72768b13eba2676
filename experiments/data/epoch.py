"""How much data there is, in what a person counts."""

from typing import NamedTuple


class Epoch(NamedTuple):
    """All of the training data once.

    Attributes:
        steps: batches that it makes.
        examples: sentences, pairs, windows or whatever is learned from.
        tokens: labels that the loss counts.
    """

    steps: int
    examples: int
    tokens: int
