"""Words: a sentence as a list of tokens, and back."""

from collections.abc import Callable
from typing import NamedTuple


def tokenize(text: str) -> list[str]:
    """Splits a sentence at spaces and after apostrophes: "l'Afrique" is "l'", "Afrique"."""
    # An elided word keeps its apostrophe and stands before the next word without a space.
    return text.replace("'", "' ").split()


def detokenize(tokens: list[str]) -> str:
    """Joins tokens to a sentence: the inverse of `tokenize`."""
    return " ".join(tokens).replace("' ", "'")


class Tokens(NamedTuple):
    """A way from text to tokens, and the way back."""

    tokenize: Callable[[str], list[str]]
    detokenize: Callable[[list[str]], str]


WORDS = Tokens(tokenize, detokenize)
SPACED = Tokens(str.split, " ".join)
WHOLE = Tokens(lambda text: [text], "".join)  # a text is one token
