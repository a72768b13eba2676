"""Words of a sentence, and the sentence of words."""

from collections.abc import Callable
from typing import NamedTuple


def tokenize(text: str) -> list[str]:
    """Split a sentence at spaces and after apostrophes: "l'Afrique" is "l'", "Afrique"."""
    # An elided word keeps its apostrophe, and no space follows it.
    return text.replace("'", "' ").split()


def detokenize(tokens: list[str]) -> str:
    """Join tokens to a sentence: the inverse of `tokenize`."""
    return " ".join(tokens).replace("' ", "'")


class Tokens(NamedTuple):
    """A function from text to tokens, and its inverse.

    Attributes:
        tokenize: the function.
        detokenize: its inverse.
        name: of functions that never change; without one, vocabularies are not stored.
    """

    tokenize: Callable[[str], list[str]]
    detokenize: Callable[[list[str]], str]
    name: str | None = None


WORDS = Tokens(tokenize, detokenize, "words")
SPACED = Tokens(str.split, " ".join, "spaced")
WHOLE = Tokens(lambda text: [text], "".join, "whole")  # a text is one token
