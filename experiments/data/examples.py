"""Examples: a text or an image to read, and a text or a class to predict; then as ids."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

Ids = Sequence[int] | np.ndarray
Example = TypeVar("Example", bound=tuple[Ids, ...])


class SentencePair(NamedTuple):
    """A sentence, its translation, and which of their words correspond.

    Attributes:
        source: plain text; in data of images an array.
        target: plain text, or the name of a class; "" if there is none.
        links: "0-0 1-2", which tokens of the two correspond, source first.
    """

    source: str
    target: str = ""
    links: str = ""

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The links as indices (source token, target token)."""
        return [tuple(map(int, link.split("-"))) for link in self.links.split()]


class EncodedPair(NamedTuple):
    """Ids of a source and a target sentence, without begin and end."""

    source: Ids
    target: Ids = ()

    @property
    def length(self) -> int:
        """Positions of the longer side, its end included."""
        return max(len(self.source), len(self.target)) + 1


class EncodedExamples(list[Example]):
    """Examples in memory; each is a tuple of the ids of its sides."""

    @cached_property
    def lengths(self) -> np.ndarray:
        """Positions of each side, its end included: `[examples, sides]`."""
        return np.array([[len(side) + 1 for side in example] for example in self])


def fingerprint(lines: Iterable[str]) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of lines."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16]
