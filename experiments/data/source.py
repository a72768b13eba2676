"""Where pairs come from."""

from collections.abc import Callable, Iterable
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
        load: a split of it, from (`config.data`, name of the split, where generated data is kept);
            it may be read as it is needed.
        check: raises a ValueError, in one sentence, if `config.data` asks for what cannot be.
        tests: the splits that a trained model is measured on.
        text: how its text becomes tokens and back.
        has_phenomena: whether its test split is of sentences that `by_phenomenon` knows.
        name: names the text that `config.data` asks for, if that text never changes.
    """

    load: Callable[[ConfigDict, str, Path], Iterable[SentencePair]]
    check: Callable[[ConfigDict], None]
    tests: tuple[str, ...] = ("test",)
    text: Text = EVERY_WORD
    has_phenomena: bool = False
    name: Callable[[ConfigDict], str] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """All of its splits."""
        return ("train", "validation", *self.tests)
