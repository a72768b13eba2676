"""Where pairs come from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.data.pairs import SentencePair
from experiments.data.tokenizers import Text, Words

EVERY_WORD = Words()


@dataclass(frozen=True)
class Source:
    """Data that a configuration names.

    Attributes:
        load: a split of it, from (`config.data`, name of the split, where generated data is kept).
        tests: the splits that a trained model is measured on.
        text: how its text becomes tokens and back.
        has_phenomena: whether its test split is of sentences that `by_phenomenon` knows.
    """

    load: Callable[[Any, str, Path], list[SentencePair]]
    tests: tuple[str, ...] = ("test",)
    text: Text = EVERY_WORD
    has_phenomena: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """All of its splits."""
        return ("train", "validation", *self.tests)
