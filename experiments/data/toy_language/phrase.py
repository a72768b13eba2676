"""Phrases in both languages; every French word refers to the English words it translates.

English words are compared by identity, so phrases are joined by concatenating lists, in the order
of each language. Positions, elision and contraction are computed at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.data.tokenizers import SentencePair
from experiments.data.toy_language.lexicon import starts_with_vowel

# Word → its form before a vowel.
_ELIDED = {
    "le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "me": "m'", "que": "qu'",
    "ma": "mon", "ta": "ton", "sa": "son", "ce": "cet",
}  # fmt: skip
_CONTRACTED = {
    ("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux",
}  # fmt: skip


@dataclass(eq=False, slots=True)
class English:
    """One English word at one position of a sentence."""

    text: str


class French(NamedTuple):
    """One French word, and the English words it translates."""

    text: str
    sources: tuple[English, ...] = ()


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
    return [French(word, sources) for word in text.split()]


def phrase(english_text: str, french_text: str) -> Phrase:
    """Return a phrase, aligned word by word if both sides have equally many words."""
    words, texts = english(english_text), french_text.split()
    if len(words) == len(texts):
        return Phrase(
            words, [French(text, (word,)) for text, word in zip(texts, words, strict=True)]
        )
    return Phrase(words, french(french_text, words))


def definite(english_text: str, article: str, noun: str) -> Phrase:
    """Return a name whose French article translates *the*, or nothing if English has none."""
    words = english(english_text)
    the = [word for word in words if word.text == "the"]
    return Phrase(words, french(article, the) + french(noun, words[len(the) :]))


def finish(sentence: Phrase) -> SentencePair:
    """Contract and elide the French words, from the last to the first, and number the links.

    >>> finish(phrase("Paul", "Paul") + phrase("of", "de") + definite("Africa", "la", "Afrique"))
    SentencePair(source='Paul of Africa', target="Paul de l'Afrique", links='0-0 1-1 2-3')
    """
    spelt: list[French] = []
    for text, sources in reversed(sentence.french):
        following = spelt[-1].text if spelt else "."
        if (text, following) in _CONTRACTED:
            contracted = spelt.pop()
            spelt.append(French(_CONTRACTED[text, following], sources + contracted.sources))
        elif text in _ELIDED and starts_with_vowel(following):
            spelt.append(French(_ELIDED[text], sources))
        else:
            spelt.append(French(text, sources))
    spelt.reverse()
    place = {id(word): i for i, word in enumerate(sentence.english)}
    links = sorted({(place[id(s)], j) for j, word in enumerate(spelt) for s in word.sources})
    return SentencePair(
        " ".join(word.text for word in sentence.english),
        " ".join(word.text for word in spelt).replace("' ", "'"),
        " ".join(f"{source}-{target}" for source, target in links),
    )
