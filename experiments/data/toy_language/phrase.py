"""Phrases in both languages; every French word refers to the English words it translates.

English words are compared by identity, so phrases are joined by concatenating lists, in the order
of each language. Positions, elision and contraction are computed at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from experiments.data.tokenizers import tokenize
from experiments.data.toy_language.morphology import starts_with_vowel

# Word → its form before a vowel.
_ELIDED = {
    "le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "me": "m'", "que": "qu'",
    "ma": "mon", "ta": "ton", "sa": "son", "ce": "cet",
}  # fmt: skip
_CONTRACTED = {
    ("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, and their word alignment."""

    en: str
    fr: str
    alignment: tuple[tuple[int, int], ...]

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """Word forms of both sides, with a prefix for the language."""
        english, french = self.en.split(), tokenize(self.fr)
        return (*("en " + word for word in english), *("fr " + word for word in french))


@dataclass(eq=False, slots=True)
class English:
    """One English word at one position of a sentence."""

    text: str


class French(NamedTuple):
    """One French word, the English words it translates, and its form before a vowel."""

    text: str
    sources: tuple[English, ...] = ()
    before_vowel: str | None = None


@dataclass
class Phrase:
    """The same phrase in both languages, each in its own order."""

    english: list[English] = field(default_factory=list)
    french: list[French] = field(default_factory=list)

    def __add__(self, other: "Phrase") -> "Phrase":
        """Concatenate two phrases, in both languages."""
        return Phrase(self.english + other.english, self.french + other.french)


def english(text: str) -> list[English]:
    """Return the English words of a text."""
    return [English(word) for word in text.split()]


def french(text: str, sources: Iterable[English] = ()) -> list[French]:
    """Return French words that all translate the same English words."""
    sources = tuple(sources)
    return [French(word, sources, _ELIDED.get(word)) for word in text.split()]


def phrase(english_text: str, french_text: str) -> Phrase:
    """Return a phrase, aligned word by word if both sides have equally many words."""
    words = english(english_text)
    texts = french_text.split()
    if len(words) == len(texts):
        sources = zip(texts, words, strict=True)
        return Phrase(words, [word for text, source in sources for word in french(text, [source])])
    return Phrase(words, french(french_text, words))


def _contract(words: list[French]) -> list[French]:
    out: list[French] = []
    for i, word in enumerate(words):
        contracted = _CONTRACTED.get((out[-1].text, word.text)) if out else None
        elides = word.before_vowel and i + 1 < len(words) and starts_with_vowel(words[i + 1].text)
        if contracted and not elides:
            out[-1] = French(contracted, out[-1].sources + word.sources)
        else:
            out.append(word)
    return out


def _elide(words: list[French]) -> list[French]:
    followers = [starts_with_vowel(word.text) for word in words[1:]] + [False]
    return [
        word._replace(text=word.before_vowel) if word.before_vowel and vowel else word
        for word, vowel in zip(words, followers, strict=True)
    ]


def finish(sentence: Phrase) -> Pair:
    """Apply contraction and elision, and compute the alignment."""
    spelt = _elide(_contract(sentence.french))
    place = {id(word): i for i, word in enumerate(sentence.english)}
    links = sorted({(place[id(s)], j) for j, word in enumerate(spelt) for s in word.sources})
    text = " ".join(word.text for word in spelt).replace("' ", "'")
    return Pair(" ".join(word.text for word in sentence.english), text, tuple(links))
