"""Pairs of a text to read and a text to say, and where they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments.data.words import SPACED, Tokens


class SentencePair(NamedTuple):
    """A sentence, its translation, and which of their words correspond.

    Attributes:
        source: plain text.
        target: plain text.
        links: "0-0 1-2", which tokens of the two correspond, source first.
    """

    source: str
    target: str
    links: str = ""

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The links as (source token, target token) places."""
        places = (link.split("-") for link in self.links.split())
        return [(int(source), int(target)) for source, target in places]


@dataclass(frozen=True)
class Source:
    """Data that a configuration names.

    Attributes:
        load: a split of it, from (`config.data`, name of the split, where generated data is kept).
        check: raises a ValueError, in one sentence, if `config.data` asks for what cannot be.
        tests: the splits that a trained model is measured on.
        tokens: how its text becomes tokens and back.
        shared: whether what is read and what is said are one language, with one vocabulary.
    """

    load: Callable[[ConfigDict, str, Path], list[SentencePair]]
    check: Callable[[ConfigDict], None]
    tests: tuple[str, ...] = ("test",)
    tokens: Tokens = SPACED
    shared: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """All of its splits."""
        return ("train", "validation", *self.tests)
