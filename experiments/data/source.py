"""Where pairs come from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from experiments.data.pairs import SentencePair
from experiments.data.tokenizers import Text, Words

EVERY_WORD = Words()


@dataclass(frozen=True)
class Source:
    """Data that a configuration names.

    Attributes:
        load: a split of it, from (`config.data`, name of the split, where generated data is kept).
        check: raises a ValueError, in one sentence, if `config.data` asks for what cannot be.
        tests: the splits that a trained model is measured on.
        text: how its text becomes tokens and back.
        has_phenomena: whether its test split is of sentences that `by_phenomenon` knows.
    """

    load: Callable[[ConfigDict, str, Path], list[SentencePair]]
    check: Callable[[ConfigDict], None]
    tests: tuple[str, ...] = ("test",)
    text: Text = EVERY_WORD
    has_phenomena: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """All of its splits."""
        return ("train", "validation", *self.tests)
