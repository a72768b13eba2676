"""Examples: a text or an image to read, and a text or a class to predict."""

from typing import NamedTuple


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
        """The links as (source token, target token) places."""
        places = (link.split("-") for link in self.links.split())
        return [(int(source), int(target)) for source, target in places]
