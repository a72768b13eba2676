"""A source of examples, and what tasks need to know of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.data.pairs import SentencePair
from experiments.data.tokenizers import Text, Words

EVERY_WORD = Words()


@dataclass(frozen=True)
class Source:
    """A dataset that serves every task of a config.

    Attributes:
        load: a split of it, from (`config.data`, name of the split, where generated data is kept);
            it may be read as it is needed.
        tests: the splits that a trained model is measured on.
        text: how its text becomes tokens and back.
        has_phenomena: whether its test split is of sentences that `by_phenomenon` knows.
        is_running: whether its examples are the parts of one text.
        may_split: whether a text that is longer than the model reads may become several examples;
            of data without targets.
        has_images: whether the source of an example is an image `[height, width, channels]`,
            from 0 (black) to 1 (white).
        may_lack_target: whether `config.target=""` loads examples without a target.
        name: names the text that `config.data` asks for, if that text never changes.
    """

    load: Callable[[Any, str, Path], Iterable[SentencePair]]
    tests: tuple[str, ...] = ("test",)
    text: Text = EVERY_WORD
    has_phenomena: bool = False
    is_running: bool = False
    may_split: bool = False
    has_images: bool = False
    may_lack_target: bool = False
    name: Callable[[Any], str] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """All of its splits."""
        return ("train", "validation", *self.tests)
